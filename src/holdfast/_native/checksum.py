"""The crc32c of two runs of bytes, from those of each: what was summed once need not be read again."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from . import codec

_POLYNOMIAL = 0x82F63B78

Table = list[list[int]]  # for each of four bytes of a checksum, what it becomes


def join(crc: int, next_crc: int, next_bytes: int) -> int:
    """The checksum of bytes with `crc` that are followed by so many with `next_crc`."""
    step = 0
    while next_bytes:
        if next_bytes & 1:
            one, two, three, four = _zeros(step)
            crc = one[crc & 255] ^ two[crc >> 8 & 255] ^ three[crc >> 16 & 255] ^ four[crc >> 24]
        next_bytes, step = next_bytes >> 1, step + 1
    return crc ^ next_crc


@cache
def _zeros(step: int) -> Table:
    """What 2^step bytes of zeros make of a checksum, which is linear in its bits."""
    if step:
        before = _zeros(step - 1)
        bits = [_through(before, _through(before, 1 << bit)) for bit in range(32)]
    else:
        bits = [_one_byte(1 << bit) for bit in range(32)]
    tables = []
    for first in range(0, 32, 8):
        table = [0] * 256
        for value in range(1, 256):
            table[value] = table[value & (value - 1)] ^ bits[first + (value & -value).bit_length() - 1]
        tables.append(table)
    return tables


def _through(tables: Table, crc: int) -> int:
    return tables[0][crc & 255] ^ tables[1][crc >> 8 & 255] ^ tables[2][crc >> 16 & 255] ^ tables[3][crc >> 24]


def _one_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


# The crc32c of a whole file from those of its parts, without reading them again.
#
# A crc behind which n zero bytes are put is a linear function of it, for each n made of those for powers of two. The
# crc of the whole is then that of each part, moved by what follows it, all of them added.

Crcs = npt.NDArray[np.uint32]


def joined_crc(crcs: npt.ArrayLike, sizes: npt.ArrayLike) -> int:
    """Of parts that follow each other, in their order."""
    moved = np.array(crcs, np.uint32)
    behind = np.asarray(sizes, np.int64)
    behind = behind.sum() - np.cumsum(behind)
    power = 0
    while (behind >> power).any():
        chosen = (behind >> power & 1).astype(bool)
        moved[chosen] = _moved(_tables(power), moved[chosen])
        power += 1
    return int(np.bitwise_xor.reduce(moved)) if len(moved) else 0


def _moved(tables: Crcs, crcs: Crcs) -> Crcs:
    bytes_of = [(crcs >> shift) & 0xFF for shift in (0, 8, 16, 24)]
    moved: Crcs = tables[0][bytes_of[0]] ^ tables[1][bytes_of[1]] ^ tables[2][bytes_of[2]] ^ tables[3][bytes_of[3]]
    return moved


@cache
def _tables(power: int) -> Crcs:
    """What 2**power zero bytes make of each byte of a crc."""
    single = (np.uint32(1) << np.arange(32, dtype=np.uint32)).astype(np.uint32)
    if power == 0:
        nothing = codec.crc32c(b"\0")
        # crc32c turns all bits at the start and at the end: what is linear is left when that of zero is taken away
        basis = np.array([codec.crc32c(b"\0", int(one)) ^ nothing for one in single], np.uint32)
    else:
        below = _tables(power - 1)
        basis = _moved(below, _moved(below, single))
    tables = np.zeros((4, 256), np.uint32)
    for place in range(4):
        for bit in range(8):
            has = (np.arange(256) >> bit & 1).astype(bool)
            tables[place][has] ^= basis[place * 8 + bit]
    return tables
