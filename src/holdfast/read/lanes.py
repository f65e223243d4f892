"""One lane: blocks in a row, shuffled a window at a time.

A window is a run of whole blocks, so nothing is read for two windows, and any place of a lane can be found by putting
together the one window it is in: that is what makes a state small. A buffer that samples are drawn from would have to
be kept with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..formats.columns import Ints
from .blocks import Blocks
from .chance import key_of, shuffled


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Sample `sample[i]` of shard `shard[i]`, in the order they come."""

    shard: Ints
    sample: Ints

    def __len__(self) -> int:
        return len(self.shard)

    def __getitem__(self, which: slice) -> Samples:
        return Samples(self.shard[which], self.sample[which])

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.shard.tolist(), self.sample.tolist(), strict=True))


class Lane:
    """`most` is how much a window holds, in the measure given with every block. A window is at most one block larger.

    key: what the windows are shuffled by; None leaves them as they are.
    """

    def __init__(self, blocks: Blocks, measure: Ints, most: int, key: tuple[object, ...] | None) -> None:
        self.blocks = blocks
        self._key = key
        before = np.cumsum(measure) - measure
        fresh = np.flatnonzero(np.diff(before // most)) + 1
        self._first_block = np.concatenate([[0], fresh, [len(blocks)]]) if len(blocks) else np.zeros(1, np.int64)
        self._begins = np.concatenate([[0], np.cumsum(blocks.count)])[self._first_block]
        self._kept: tuple[int, Samples] | None = None

    def __len__(self) -> int:
        """How many samples."""
        return int(self._begins[-1])

    @property
    def windows(self) -> int:
        return len(self._begins) - 1

    def window_at(self, place: int) -> int:
        """Which window the sample at this place of the lane is in."""
        return int(np.searchsorted(self._begins, place, "right")) - 1

    def blocks_of(self, window: int) -> Blocks:
        """What must be read for a window."""
        return self.blocks.take(slice(self._first_block[window], self._first_block[window + 1]))

    def window(self, number: int) -> Samples:
        """All samples of a window, in their order. The last one asked for is kept."""
        kept = self._kept
        if kept is None or kept[0] != number:
            kept = self._kept = (number, self._make(number))
        return kept[1]

    def _make(self, number: int) -> Samples:
        blocks = self.blocks_of(number)
        ends = np.cumsum(blocks.count)
        place = np.arange(blocks.samples, dtype=np.int64)
        shard = np.repeat(blocks.shard, blocks.count)
        sample = place + np.repeat(blocks.first - (ends - blocks.count), blocks.count)
        if self._key is None:
            return Samples(shard, sample)
        order = shuffled(len(place), key_of(*self._key, number))
        return Samples(shard[order], sample[order])

    def take(self, start: int, stop: int) -> Samples:
        """Samples [start, stop) of the lane."""
        parts = []
        while start < stop:
            number = self.window_at(start)
            begin, end = int(self._begins[number]), min(stop, int(self._begins[number + 1]))
            parts.append(self.window(number)[start - begin : end - begin])
            start = end
        if len(parts) == 1:
            return parts[0]
        none = np.zeros(0, np.int64)
        return Samples(
            np.concatenate([none, *(part.shard for part in parts)]),
            np.concatenate([none, *(part.sample for part in parts)]),
        )
