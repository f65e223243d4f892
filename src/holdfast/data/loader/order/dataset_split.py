"""Which samples belong to which part of a split, by arithmetic alone; and an order of some of the samples.

The samples of each shard are cut into chunks of 4,096, which are divided among the parts in proportion: a part has the
same share of every chunk, give or take one sample, and its exact size in all. Shuffling a chunk decides which of its
samples go to which part. So a split depends on the seed, the parts and the numbers of samples of the shards, and not on
how the shards are stored or read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ...formats.columns import Ints
from .blocks import Blocks, SamplePositions
from .shuffle import SampleOrder, key_of, shuffled

Mask = npt.NDArray[np.uint8]  # a bit for every sample of a shard: whether it is selected
Masks = list[Mask | None]  # one for every shard; None: all of its samples

_CHUNK = 4096
_NAME = "holdfast split 1"  # a new way to split needs a new number here
_NO_OVERFLOW = 1 << 31  # products of two such numbers fit 64 bits


def part_sizes(samples: int, parts: Sequence[Fraction | int]) -> list[int]:
    """Returns how many samples each part has. Fractions are rounded by the largest remainder; counts are kept."""
    if all(isinstance(part, int) for part in parts):
        return [int(part) for part in parts]
    shares = [Fraction(part) for part in parts]
    rest = max(Fraction(0), 1 - sum(shares))
    exact = [share * samples / (sum(shares) + rest) for share in (*shares, rest)]
    sizes = [int(one) for one in exact]
    by_remainder = sorted(range(len(exact)), key=lambda at: (sizes[at] - exact[at], at))
    for at in by_remainder[: samples - sum(sizes)]:
        sizes[at] += 1
    return sizes[:-1]


def split_masks(counts: Sequence[int], masks: Masks, parts: Sequence[Fraction | int], which: int, seed: int) -> Masks:
    """Returns the samples of part `which` among those that `masks` select of shards with `counts` samples."""
    picked = np.array(picked_counts(counts, masks), np.int64)
    sizes = part_sizes(int(picked.sum()), parts)
    chunks = -(-picked // _CHUNK)
    shard = np.repeat(np.arange(len(picked)), chunks)
    number = np.arange(len(shard)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    size = np.minimum(_CHUNK, picked[shard] - number * _CHUNK)
    begin, count = _shares(size, sizes, which, key_of(_NAME, seed, "runs"))
    found: Masks = []
    at = 0
    for one, (samples, mask) in enumerate(zip(counts, masks, strict=True)):
        chosen = np.zeros(int(picked[one]), np.bool_)
        for chunk in range(int(chunks[one])):
            order = shuffled(int(size[at]), key_of(_NAME, seed, one, chunk))
            chosen[chunk * _CHUNK + order[begin[at] : begin[at] + count[at]]] = True
            at += 1
        if mask is not None:
            inside = np.zeros(samples, np.bool_)
            inside[np.flatnonzero(_bits(mask, samples))[chosen]] = True
            chosen = inside
        found.append(np.packbits(chosen))
    return found


def _shares(size: Ints, sizes: Sequence[int], which: int, key: int) -> tuple[Ints, Ints]:
    """Returns for every chunk where in its shuffled order a part begins, and how many of its samples the part has.

    Each part takes its share, rounded down, of what the parts before it left of the chunks so far: never less than it
    took before, nor more than is left of a chunk, and exactly its size in the end.
    """
    order = shuffled(len(size), key)
    sums: Any = np.cumsum(np.concatenate([[0], size[order]]))
    left = int(sums[-1])
    if left >= _NO_OVERFLOW:
        sums = sums.astype(object)
    begin, count = np.zeros((2, len(size)), np.int64)
    for part in sizes[: which + 1]:
        begin[order] += count[order]
        taken = sums * part // max(1, left)
        count[order] = np.diff(taken).astype(np.int64)
        sums, left = sums - taken, left - part
    return begin, count


def _bits(mask: Mask, stop: int, start: int = 0) -> npt.NDArray[np.uint8]:
    """Returns the bits of samples [start, stop) of a shard."""
    first = start // 8
    return np.unpackbits(mask[first : -(-stop // 8)])[start - first * 8 : stop - first * 8]


def picked_counts(counts: Sequence[int], masks: Masks) -> list[int]:
    """Returns how many samples of every shard are selected."""
    return [n if mask is None else int(np.unpackbits(mask).sum()) for n, mask in zip(counts, masks, strict=True)]


def picked_rows(mask: Mask, rows: Ints) -> Ints:
    """Returns the numbers, in their shard, of these of the selected samples."""
    return np.flatnonzero(np.unpackbits(mask))[rows]


class PickedOrder:
    """The order of one epoch of the samples that masks select."""

    def __init__(self, blocks: Blocks, masks: Masks, **options: Any) -> None:
        picked = _picked_in(blocks, masks)
        each, rest = np.divmod(blocks.size_bytes, np.maximum(blocks.count, 1))
        size_bytes = each * picked + rest * picked // np.maximum(blocks.count, 1)
        # An order of blocks that have only these samples; `first` is a block's number among `blocks`.
        self._order = SampleOrder(Blocks(blocks.shard, np.arange(len(blocks)), picked, size_bytes), **options)
        self._masks = masks
        self.blocks = blocks.take(self._order.blocks.first)
        self.block_samples = self._order.blocks.count
        self.samples = self._order.samples
        self.seed, self.lanes, self.window = self._order.seed, self._order.lanes, self._order.window

    @property
    def nbytes(self) -> int:
        return self._order.nbytes

    def windows(self, first: int, stop: int, rank: int = 0, world: int = 1) -> Iterator[tuple[tuple[int, int], Ints]]:
        return self._order.windows(first, stop, rank, world)

    def take(self, first: int, stop: int, rank: int = 0, world: int = 1) -> SamplePositions:
        """As SampleOrder.take, with rows of the complete blocks."""
        positions = self._order.take(first, stop, rank, world)
        row = positions.row.copy()
        by_block = np.argsort(positions.block, kind="stable")
        blocks, begins = np.unique(positions.block[by_block], return_index=True)
        ends = [*begins[1:].tolist(), len(by_block)]
        for block, begin, end in zip(blocks.tolist(), begins.tolist(), ends, strict=False):
            at = by_block[begin:end]
            mask = self._masks[self.blocks.shard[block]]
            if mask is not None:
                start, count = int(self.blocks.first[block]), int(self.blocks.count[block])
                row[at] = np.flatnonzero(_bits(mask, start + count, start))[row[at]]
        return SamplePositions(positions.block, row)


def _picked_in(blocks: Blocks, masks: Masks) -> Ints:
    """Returns how many samples of every block are selected."""
    picked = blocks.count.copy()
    for shard in np.unique(blocks.shard).tolist():
        mask = masks[shard]
        if mask is not None:
            at = np.flatnonzero(blocks.shard == shard)
            before = np.concatenate([[0], np.cumsum(np.unpackbits(mask), dtype=np.int64)])
            picked[at] = before[blocks.first[at] + blocks.count[at]] - before[blocks.first[at]]
    return picked
