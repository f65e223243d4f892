"""A thread that reads files without the interpreter, compiled; None where it was not, and nothing is read beforehand.

`HOLDFAST_NATIVE=0` leaves it out, `=1` makes a missing compiled module an error. What it does stands in
`native/ahead/module.c`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import _ahead as compiled
else:
    _wanted = os.environ.get("HOLDFAST_NATIVE", "")
    compiled = None
    if _wanted != "0":
        try:
            from . import _ahead as compiled
        except ImportError:
            if _wanted == "1":
                raise

__all__ = ["compiled"]
