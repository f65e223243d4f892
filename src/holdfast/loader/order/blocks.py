"""Blocks: runs of samples of one shard that are read in one go.

Large enough that reading one costs more than finding it, small enough that many of them fit a window.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...formats.columns import Ints

BLOCK_BYTES = 3 << 19  # what is aimed at: even data give 1.0 to 2.4 MB


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Block i is samples `first[i]` to `first[i] + count[i]` of shard `shard[i]`, about `size_bytes[i]` on disk.

    Columns, because there are a million of them for a few terabytes.
    """

    shard: Ints
    first: Ints
    count: Ints
    size_bytes: Ints

    def __len__(self) -> int:
        return len(self.shard)

    @property
    def samples(self) -> int:
        return int(self.count.sum())

    def take(self, which: Ints | slice) -> Blocks:
        return Blocks(self.shard[which], self.first[which], self.count[which], self.size_bytes[which])


def cut_shard(
    shard: int,
    samples: int,
    bytes_of: Callable[[int, int], int],
    *,
    whole: bool = False,
    block_bytes: int = BLOCK_BYTES,
) -> Blocks:
    """The blocks of one shard, about equal in bytes. `bytes_of(start, stop)` is how long a run of its samples is.

    `whole`: a compressed file has no middle to begin at, so it is one block.
    """
    if samples < 0 or block_bytes < 1:
        raise ValueError(f"expected no negative count and at least one byte, got {samples} and {block_bytes}")
    total = bytes_of(0, samples) if samples else 0
    pieces = 1 if whole else max(1, round(total / block_bytes))
    wanted = (total * piece // pieces for piece in range(1, pieces))
    cuts = {bisect_left(range(samples), bound, key=lambda i: bytes_of(0, i)) for bound in wanted}
    bounds = sorted({0, *cuts, samples})
    sizes = [bytes_of(start, stop) for start, stop in pairwise(bounds)]
    first = np.array(bounds[:-1], np.int64)
    return Blocks(np.full(len(first), shard, np.int64), first, np.diff(bounds), np.array(sizes, np.int64))


def join_blocks(parts: Iterable[Blocks]) -> Blocks:
    """All of them, in this order."""
    listed = list(parts)
    if not listed:
        return Blocks(*(np.zeros(0, np.int64) for _ in range(4)))
    return Blocks(
        np.concatenate([part.shard for part in listed]),
        np.concatenate([part.first for part in listed]),
        np.concatenate([part.count for part in listed]),
        np.concatenate([part.size_bytes for part in listed]),
    )
