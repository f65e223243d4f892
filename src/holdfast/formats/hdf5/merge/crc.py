"""The crc32c of a whole file from those of its parts, without reading them again.

A crc behind which n zero bytes are put is a linear function of it, for each n made of those for powers of two. The
crc of the whole is then that of each part, moved by what follows it, all of them added.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from ...._native import codec

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
