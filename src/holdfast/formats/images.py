"""JPEG by simplejpeg."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._native.extensions import png
from ..errors import ImageError

_SAME = {("RGB", "YCbCr"), ("RGB", "Gray"), ("L", "Gray"), (None, "YCbCr")}  # others Pillow converts in its own way


def decode_jpeg(data: Any, mode: str | None, most_pixels: int) -> npt.NDArray[Any] | None:
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


# PNG of 8-bit RGB or grey, not interlaced: nearly all that are used for training.

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">II5B")
_CHUNK = struct.Struct(">I4s")
_CHANNELS = {("RGB", 2): 3, (None, 2): 3, ("L", 0): 1, (None, 0): 1}  # by the wanted mode and the colour type


class _Stored(NamedTuple):
    width: int
    height: int
    colour_type: int
    packed: bytes


def decode_png(data: Any, mode: str | None, most_pixels: int) -> npt.NDArray[Any] | None:
    """None: not a PNG for this way; it may be damaged, and Pillow says how."""
    stored = _stored(data) if png else None
    if stored is None or stored.width * stored.height > most_pixels:
        return None
    channels = _CHANNELS.get((mode, stored.colour_type))
    if channels is None:
        return None
    row_bytes = stored.width * channels
    rows = _unpacked(stored.packed, stored.height * (1 + row_bytes))
    if rows is None:
        return None
    pixels = np.empty((stored.height, stored.width, channels)[: 2 if channels == 1 else 3], np.uint8)
    try:
        png.unfilter(rows, pixels.data, row_bytes, channels)
    except ValueError:
        return None
    return pixels


def _stored(data: Any) -> _Stored | None:
    """What it says of itself; None where something of it is unusual, damaged or missing."""
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
            return _Stored(width, height, colour_type, b"".join(pieces))
        elif pieces or name == b"acTL" or not _is_whole(data, at, size):
            return None  # something behind the pixels, or more than one picture: Pillow knows what they mean
        at += 12 + size
    return None


def _is_whole(data: Any, at: int, size: int) -> bool:
    crc = zlib.crc32(data[at + 4 : at + 8 + size])
    return bool(data[at + 8 + size : at + 12 + size] == crc.to_bytes(4, "big"))


def _unpacked(packed: bytes, wanted: int) -> bytes | None:
    """At most so many bytes, whatever was packed; None where it is not exactly them, whole."""
    inflate = zlib.decompressobj()
    try:
        rows = inflate.decompress(packed, wanted)
        rest = inflate.decompress(inflate.unconsumed_tail, 1)
    except zlib.error:
        return None
    return rows if len(rows) == wanted and not rest and inflate.eof else None


# A picture's bytes as an array.

Pixels = npt.NDArray[Any]

MOST_PIXELS = (1 << 30) // 4 // 3  # above it Pillow warns, and refuses what is twice as large
_DAMAGED = (OSError, SyntaxError, RuntimeError, EOFError, IndexError, struct.error)  # as Pillow's readers say it
_QUICK = {b"\xff\xd8\xff": decode_jpeg, b"\x89PN": decode_png}


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


# Encoded pictures as arrays: Pillow's pixels, quicker where the file is of a common kind.
#
# decode.py   which way a picture goes; Pillow for all that has no quicker one
# jpeg.py     JPEG by simplejpeg, where it is installed: straight into the array, without Pillow's two copies
# png.py      PNG by zlib and the compiled unfilter, which does a pixel at a time where Pillow does a byte
