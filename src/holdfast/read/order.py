"""The global order: which samples a global step is made of.

All blocks are put in a row, shuffled by seed and epoch. The row is cut into lanes of the same length; a window shuffle
runs inside each lane; every step takes the same number of samples from every lane. What is left over at the end of the
row, less than a batch, is the last step.

So the order depends on the data, the seed, the epoch and the global batch size, and on nothing that a launcher or a
clock decides: ranks and workers only take parts of it (shards.py).
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from .blocks import Blocks, span
from .chance import key_of, shuffled
from .lanes import Lane, Samples

Even = Literal["pad", "drop", "none"]
WINDOW_BYTES = 256_000_000
_MOST_LANES = 64
_NAME = "holdfast order 1"  # another number here is another order: states of the old one must be refused


def default_lanes(batch: int) -> int:
    """Up to 64, dividing the batch, and itself divided by as many numbers of ranks as can be: 64 of 256, 48 of 192."""
    divisors = [n for n in range(1, min(batch, _MOST_LANES) + 1) if batch % n == 0]
    return max(divisors, key=lambda n: (sum(n % world == 0 for world in range(1, n + 1)), n))


class Order:
    """One epoch. Nothing is made before it is asked for; a window of every lane in use is kept.

    batch:           samples a global step has, over all ranks
    seed:            None leaves everything in the order of the files
    window_bytes:    how much all windows together hold, about; or `window_samples`
    even:            the last step, when a batch does not divide the samples: "pad" fills it with samples from the
                     epoch's beginning, "drop" leaves it out, "none" leaves it short
    """

    def __init__(
        self,
        blocks: Blocks,
        *,
        batch: int,
        seed: int | None = None,
        epoch: int = 0,
        lanes: int | None = None,
        window_bytes: int = WINDOW_BYTES,
        window_samples: int | None = None,
        even: Even = "none",
    ) -> None:
        self.batch, self.seed, self.epoch, self.even = batch, seed, epoch, even
        if batch < 1:
            raise ValueError(f"wanted a global batch of at least one sample, got {batch}")
        self.lanes = 1 if seed is None else default_lanes(batch) if lanes is None else lanes
        self._check(window_bytes if window_samples is None else window_samples)
        # A row in order has no lanes: what is read first is what comes first.
        self._key = None if seed is None else (_NAME, seed, epoch)
        blocks = blocks.take(np.flatnonzero(blocks.count))
        self._row = blocks.take(shuffled(len(blocks), key_of(*self._key, "blocks"))) if self._key else blocks
        self._ends = np.cumsum(self._row.count)
        self._by_samples = window_samples is not None
        self._window = max(1, (window_bytes if window_samples is None else window_samples) // self.lanes)
        self._made: dict[int, Lane] = {}
        self.samples = blocks.samples
        self.full_steps = self.samples // batch
        self.left_over = self.samples % batch
        self.steps = self.full_steps + (self.left_over > 0 and even != "drop")

    def _check(self, window: int) -> None:
        if self.epoch < 0:
            raise ValueError(f"wanted an epoch from 0 up, got {self.epoch}")
        if self.lanes < 1 or self.batch % self.lanes:
            raise ValueError(f"wanted a number of lanes that divides the batch of {self.batch}, got {self.lanes}")
        if window < 1:
            raise ValueError(f"wanted a window of at least 1, got {window}")
        if self.even not in get_args(Even):
            raise ValueError(f"wanted even to be one of {get_args(Even)}, got {self.even!r}")

    @property
    def window(self) -> str:
        """How much all windows together hold."""
        return f"{self._window * self.lanes} {'samples' if self._by_samples else 'bytes'}"

    @property
    def per_lane(self) -> int:
        """Samples a step takes from every lane."""
        return self.batch // self.lanes

    @property
    def padding(self) -> int:
        """Samples at the end of the last step that the epoch has had before."""
        return self.batch - self.left_over if self.left_over and self.even == "pad" else 0

    def size(self, step: int) -> int:
        """How many samples a step has: the batch, but for a last one left short."""
        self._check_steps(step, step + 1)
        return self.left_over if step == self.full_steps and self.even == "none" else self.batch

    def lane(self, number: int) -> Lane:
        """Lane `number`; the one after the last is what is left over."""
        if number not in self._made:
            length = self.full_steps * self.per_lane
            start = number * length
            stop = start + (length if number < self.lanes else self.left_over)
            part = span(self._row, self._ends, start, stop)
            measure = part.count if self._by_samples else part.size_bytes
            self._made[number] = Lane(part, measure, self._window, (*self._key, number) if self._key else None)
        return self._made[number]

    def step(self, step: int) -> Samples:
        """All samples of one global step."""
        self._check_steps(step, step + 1)
        return self._last() if step == self.full_steps else self.full(step, step + 1)

    def full(self, first: int, stop: int, low: int = 0, high: int | None = None) -> Samples:
        """Full steps [first, stop), one after the other: of each its samples [low, high).

        Many at once cost hardly more than one. Only the lanes they come from are looked at.
        """
        high = self.batch if high is None else high
        if stop > self.full_steps:
            raise IndexError(f"wanted steps up to the {self.full_steps} full ones, got {stop}")
        self._check_steps(first, stop)
        steps, each = stop - first, self.per_lane
        first_lane, last_lane = low // each, -(-high // each)
        out = np.empty((2, steps, last_lane - first_lane, each), np.int64)
        for at, number in enumerate(range(first_lane, last_lane)):
            part = self.lane(number).take(first * each, stop * each)
            out[0, :, at] = part.shard.reshape(steps, each)
            out[1, :, at] = part.sample.reshape(steps, each)
        skip = low - first_lane * each
        shard, sample = out.reshape(2, steps, -1)[:, :, skip : skip + high - low].reshape(2, -1)
        return Samples(shard, sample)

    def _last(self) -> Samples:
        own = self.lane(self.lanes).take(0, self.left_over)
        if not self.padding:
            return own
        again = self.full(0, 1) if self.full_steps else own
        number = np.arange(self.padding) % len(again)
        return Samples(
            np.concatenate([own.shard, again.shard[number]]), np.concatenate([own.sample, again.sample[number]])
        )

    def _check_steps(self, first: int, stop: int) -> None:
        if not 0 <= first <= stop <= self.steps:
            raise IndexError(f"wanted steps from 0 to {self.steps}, got {first} to {stop}")
