"""What undoes the filters of a PNG, compiled; None where it was not, and Pillow does all of it.

`HOLDFAST_NATIVE=0` leaves it out, `=1` makes a missing compiled module an error. The pixels are the same both ways.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import _image as compiled
else:
    _wanted = os.environ.get("HOLDFAST_NATIVE", "")
    compiled = None
    if _wanted != "0":
        try:
            from . import _image as compiled
        except ImportError:
            if _wanted == "1":
                raise

__all__ = ["compiled"]
