"""Blocks: runs of samples of one shard that are read in one go; and positions of samples in them.

A block is so large that reading it costs more than finding it, and so small that many of them fit into a window.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...formats.columns import Ints

BLOCK_BYTES = 3 << 19  # the target: evenly sized data give 1.0 to 2.4 MB


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

    def samples_at(self, positions: SamplePositions) -> tuple[Ints, Ints]:
        """Returns the shards of these positions, and the samples' numbers in them."""
        return self.shard[positions.block], self.first[positions.block] + positions.row


class SamplePositions:
    """Row `row[i]` of block `block[i]`, in order. Made for every batch, so it is a plain class."""

    __slots__ = ("block", "row")

    def __init__(self, block: Ints, row: Ints) -> None:
        self.block, self.row = block, row

    def __len__(self) -> int:
        return len(self.block)

    def __getitem__(self, which: slice | Ints) -> SamplePositions:
        return SamplePositions(self.block[which], self.row[which])


def join_positions(parts: list[SamplePositions]) -> SamplePositions:
    if len(parts) == 1:
        return parts[0]
    none = np.zeros(0, np.int64)
    return SamplePositions(
        np.concatenate([none, *(part.block for part in parts)]), np.concatenate([none, *(part.row for part in parts)])
    )


def cut_shard(
    shard: int,
    samples: int,
    bytes_of: Callable[[int, int], int],
    *,
    one_block: bool = False,
    block_bytes: int = BLOCK_BYTES,
) -> Blocks:
    """Cuts a shard into blocks of about equal size. `bytes_of(start, stop)` is how long a run of its samples is.

    one_block: do not cut it, as a compressed file can only be read from its beginning
    """
    if samples < 0 or block_bytes < 1:
        raise ValueError(f"expected no negative count and at least one byte, got {samples} and {block_bytes}")
    total = bytes_of(0, samples) if samples else 0
    pieces = 1 if one_block else max(1, round(total / block_bytes))
    if pieces == 1 and samples:
        return Blocks(*(np.array([number], np.int64) for number in (shard, 0, samples, total)))
    targets = (total * piece // pieces for piece in range(1, pieces))
    cuts = {bisect_left(range(samples), target, key=lambda i: bytes_of(0, i)) for target in targets}
    bounds = sorted({0, *cuts, samples})
    sizes = [bytes_of(start, stop) for start, stop in pairwise(bounds)]
    first = np.array(bounds[:-1], np.int64)
    return Blocks(np.full(len(first), shard, np.int64), first, np.diff(bounds), np.array(sizes, np.int64))


def join_blocks(parts: Iterable[Blocks]) -> Blocks:
    """Concatenates blocks, in this order."""
    listed = list(parts)
    if not listed:
        return Blocks(*(np.zeros(0, np.int64) for _ in range(4)))
    return Blocks(
        np.concatenate([part.shard for part in listed]),
        np.concatenate([part.first for part in listed]),
        np.concatenate([part.count for part in listed]),
        np.concatenate([part.size_bytes for part in listed]),
    )
