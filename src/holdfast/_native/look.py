"""The loops over tens of thousands of descriptors, compiled; None where they were not, and `proc` does it in Python.

`HOLDFAST_NATIVE=0` forces Python, `=1` makes a missing compiled module an error. Both ways say the same. What each
function does stands in `native/look/module.c`; what it means, beside its twin in `proc`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import _look as compiled
else:
    _wanted = os.environ.get("HOLDFAST_NATIVE", "")
    compiled = None
    if _wanted != "0":
        try:
            from . import _look as compiled
        except ImportError:
            if _wanted == "1":
                raise

__all__ = ["compiled"]
