"""Which part of the order a rank and a worker take.

A step is cut into as many equal runs as there are ranks: put together again, rank after rank, they are the step. Where
the number of ranks divides the number of lanes a run is made of whole lanes, so no two ranks read the same block; where
it does not, the order is the same and some blocks are read twice. Workers inside a rank take its steps in turn, the
first of them the first step that is read: so a loader that asks its workers in turn has the order, also after a resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .lanes import Samples
from .order import Order

_AT_ONCE = 1 << 14  # samples that are looked up together: each lookup of a lane has a price


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rank `rank` of `world`, and worker `worker` of `workers` inside it."""

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        for name, one, of in (("rank", self.rank, self.world), ("worker", self.worker, self.workers)):
            if not 0 <= one < of:
                raise ValueError(f"wanted a {name} from 0 to below their number, got {name} {one} of {of}")

    def check(self, batch: int) -> None:
        """A ValueError where steps of `batch` samples cannot be cut into equal runs."""
        if batch % self.world:
            near = [n for n in (batch - batch % self.world, batch + self.world - batch % self.world) if n]
            raise ValueError(
                f"wanted a global batch that {self.world} ranks can share, got {batch}: "
                f"take {' or '.join(str(n) for n in near)}"
            )

    def bounds(self, size: int) -> tuple[int, int]:
        """This rank's run of a step of `size` samples. Only a short last step has unequal ones."""
        return size * self.rank // self.world, size * (self.rank + 1) // self.world


def walk(order: Order, part: Part | None = None, first: int = 0) -> Iterator[tuple[int, Samples]]:
    """This part's steps from global step `first` on: the number of each, and its samples.

    Every rank has the same steps; with even="none" a rank may find no sample in the last one.
    """
    part = Part() if part is None else part
    part.check(order.batch)
    low, high = part.bounds(order.batch)
    own = high - low
    run = max(1, _AT_ONCE // order.batch) * part.workers
    for start in range(first, order.full_steps, run):
        stop = min(start + run, order.full_steps)
        found = order.full(start, stop, low, high)
        for step in range(start, stop):
            if (step - first) % part.workers == part.worker:
                yield step, found[(step - start) * own : (step - start + 1) * own]
    last = order.full_steps
    if first <= last < order.steps and (last - first) % part.workers == part.worker:
        low, high = part.bounds(order.size(last))
        yield last, order.step(last)[low:high]
