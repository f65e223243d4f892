"""Decodes images to arrays with exactly Pillow's pixels: JPEG by simplejpeg and common PNGs by zlib and a compiled
unfilter, which are about twice as fast; everything else by Pillow itself."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._native.c_modules import png
from ...errors import ImageError

# Pillow converts others differently
_SAME_AS_PILLOW = {("RGB", "YCbCr"), ("RGB", "Gray"), ("L", "Gray"), (None, "YCbCr")}


def decode_jpeg(data: Any, mode: str | None, max_pixels: int) -> npt.NDArray[Any] | None:
    """Returns None for what must go to Pillow: other modes, huge images, and corrupt data, which Pillow describes."""
    library = _simplejpeg()
    if library is None:
        return None
    try:
        height, width, colours, _ = library.decode_jpeg_header(data)
        if (mode, colours) not in _SAME_AS_PILLOW or height * width > max_pixels:
            return None
        # Strict: data that libjpeg only warns about go to Pillow, which has its own rules for them.
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


# ---- PNG: 8-bit RGB or grey, not interlaced, as nearly all training data are

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">II5B")
_CHUNK = struct.Struct(">I4s")
_CHANNELS = {("RGB", 2): 3, (None, 2): 3, ("L", 0): 1, (None, 0): 1}  # by mode and colour type


class _PNG(NamedTuple):
    width: int
    height: int
    colour_type: int
    compressed: bytes


def decode_png(data: Any, mode: str | None, max_pixels: int) -> npt.NDArray[Any] | None:
    """Returns None for what must go to Pillow: other kinds of PNG, huge images, and corrupt data."""
    stored = _parse_png(data) if png else None
    if stored is None or stored.width * stored.height > max_pixels:
        return None
    channels = _CHANNELS.get((mode, stored.colour_type))
    if channels is None:
        return None
    row_bytes = stored.width * channels
    rows = _inflate(stored.compressed, stored.height * (1 + row_bytes))
    if rows is None:
        return None
    pixels = np.empty((stored.height, stored.width, channels)[: 2 if channels == 1 else 3], np.uint8)
    try:
        png.unfilter(rows, pixels.data, row_bytes, channels)
    except ValueError:
        return None
    return pixels


def _parse_png(data: Any) -> _PNG | None:
    """Returns None where something is unusual, corrupt or missing."""
    if data[:8] != _SIGNATURE or len(data) < 33 or data[8:16] != b"\0\0\0\x0dIHDR":
        return None
    width, height, depth, colour_type, *ways = _HEADER.unpack_from(data, 16)
    if depth != 8 or any(ways) or not width or not height:
        return None
    at, pieces = 8, []
    while at + 12 <= len(data):
        size, name = _CHUNK.unpack_from(data, at)
        if name == b"IDAT":
            pieces.append(data[at + 8 : at + 8 + size])  # zlib has a checksum of its own
        elif name == b"IEND":
            return _PNG(width, height, colour_type, b"".join(pieces))
        elif pieces or name == b"acTL" or not _crc_matches(data, at, size):
            return None  # chunks after the pixels, or more than one image: Pillow knows what they mean
        at += 12 + size
    return None


def _crc_matches(data: Any, at: int, size: int) -> bool:
    crc = zlib.crc32(data[at + 4 : at + 8 + size])
    return bool(data[at + 8 + size : at + 12 + size] == crc.to_bytes(4, "big"))


def _inflate(compressed: bytes, size: int) -> bytes | None:
    """Decompresses exactly `size` bytes; returns None if there are fewer, more, or corrupt ones."""
    inflate = zlib.decompressobj()
    try:
        rows = inflate.decompress(compressed, size)
        rest = inflate.decompress(inflate.unconsumed_tail, 1)
    except zlib.error:
        return None
    return rows if len(rows) == size and not rest and inflate.eof else None


# ---- any image

Pixels = npt.NDArray[Any]

MAX_PIXELS = (1 << 30) // 4 // 3  # Pillow warns above it, and fails at twice as many
_PILLOW_ERRORS = (OSError, SyntaxError, RuntimeError, EOFError, IndexError, struct.error)
_FAST = {b"\xff\xd8\xff": decode_jpeg, b"\x89PN": decode_png}


def decode_image(data: bytes | bytearray | memoryview, mode: str | None = "RGB") -> Pixels:
    """Returns the pixels as `(height, width, channels)`, or `(height, width)` where `mode` has one channel: bit for bit
    those of Pillow's `Image.open(...).convert(mode)`. `mode` None: as they are stored. The array is writable.

    Most JPEG and PNG files are decoded about twice as fast as by Pillow, mostly without the GIL, so threads are enough.
    Raises an ImageError for bytes that are no image, or a corrupt one.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"expected an encoded image as bytes, got {type(data).__name__}; a path: open(path, 'rb').read()"
        )
    fast = _FAST.get(bytes(data[:3]))
    if fast is not None:
        pixels = fast(data, mode, MAX_PIXELS)
        if pixels is not None:
            return pixels
    return _by_pillow(data, mode)


def _by_pillow(data: bytes | bytearray | memoryview, mode: str | None) -> Pixels:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("Pillow is needed to decode this image: pip install Pillow") from None
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.array(image if mode in (None, image.mode) else image.convert(mode))
    except (*_PILLOW_ERRORS, Image.DecompressionBombError) as error:
        raise ImageError(f"cannot decode an image of {len(data):,} bytes: {_reason(error)}") from error
    except (ValueError, KeyError) as error:
        raise ImageError(f"cannot decode an image of {len(data):,} bytes into the mode {mode!r}: {error}") from error


def _reason(error: Exception) -> str:
    text = str(error)
    return "Pillow does not know its format" if text.startswith("cannot identify image file") else text
