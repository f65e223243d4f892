"""Computes the CRC32C of file ranges, of concatenated ranges, and of JSON objects that contain their own checksum.

Appending n zero bytes to a message changes its CRC by a linear function of the CRC's bits. The function for any n is
composed from those for powers of two, so the CRC of a concatenation follows from the CRCs and sizes of its parts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from . import codec

_POLYNOMIAL = 0x82F63B78
_READ_BYTES = 1 << 20  # small enough to stay in the CPU's cache

Table = list[list[int]]  # for each of the four bytes of a CRC: byte value -> its contribution to the new CRC


def crc32c_of_file(
    fd: int, offset: int = 0, size: int | None = None, progress: Callable[[int], None] | None = None
) -> tuple[int, int]:
    """Returns the CRC32C of `size` bytes from `offset` on, and how many bytes were read: fewer if the file ends.

    size      None: up to the end of the file
    progress  called with the number of bytes after each read
    """
    size = max(0, os.fstat(fd).st_size - offset) if size is None else size
    buffer = memoryview(bytearray(min(size, _READ_BYTES)))
    crc = done = 0
    while done < size:
        n = os.preadv(fd, [buffer[: size - done]], offset + done)
        if not n:
            break
        crc, done = codec.crc32c(buffer[:n], crc), done + n
        if progress is not None:
            progress(n)
    return crc, done


def json_crc32c(content: dict[str, Any], separators: tuple[str, str] = (",", ":")) -> int:
    """Returns the CRC32C of a JSON object, serialized with sorted keys: independent of how its file is laid out."""
    return codec.crc32c(json.dumps(content, sort_keys=True, separators=separators).encode())


def combine(crc: int, next_crc: int, next_bytes: int) -> int:
    """Returns the CRC of a concatenation: a message with `crc`, then `next_bytes` bytes with `next_crc`."""
    power = 0
    while next_bytes:
        if next_bytes & 1:
            crc = _apply(_zeros_table(power), crc)
        next_bytes, power = next_bytes >> 1, power + 1
    return crc ^ next_crc


def combine_all(crcs: npt.ArrayLike, sizes: npt.ArrayLike) -> int:
    """Returns the CRC of many consecutive parts. Vectorized: a merged file may have millions of chunks."""
    shifted = np.array(crcs, np.uint32)
    following = np.asarray(sizes, np.int64)
    following = following.sum() - np.cumsum(following)
    power = 0
    while (following >> power).any():
        chosen = (following >> power & 1).astype(bool)
        some = shifted[chosen]
        table = np.array(_zeros_table(power), np.uint32)
        shifted[chosen] = (
            table[0][some & 255] ^ table[1][some >> 8 & 255] ^ table[2][some >> 16 & 255] ^ table[3][some >> 24]
        )
        power += 1
    return int(np.bitwise_xor.reduce(shifted)) if len(shifted) else 0


@cache
def _zeros_table(power: int) -> Table:
    """Returns the effect of 2**power zero bytes on a CRC, as four lookup tables."""
    if power:
        half = _zeros_table(power - 1)
        bits = [_apply(half, _apply(half, 1 << bit)) for bit in range(32)]
    else:
        bits = [_shift_byte(1 << bit) for bit in range(32)]
    tables = []
    for first in range(0, 32, 8):
        table = [0] * 256
        for value in range(1, 256):
            table[value] = table[value & (value - 1)] ^ bits[first + (value & -value).bit_length() - 1]
        tables.append(table)
    return tables


def _apply(tables: Table, crc: int) -> int:
    return tables[0][crc & 255] ^ tables[1][crc >> 8 & 255] ^ tables[2][crc >> 16 & 255] ^ tables[3][crc >> 24]


def _shift_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc
