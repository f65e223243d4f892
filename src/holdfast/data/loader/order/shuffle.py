"""The order of an epoch: one sequence of all samples, shuffled a window at a time.

All blocks are put in a row, shuffled by seed and epoch. The row is cut into lanes of equal length, which are streams
that the sequence interleaves: each lane is shuffled a window at a time, and the sequence takes one sample of every lane
in turn. What is left over at the end of the row, less than one sample a lane, comes last.

So the order depends on the data, the seed and the epoch, and on nothing that a launcher, a batch size or a clock
decides: batches, ranks and workers only take parts of it (sharding.py). The number of lanes is a power of two that
depends on the data: where the number of ranks divides it, ranks read disjoint blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import numpy as np

from ...formats.columns import Ints
from .blocks import BLOCK_BYTES, Blocks, SamplePositions, join_positions

WINDOW_BYTES = 256_000_000
_MAX_LANES = 64
_FIRST_BYTES = 16 << 20  # the first windows of all lanes hold at least so much: reading it takes no noticeable time
_FIRST_SAMPLES = 1 << 14
_FIRST_SHARE = 64  # or this part of full windows
_NAME = "holdfast order 1"  # a new order needs a new number here: a state of the old order must be an error


# ---- the permutation
#
# It is the same on every machine, under every version of numpy, for ever. numpy promises that for its bit generators
# but not for `shuffle`, so it is written out here:
#
#     key     the first 8 bytes, little endian, of BLAKE2b-64 of the parts, joined by "|", in UTF-8
#     draw i  SplitMix64's output function of key + (i + 1) * 0x9E3779B97F4A7C15, modulo 2^64
#     order   0 … n-1 sorted by draw; the lowest bits of a draw, as many as n - 1 has, are replaced by i itself
#
# With i inside no two draws are equal, so every sorting algorithm gives the same order.

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def key_of(*parts: object) -> int:
    """Hashes the parts, as they are written, to a number."""
    text = "|".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def shuffled(n: int, key: int) -> Ints:
    """Returns 0 … n-1 in an order that `key` alone decides."""
    if n < 2:
        return np.arange(n, dtype=np.int64)
    # In place: a window may have millions of samples, and every further array takes eight bytes for each.
    draws = np.arange(1, n + 1, dtype=np.uint64)
    draws *= _STEP
    draws += np.uint64(key)
    _mix(draws)
    low = np.uint64((1 << (n - 1).bit_length()) - 1)
    draws &= ~low
    draws |= np.arange(n, dtype=np.uint64)
    draws.sort()
    draws &= low
    return draws.view(np.int64)


def _mix(x: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> None:
    x ^= x >> np.uint64(30)
    x *= _MIX_1
    x ^= x >> np.uint64(27)
    x *= _MIX_2
    x ^= x >> np.uint64(31)


# ---- the windows of one lane
#
# A window is a run of complete blocks, so no block is read for two windows, and any position of a lane can be found by
# building the one window it is in. That is what makes a checkpoint small: a shuffle buffer that samples are drawn from
# would have to be saved with it.
#
# The first windows are small and double in size, so that the first batch does not wait for a full window. They begin a
# little larger in every lane, so that later no two lanes need their next window at once.

_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Rows `first[i]` to `first[i] + count[i]` of block `block[i]`; `size[i]` is in the unit that windows have."""

    block: Ints
    first: Ints
    count: Ints
    size: Ints


class Lane:
    """One of the streams that an epoch interleaves: blocks in a row, shuffled a window at a time.

    window_size, first_size: of a full window and of the first one; a window is at most one block larger
    key: seeds the windows' permutations; None leaves them in order
    """

    def __init__(self, pieces: Pieces, window_size: int, first_size: int, key: tuple[object, ...] | None) -> None:
        self._pieces = pieces
        self._key = key
        before = np.cumsum(pieces.size) - pieces.size
        new = np.flatnonzero(np.diff(_window_of(before, window_size, first_size))) + 1
        n = len(pieces.block)
        self._first_piece = np.concatenate([[0], new, [n]]) if n else np.zeros(1, np.int64)
        self._begins = np.concatenate([[0], np.cumsum(pieces.count)])[self._first_piece]
        self._last: tuple[int, SamplePositions] | None = None  # the last window asked for

    def __len__(self) -> int:
        """Returns the number of samples."""
        return int(self._begins[-1])

    @property
    def windows(self) -> int:
        return len(self._begins) - 1

    def window_at(self, index: int) -> int:
        """Returns the window that sample `index` of the lane is in."""
        return int(np.searchsorted(self._begins, index, "right")) - 1

    def blocks_of(self, window: int) -> Ints:
        """Returns the blocks that a window needs."""
        return self._pieces.block[self._first_piece[window] : self._first_piece[window + 1]]

    @property
    def nbytes(self) -> int:
        """The memory of the last window."""
        last = self._last
        return 0 if last is None else last[1].block.nbytes + last[1].row.nbytes

    def window(self, number: int) -> SamplePositions:
        """Returns all positions of a window, shuffled."""
        last = self._last
        if last is None or last[0] != number:
            self._last = None  # released before the next one is built: windows may have millions of positions
            last = self._last = (number, self._build(number))
        return last[1]

    def _build(self, number: int) -> SamplePositions:
        which = slice(self._first_piece[number], self._first_piece[number + 1])
        block, first, count = self._pieces.block[which], self._pieces.first[which], self._pieces.count[which]
        n = int(count.sum())
        # 32 bits where they suffice: all windows in use are in memory, and have many small samples.
        kind = np.int32 if max(n, int((first + count).max()), int(block.max())) <= _MAX_INT32 else np.int64
        row = np.repeat((first - (np.cumsum(count) - count)).astype(kind), count)
        row += np.arange(n, dtype=kind)
        blocks = np.repeat(block.astype(kind), count)
        if self._key is None:
            return SamplePositions(blocks, row)
        order = shuffled(n, key_of(*self._key, number))
        row = row[order]
        return SamplePositions(blocks[order], row)

    def take(self, start: int, stop: int) -> SamplePositions:
        """Returns positions [start, stop) of the lane."""
        parts = []
        while start < stop:
            number = self.window_at(start)
            begin, end = int(self._begins[number]), min(stop, int(self._begins[number + 1]))
            parts.append(self.window(number)[start - begin : end - begin])
            start = end
        return join_positions(parts)


def _window_of(before: Ints, window_size: int, first_size: int) -> Ints:
    """Returns the window of each piece by the size of those before it: the first has `first_size`, the next ones double
    up to `window_size`."""
    sizes = []
    while first_size < window_size:
        sizes.append(first_size)
        first_size *= 2
    ends = np.cumsum(np.array(sizes, np.int64)) if sizes else np.zeros(0, np.int64)
    grown = int(ends[-1]) if sizes else 0
    return np.where(
        before < grown,
        np.searchsorted(ends, before, "right"),
        len(sizes) + np.maximum(before - grown, 0) // window_size,
    )


# ---- the sequence that interleaves the lanes


def default_lanes(blocks: int) -> int:
    """Returns a power of two up to 64 that leaves every lane at least eight blocks.

    Many lanes mix samples from all over the data, also where the files are sorted by class. But each lane costs a block
    of memory, and of time before the first batch; and a block that is cut between two lanes is read for each of them.
    """
    return max(1, min(_MAX_LANES, 1 << max(blocks // 8, 1).bit_length() - 1))


class SampleOrder:
    """The order of one epoch. Windows are built when they are needed; one is kept for every lane in use.

    seed:         None leaves everything in the order of the files
    window_bytes: about how much the windows of all lanes together hold; or `window_samples`
    """

    def __init__(
        self,
        blocks: Blocks,
        *,
        seed: int | None = None,
        epoch: int = 0,
        lanes: int | None = None,
        window_bytes: int = WINDOW_BYTES,
        window_samples: int | None = None,
    ) -> None:
        window = window_bytes if window_samples is None else window_samples
        blocks = blocks.take(np.flatnonzero(blocks.count))
        # Without shuffling there is one lane: the files are read one after the other.
        self.lanes = 1 if seed is None else default_lanes(len(blocks)) if lanes is None else lanes
        if epoch < 0:
            raise ValueError(f"epoch must be a non-negative integer, got {epoch}")
        if self.lanes < 1:
            raise ValueError(f"expected at least one lane, got {lanes}")
        if window < 1:
            raise ValueError(f"expected a window of at least 1, got {window}")
        self.seed, self.epoch = seed, epoch
        self._key = None if seed is None else (_NAME, seed, epoch)
        self.blocks = blocks.take(shuffled(len(blocks), key_of(*self._key, "blocks"))) if self._key else blocks
        self._ends = np.cumsum(self.blocks.count)
        self._counts_samples = window_samples is not None
        self._lane_window = max(1, window // self.lanes)
        self._lanes: dict[int, Lane] = {}
        self.samples = blocks.samples
        self.per_lane = self.samples // self.lanes

    @property
    def window(self) -> str:
        """How much the windows of all lanes together hold, as a state has it."""
        return f"{self._lane_window * self.lanes} {'samples' if self._counts_samples else 'bytes'}"

    @property
    def block_samples(self) -> Ints:
        return self.blocks.count

    @property
    def nbytes(self) -> int:
        """The memory of the windows in use and of building the next one: of the order, not of the samples."""
        each = [lane.nbytes for lane in list(self._lanes.values())]
        return sum(each) + 2 * max(each, default=0)

    def lane(self, number: int) -> Lane:
        """Returns lane `number`; the one after the last has what is left over."""
        if number not in self._lanes:
            start = number * self.per_lane
            stop = self.samples if number == self.lanes else start + self.per_lane
            pieces = self._cut(start, stop)
            if self._key is None:  # a block, or several small ones that are read together: nothing is shuffled
                self._lanes[number] = Lane(pieces, BLOCK_BYTES, BLOCK_BYTES, None)
            else:
                key = (*self._key, number)
                self._lanes[number] = Lane(pieces, self._lane_window, self._first_window(number), key)
        return self._lanes[number]

    def _first_window(self, number: int) -> int:
        """Returns the size of a lane's first window, up to twice as large in the last lane as in the first."""
        least = (_FIRST_SAMPLES if self._counts_samples else _FIRST_BYTES) // self.lanes
        return max(1, least, self._lane_window // _FIRST_SHARE) * (self.lanes + number) // self.lanes

    def _cut(self, start: int, stop: int) -> Pieces:
        """Cuts samples [start, stop) out of the row."""
        low = int(np.searchsorted(self._ends, start, "right"))
        high = int(np.searchsorted(self._ends, stop, "left")) + 1 if start < stop else low
        part, ends = self.blocks.take(slice(low, high)), self._ends[low:high]
        begins = ends - part.count
        first = np.maximum(start - begins, 0)
        count = np.minimum(ends, stop) - begins - first
        if self._counts_samples and self._key is not None:
            return Pieces(np.arange(low, high), first, count, count)
        # In integers, and without overflow: the windows, and with them the order, depend on the exact result.
        each, rest = np.divmod(part.size_bytes, part.count)
        return Pieces(np.arange(low, high), first, count, each * count + rest * count // part.count)

    def take(self, first: int, stop: int, rank: int = 0, world: int = 1) -> SamplePositions:
        """Returns the positions of samples [first, stop) of the sequence that are rank `rank`'s: every `world`-th one.

        Many at once cost hardly more than one. Only the lanes that they are in are read.
        """
        if not 0 <= first <= stop <= self.samples:
            raise IndexError(f"expected samples from 0 to {self.samples:,}, got {first:,} to {stop:,}")
        zero = first + (rank - first) % world  # the first sample of this rank
        if self._key is None:  # by arithmetic: a rank must not pay for the samples of all others
            index = np.arange(zero, stop, world, dtype=np.int64)
            block = np.searchsorted(self._ends, index, "right")
            return SamplePositions(block, index - (self._ends - self.blocks.count)[block])
        out = np.empty((2, max(0, -(-(stop - zero) // world))), np.int64)
        for number, start, end in self._lane_ranges(first, stop, rank, world):
            found = self.lane(number).take(start, end)
            if self.lanes % world == 0 and number < self.lanes:  # evenly spaced: a slice is faster
                at_first = (start * self.lanes + number - zero) // world
                which = slice(at_first, None, self.lanes // world)
                out[0, which][: len(found)], out[1, which][: len(found)] = found.block, found.row
                continue
            index = self._indices(number, start, end)
            if world > 1:
                own = np.flatnonzero(index % world == rank)
                index, found = index[own], found[own]
            at = (index - zero) // world
            out[0, at], out[1, at] = found.block, found.row
        return SamplePositions(out[0], out[1])

    def _lane_ranges(self, first: int, stop: int, rank: int, world: int) -> list[tuple[int, int, int]]:
        """Returns the lanes that these samples are in, and their range in each."""
        full = self.per_lane * self.lanes
        low, high = min(first, full), min(stop, full)
        step = gcd(world, self.lanes)
        found = [
            (number, max(0, -(-(low - number) // self.lanes)), max(0, -(-(high - number) // self.lanes)))
            for number in range(rank % step, self.lanes, step)
        ]
        found.append((self.lanes, max(first, full) - full, max(stop, full) - full))
        return [one for one in found if one[1] < one[2]]

    def windows(self, first: int, stop: int, rank: int = 0, world: int = 1) -> Iterator[tuple[tuple[int, int], Ints]]:
        """Yields the windows that these samples are in: a key for each, and its blocks."""
        for number, start, end in self._lane_ranges(first, stop, rank, world):
            lane = self.lane(number)
            for window in range(lane.window_at(start), lane.window_at(end - 1) + 1):
                blocks = lane.blocks_of(window)
                yield (
                    (number, window),
                    blocks if self._key is not None or world == 1 else self._own(blocks, rank, world),
                )

    def _own(self, blocks: Ints, rank: int, world: int) -> Ints:
        """Returns those of some blocks, in the order of the files, that a rank has a sample of."""
        begins = self._ends[blocks] - self.blocks.count[blocks]
        return blocks[begins + (rank - begins) % world < self._ends[blocks]]

    def _indices(self, number: int, start: int, end: int) -> Ints:
        """Returns where in the sequence samples [start, end) of a lane are."""
        within = np.arange(start, end, dtype=np.int64)
        return within + self.per_lane * self.lanes if number == self.lanes else within * self.lanes + number
