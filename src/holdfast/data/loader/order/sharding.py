"""Which samples of the order a rank and a worker read.

A step is the next `world * batch` samples of the sequence. A rank reads every `world`-th of them: interleaved, the
ranks' samples are the sequence again. Where the number of ranks divides the number of lanes, these are complete lanes,
so no two ranks read the same block. Workers inside a rank take its steps in turn, the first worker the first step that
is read: so a loader that asks its workers in turn gets the order, also after a resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

from ...formats.columns import Ints
from .blocks import Blocks, SamplePositions, join_positions


class Order(Protocol):
    """The order of all samples of an epoch: steps are cut from it, and it says which blocks are needed next."""

    @property
    def blocks(self) -> Blocks: ...

    @property
    def block_samples(self) -> Ints:
        """How many samples of every block are in the order."""

    @property
    def samples(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """How much memory the order uses now."""

    def take(self, first: int, stop: int, rank: int = 0, world: int = 1) -> SamplePositions:
        """Returns the positions of samples [first, stop) that are rank `rank`'s."""

    def windows(self, first: int, stop: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Ints]]:
        """Yields the shuffle windows of these samples: a key for each, and its blocks."""


Remainder = Literal["keep", "pad", "drop"]
_RANGE_SAMPLES = 1 << 14  # samples that are looked up together: each lookup in a lane has a cost


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """Rank `rank` of `world`, and worker `worker` of `workers` inside it."""

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        for name, one, of in (("rank", self.rank, self.world), ("worker", self.worker, self.workers)):
            if not 0 <= one < of:
                raise ValueError(f"{name} {one} is out of range for {of} {name}s")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How a sequence is cut into steps.

    batch:          samples a rank has in a step
    remainder:      the last step, if it has too few samples: "pad" fills it with samples from the beginning, "drop"
                    skips it, "keep" leaves it short: some ranks may have no sample in it
    first, stop:    the samples of the sequence that are read; stop None: to the end
    remainder_unit: what a rank's part of the end is a multiple of: by default a batch; 1 for single samples
    """

    batch: int
    remainder: Remainder = "keep"
    first: int = 0
    stop: int | None = None
    remainder_unit: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"batch size must be a positive integer, got {self.batch!r}")
        if self.remainder not in get_args(Remainder):
            raise ValueError(
                f"expected remainder to be one of {', '.join(get_args(Remainder))}, got {self.remainder!r}"
            )
        if self.stop is not None and self.stop < 0:
            raise ValueError(f"expected no negative number of samples, got {self.stop}")

    def last(self, order: Order) -> int:
        """Returns where the samples that are read end."""
        return order.samples if self.stop is None else min(self.stop, order.samples)

    def end(self, order: Order, world: int, done: int = 0) -> int:
        """Returns where the last step ends after `done` samples: before `last`, at it or, with padding, after it."""
        last, each, done = self.last(order), world * (self.remainder_unit or self.batch), max(done, self.first)
        over = max(0, last - done) % each
        if not over or self.remainder == "keep":
            return max(last, done)
        return last - over if self.remainder == "drop" else last - over + each

    def steps(self, order: Order, world: int, done: int = 0) -> int:
        """Returns how many steps are left after `done` samples."""
        return -(-(self.end(order, world, done) - max(done, self.first)) // (world * self.batch))


class Step:
    """One rank's part of a step. `start`, `done`: how many samples of the sequence all ranks have had before and after.

    Its positions are [begin, end) of `all_positions`, and are sliced out only when they are needed, which is rare.
    """

    __slots__ = ("_all_positions", "begin", "done", "end", "start")

    def __init__(self, start: int, done: int, all_positions: SamplePositions, begin: int, end: int) -> None:
        self.start, self.done = start, done
        self._all_positions, self.begin, self.end = all_positions, begin, end

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def positions(self) -> SamplePositions:
        return self._all_positions[self.begin : self.end]


class StepRange(NamedTuple):
    """Some steps of one rank and worker. All their samples are in [first, stop), except for padding.

    positions: of the first steps in a row, as far as they were looked up together
    """

    first: int
    stop: int
    steps: list[Step]
    positions: SamplePositions


def plan_steps(
    order: Order, plan: BatchPlan, shard: ShardSpec | None = None, done: int = 0, range_samples: int = _RANGE_SAMPLES
) -> Iterator[StepRange]:
    """Yields the steps of a rank and worker from sample `done` on, about `range_samples` samples at a time."""
    shard = ShardSpec() if shard is None else shard
    each, last, end = shard.world * plan.batch, plan.last(order), plan.end(order, shard.world, done)
    steps, done = plan.steps(order, shard.world, done), max(done, plan.first)
    range_steps = max(1, range_samples // plan.batch) * shard.workers
    for first in range(0, steps, range_steps):
        numbers = range(first + shard.worker, min(steps, first + range_steps), shard.workers)
        if shard.workers == 1:
            found, positions = _full_steps(order, plan, shard, done, last, end, numbers)
        else:
            found = [_step(order, plan, shard, done + number * each, last, end) for number in numbers]
            positions = join_positions([])
        if found:
            yield StepRange(done + numbers[0] * each, found[-1].done, found, positions)


def _full_steps(
    order: Order, plan: BatchPlan, shard: ShardSpec, done: int, last: int, end: int, numbers: range
) -> tuple[list[Step], SamplePositions]:
    """Looks up consecutive steps in one go, except for those at the end that may be short or padded."""
    each = shard.world * plan.batch
    full = range(numbers.start, min(numbers.stop, (min(last, end) - done) // each))
    start = done + numbers.start * each
    positions = order.take(start, start + len(full) * each, shard.rank, shard.world)
    found = [
        Step(start + at * each, start + (at + 1) * each, positions, at * plan.batch, (at + 1) * plan.batch)
        for at in range(len(full))
    ]
    rest = numbers[len(full) :]
    return found + [_step(order, plan, shard, done + number * each, last, end) for number in rest], positions


def _step(order: Order, plan: BatchPlan, shard: ShardSpec, start: int, last: int, end: int) -> Step:
    stop = min(start + shard.world * plan.batch, end)
    at = min(stop, last)
    parts = [order.take(start, at, shard.rank, shard.world)]
    while at < stop:
        # Sample first + i again, as sample at + i: the rank that gets it is that of the latter.
        more = min(stop - at, last - plan.first)
        parts.append(
            order.take(plan.first, plan.first + more, (shard.rank - at + plan.first) % shard.world, shard.world)
        )
        at += more
    positions = join_positions(parts)
    return Step(start, min(stop, last), positions, 0, len(positions))
