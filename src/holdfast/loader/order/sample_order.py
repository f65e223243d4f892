"""The global order of an epoch: one sequence of all samples.

All blocks are put in a row, shuffled by seed and epoch. The row is cut into lanes of equal length, which are streams
that the sequence interleaves: each lane is shuffled a window at a time, and the sequence takes one sample of every lane
in turn. What is left over at the end of the row, less than one sample a lane, comes last.

So the order depends on the data, the seed and the epoch, and on nothing that a launcher, a batch size or a clock
decides: batches, ranks and workers only take parts of it (sharding.py). The number of lanes is a power of two that
depends on the data: where the number of ranks divides it, ranks read disjoint blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np

from ...formats.columns import Ints
from .blocks import Blocks, SamplePositions
from .shuffle import Lane, Pieces, key_of, shuffled

WINDOW_BYTES = 256_000_000
_MAX_LANES = 64
_FIRST_BYTES = 16 << 20  # the first windows of all lanes hold at least so much: reading it takes no noticeable time
_FIRST_SAMPLES = 1 << 14
_FIRST_SHARE = 64  # or this part of full windows
_NAME = "holdfast order 1"  # a new order needs a new number here: a state of the old order must be an error


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
            raise ValueError(f"expected an epoch from 0 up, got {epoch}")
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
            if self._key is None:  # a window for every block: what is not shuffled need not be cached together
                self._lanes[number] = Lane(pieces, 1, 1, None)
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
        if self._counts_samples:
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
                index, found = index[own], found.at(own)
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
                yield (number, window), lane.blocks_of(window)

    def _indices(self, number: int, start: int, end: int) -> Ints:
        """Returns where in the sequence samples [start, end) of a lane are."""
        within = np.arange(start, end, dtype=np.int64)
        return within + self.per_lane * self.lanes if number == self.lanes else within * self.lanes + number
