"""PNG of 8-bit RGB or grey, not interlaced: nearly all that are used for training."""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._native.image import compiled

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">II5B")
_CHUNK = struct.Struct(">I4s")
_CHANNELS = {("RGB", 2): 3, (None, 2): 3, ("L", 0): 1, (None, 0): 1}  # by the wanted mode and the colour type


class _Stored(NamedTuple):
    width: int
    height: int
    colour_type: int
    packed: bytes


def decode(data: Any, mode: str | None, most_pixels: int) -> npt.NDArray[Any] | None:
    """None: not a PNG for this way; it may be damaged, and Pillow says how."""
    stored = _stored(data) if compiled else None
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
        compiled.unfilter(rows, pixels.data, row_bytes, channels)
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
