"""JPEG by simplejpeg."""

from __future__ import annotations

import functools
from typing import Any

import numpy.typing as npt

_SAME = {("RGB", "YCbCr"), ("RGB", "Gray"), ("L", "Gray"), (None, "YCbCr")}  # others Pillow converts in its own way


def decode(data: Any, mode: str | None, most_pixels: int) -> npt.NDArray[Any] | None:
    """None: not a JPEG for this way; it may be damaged, and Pillow says how."""
    library = _simplejpeg()
    if library is None:
        return None
    try:
        height, width, colours, _ = library.decode_jpeg_header(data)
        if (mode, colours) not in _SAME or height * width > most_pixels:
            return None
        # Strict: what libjpeg only warns of is damage, and Pillow has its own rules for that.
        pixels: npt.NDArray[Any] = library.decode_jpeg(data, "GRAY" if mode == "L" else "RGB", strict=True)
    except ValueError:
        return None
    return pixels[:, :, 0] if mode == "L" else pixels


@functools.cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg
