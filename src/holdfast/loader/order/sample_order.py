"""The global order: one sequence of all samples, from place 0 to the last.

All blocks are put in a row, shuffled by seed and epoch. The row is cut into lanes of the same length; a window shuffle
runs inside each lane; the sequence takes one sample of every lane in turn. What is left over at the end of the row,
less than one sample a lane, comes last.

So the order depends on the data, the seed and the epoch, and on nothing that a launcher, a batch size or a clock
decides: batches, ranks and workers only take parts of it (shards.py). The number of lanes is a power of two that the
data decide: ranks that divide it read disjoint blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np

from ...formats.columns import Ints
from .blocks import Blocks
from .shuffle import Lane, Pieces, SamplePositions, key_of, shuffled

WINDOW_BYTES = 256_000_000
_MOST_LANES = 64
_FIRST_BYTES = 16 << 20  # first windows hold at least so much, all together: it is read before anybody could notice
_FIRST_SAMPLES = 1 << 14
_FIRST_PART = 64  # or so small a part of full ones
_NAME = "holdfast order 1"  # another number here is another order: states of the old one must be refused


def default_lanes(blocks: int) -> int:
    """A power of two up to 64, so that a lane has eight blocks at least.

    Many, so that neighbours come from all over the data, also where the files are sorted by class. Not more, as each
    lane costs a block of memory, and of time before the first batch; and a block that is cut between two lanes is read
    for each of them.
    """
    return max(1, min(_MOST_LANES, 1 << max(blocks // 8, 1).bit_length() - 1))


class SampleOrder:
    """One epoch. Nothing is made before it is asked for; a window of every lane in use is kept.

    seed:           None leaves everything in the order of the files
    window_bytes:   how much all windows together hold, about; or `window_samples`
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
        # A row in order has one lane: what is read first is what comes first.
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
        self._by_samples = window_samples is not None
        self._window = max(1, window // self.lanes)
        self._made: dict[int, Lane] = {}
        self.samples = blocks.samples
        self.per_lane = self.samples // self.lanes

    @property
    def window(self) -> str:
        """How much all windows together hold."""
        return f"{self._window * self.lanes} {'samples' if self._by_samples else 'bytes'}"

    @property
    def wanted(self) -> Ints:
        """How many samples of every block are in it: all."""
        return self.blocks.count

    @property
    def nbytes(self) -> int:
        """What the windows in use take, and making the next one: the order of their samples, not the samples."""
        each = [lane.nbytes for lane in list(self._made.values())]
        return sum(each) + 2 * max(each, default=0)

    def lane(self, number: int) -> Lane:
        """Lane `number`; the one after the last is what is left over."""
        if number not in self._made:
            start = number * self.per_lane
            stop = self.samples if number == self.lanes else start + self.per_lane
            pieces = self._cut(start, stop)
            if self._key is None:  # a window of every block: what is not shuffled need not be held together
                self._made[number] = Lane(pieces, 1, 1, None)
            else:
                key = (*self._key, number)
                self._made[number] = Lane(pieces, self._window, self._first_window(number), key)
        return self._made[number]

    def _first_window(self, number: int) -> int:
        """How much the first window of a lane holds: up to twice as much in the last one as in the first."""
        least = (_FIRST_SAMPLES if self._by_samples else _FIRST_BYTES) // self.lanes
        return max(1, least, self._window // _FIRST_PART) * (self.lanes + number) // self.lanes

    def _cut(self, start: int, stop: int) -> Pieces:
        """Samples [start, stop) of the row."""
        low = int(np.searchsorted(self._ends, start, "right"))
        high = int(np.searchsorted(self._ends, stop, "left")) + 1 if start < stop else low
        part, ends = self.blocks.take(slice(low, high)), self._ends[low:high]
        begins = ends - part.count
        first = np.maximum(start - begins, 0)
        count = np.minimum(ends, stop) - begins - first
        if self._by_samples:
            return Pieces(np.arange(low, high), first, count, count)
        # Whole numbers, in an order that cannot overflow: windows, and with them the order, depend on it.
        each, rest = np.divmod(part.size_bytes, part.count)
        return Pieces(np.arange(low, high), first, count, each * count + rest * count // part.count)

    def take(self, first: int, stop: int, rank: int = 0, world: int = 1) -> SamplePositions:
        """Places [first, stop) of the sequence: of these, those that `world` divides with a rest of `rank`.

        Many at once cost hardly more than one. Only the lanes they are in are looked at.
        """
        if not 0 <= first <= stop <= self.samples:
            raise IndexError(f"expected places from 0 to {self.samples:,}, got {first:,} to {stop:,}")
        zero = first + (rank - first) % world  # the first one
        out = np.empty((2, max(0, -(-(stop - zero) // world))), np.int64)
        for number, start, end in self.runs(first, stop, rank, world):
            run = self.lane(number).take(start, end)
            if self.lanes % world == 0 and number < self.lanes:  # every so-many-th
                at_first = (start * self.lanes + number - zero) // world
                which = slice(at_first, None, self.lanes // world)
                out[0, which][: len(run)], out[1, which][: len(run)] = run.block, run.row
                continue
            place = self._place(number, start, end)
            if world > 1:
                own = place % world == rank
                place, run = place[own], SamplePositions(run.block[own], run.row[own])
            at = (place - zero) // world
            out[0, at], out[1, at] = run.block, run.row
        return SamplePositions(out[0], out[1])

    def runs(self, first: int, stop: int, rank: int = 0, world: int = 1) -> list[tuple[int, int, int]]:
        """The lanes that these places are in, and from where to where in each."""
        full = self.per_lane * self.lanes
        low, high = min(first, full), min(stop, full)
        step = gcd(world, self.lanes)
        found = [
            (number, max(0, -(-(low - number) // self.lanes)), max(0, -(-(high - number) // self.lanes)))
            for number in range(rank % step, self.lanes, step)
        ]
        found.append((self.lanes, max(first, full) - full, max(stop, full) - full))
        return [run for run in found if run[1] < run[2]]

    def windows(self, first: int, stop: int, rank: int = 0, world: int = 1) -> Iterator[tuple[tuple[int, int], Ints]]:
        """The windows that these places are in: what each is known by, and its blocks."""
        for number, start, end in self.runs(first, stop, rank, world):
            lane = self.lane(number)
            for window in range(lane.window_at(start), lane.window_at(end - 1) + 1):
                yield (number, window), lane.blocks_of(window)

    def _place(self, number: int, start: int, end: int) -> Ints:
        """Where in the sequence [start, end) of a lane are."""
        within = np.arange(start, end, dtype=np.int64)
        return within + self.per_lane * self.lanes if number == self.lanes else within * self.lanes + number

    def samples_at(self, places: SamplePositions) -> tuple[Ints, Ints]:
        """Their shards, and their numbers in them."""
        return self.blocks.shard[places.block], self.blocks.first[places.block] + places.row
