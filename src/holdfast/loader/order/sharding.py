"""Which part of the order a rank and a worker take.

A step is the next `world * batch` places of the sequence. A rank takes those that the number of ranks divides with a
rest of its own number: put together again, one of every rank in turn, they are the sequence. Where the number of ranks
divides the number of lanes these are whole lanes, so no two ranks read the same block. Workers inside a rank take its
steps in turn, the first of them the first step that is read: so a loader that asks its workers in turn has the order,
also after a resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

from ...formats.columns import Ints
from .blocks import Blocks
from .shuffle import SamplePositions, join_places


class Order(Protocol):
    """The order of all samples of a dataset: what steps are cut from, and what a fetcher reads ahead by."""

    @property
    def blocks(self) -> Blocks: ...

    @property
    def wanted(self) -> Ints:
        """How many samples of every block are in the order."""

    @property
    def samples(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """How much memory it uses now."""

    def take(self, first: int, stop: int, rank: int = 0, world: int = 1) -> SamplePositions: ...

    def windows(self, first: int, stop: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Ints]]: ...


Remainder = Literal["keep", "pad", "drop"]
_AT_ONCE = 1 << 14  # samples that are looked up together: each lookup of a lane has a price


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
                raise ValueError(f"expected a {name} from 0 to below their number, got {name} {one} of {of}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How a sequence is cut into steps.

    batch:     samples a rank has in a step
    grain:     what a rank's part of the end is a multiple of: by default a batch, 1 where samples are given singly
    remainder: the last step, when there are not enough samples for it: "pad" fills it with samples from the beginning,
               "drop" leaves it out, "keep" leaves it short: some ranks may then find no sample in it
    first:     where in the sequence the first step begins
    most:      samples of the sequence behind which it ends; None: with the last
    """

    batch: int
    remainder: Remainder = "keep"
    first: int = 0
    most: int | None = None
    grain: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"expected a batch of at least one sample, got {self.batch!r}")
        if self.remainder not in get_args(Remainder):
            raise ValueError(
                f"expected remainder to be one of {', '.join(get_args(Remainder))}, got {self.remainder!r}"
            )
        if self.most is not None and self.most < 0:
            raise ValueError(f"expected no negative number of samples, got {self.most}")

    def last(self, order: Order) -> int:
        """Behind the last sample."""
        return order.samples if self.most is None else min(self.most, order.samples)

    def end(self, order: Order, world: int, done: int = 0) -> int:
        """Where the last step ends when `done` samples are done: before the last sample, at it, or, padded, behind."""
        last, each, done = self.last(order), world * (self.grain or self.batch), max(done, self.first)
        over = max(0, last - done) % each
        if not over or self.remainder == "keep":
            return max(last, done)
        return last - over if self.remainder == "drop" else last - over + each

    def steps(self, order: Order, world: int, done: int = 0) -> int:
        """How many steps are left after `done` samples."""
        return -(-(self.end(order, world, done) - max(done, self.first)) // (world * self.batch))


class Step:
    """One rank's part of a step: how many samples of the sequence all ranks have had before it, and after.

    Its places are [begin, end) of `among`: they are cut out when somebody asks, which hardly anybody does.
    """

    __slots__ = ("among", "begin", "done", "end", "number", "start")

    def __init__(self, number: int, start: int, done: int, among: SamplePositions, begin: int, end: int) -> None:
        self.number, self.start, self.done = number, start, done
        self.among, self.begin, self.end = among, begin, end

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def places(self) -> SamplePositions:
        return self.among[self.begin : self.end]


class StepRange(NamedTuple):
    """Some steps of one rank and worker. All their places are in [first, stop), but for padding.

    places: those of the first steps in a row, as far as they were looked up together
    """

    first: int
    stop: int
    steps: list[Step]
    places: SamplePositions


def walk(
    order: Order, cut: BatchPlan, part: ShardSpec | None = None, done: int = 0, at_once: int = _AT_ONCE
) -> Iterator[StepRange]:
    """This part's steps from sample `done` on, about `at_once` samples at a time."""
    part = ShardSpec() if part is None else part
    each, last, end = part.world * cut.batch, cut.last(order), cut.end(order, part.world, done)
    steps, done = cut.steps(order, part.world, done), max(done, cut.first)
    run = max(1, at_once // cut.batch) * part.workers
    for first in range(0, steps, run):
        numbers = range(first + part.worker, min(steps, first + run), part.workers)
        if part.workers == 1:
            found, places = _run(order, cut, part, done, last, end, numbers)
        else:
            found = [_step(order, cut, part, number, done + number * each, last, end) for number in numbers]
            places = join_places([])
        if found:
            yield StepRange(done + numbers[0] * each, found[-1].done, found, places)


def _run(
    order: Order, cut: BatchPlan, part: ShardSpec, done: int, last: int, end: int, numbers: range
) -> tuple[list[Step], SamplePositions]:
    """Steps one behind the other: looked up in one go, but for one that must be padded."""
    each = part.world * cut.batch
    full = range(numbers.start, min(numbers.stop, (min(last, end) - done) // each))
    start = done + numbers.start * each
    places = order.take(start, start + len(full) * each, part.rank, part.world)
    found = [
        Step(number, start + at * each, start + (at + 1) * each, places, at * cut.batch, (at + 1) * cut.batch)
        for at, number in enumerate(full)
    ]
    rest = numbers[len(full) :]
    return found + [_step(order, cut, part, number, done + number * each, last, end) for number in rest], places


def _step(order: Order, cut: BatchPlan, part: ShardSpec, number: int, start: int, last: int, end: int) -> Step:
    stop = min(start + part.world * cut.batch, end)
    at = min(stop, last)
    parts = [order.take(start, at, part.rank, part.world)]
    while at < stop:
        # Place first + p of the sequence again, as place at + p: who takes it is decided by where it is now.
        more = min(stop - at, last - cut.first)
        parts.append(order.take(cut.first, cut.first + more, (part.rank - at + cut.first) % part.world, part.world))
        at += more
    places = join_places(parts)
    return Step(number, start, min(stop, last), places, 0, len(places))
