"""The crc32c of two runs of bytes, from those of each: what was summed once need not be read again."""

from __future__ import annotations

from functools import cache

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
