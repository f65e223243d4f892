"""A picture's bytes as an array."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ImageError
from . import jpeg, png

Pixels = npt.NDArray[Any]

MOST_PIXELS = (1 << 30) // 4 // 3  # above it Pillow warns, and refuses what is twice as large
_DAMAGED = (OSError, SyntaxError, RuntimeError, EOFError, IndexError, struct.error)  # as Pillow's readers say it
_QUICK = {b"\xff\xd8\xff": jpeg.decode, b"\x89PN": png.decode}


def decode_image(data: bytes | bytearray | memoryview, mode: str | None = "RGB") -> Pixels:
    """The pixels as `(height, width, channels)`, or `(height, width)` where `mode` has one channel: those of Pillow's
    `Image.open(...).convert(mode)`, to the bit. `mode` None: as they are stored. The array is yours to change.

    Most JPEG and PNG files go a quicker way (about twice as quick for small ones), without the interpreter's lock for
    nearly all of it: threads are enough. ImageError: it is no picture, or a damaged one.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"expected an encoded picture as bytes, got {type(data).__name__}; a path: open(path, 'rb').read()"
        )
    quick = _QUICK.get(bytes(data[:3]))
    if quick is not None:
        pixels = quick(data, mode, MOST_PIXELS)
        if pixels is not None:
            return pixels
    return _by_pillow(data, mode)


def _by_pillow(data: bytes | bytearray | memoryview, mode: str | None) -> Pixels:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("expected Pillow to decode a picture, and it is not installed: pip install Pillow") from None
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.array(image if mode in (None, image.mode) else image.convert(mode))
    except (*_DAMAGED, Image.DecompressionBombError) as error:
        raise ImageError(f"cannot decode a picture of {len(data):,} bytes: {_reason(error)}") from error
    except (ValueError, KeyError) as error:
        raise ImageError(f"cannot decode a picture of {len(data):,} bytes into the mode {mode!r}: {error}") from error


def _reason(error: Exception) -> str:
    text = str(error)
    return "it is of no kind that Pillow knows" if text.startswith("cannot identify image file") else text
