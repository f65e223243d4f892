"""Loads the optional C extensions: each is a module, or None where it was not compiled or HOLDFAST_NATIVE=0.

    chunks     threads that read and decode the chunks of HDF5 files
    readahead  a thread that reads file ranges into memory ahead of their use
    images     baseline JPEG decoding, and resizing
    png        the unfilter step of PNG decoding

HOLDFAST_NATIVE=1 makes a missing extension an ImportError.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import _chunks as chunks
    from . import _images as images
    from . import _png as png
    from . import _readahead as readahead
else:

    def _load(name: str) -> Any:
        choice = os.environ.get("HOLDFAST_NATIVE", "")
        if choice == "0":
            return None
        try:
            return importlib.import_module(f"holdfast._native.{name}")
        except ImportError:
            if choice == "1":
                raise
            return None

    chunks, images, png, readahead = map(_load, ("_chunks", "_images", "_png", "_readahead"))

__all__ = ["chunks", "images", "png", "readahead"]
