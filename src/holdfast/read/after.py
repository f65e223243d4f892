"""Where a pass stands by the number of batches that were taken of it.

Frameworks fetch ahead, in threads and processes of their own: an iteration in there knows what it has given, not what
was trained on. Who takes the batches can count them, and that is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import StateError
from .dataset import Dataset
from .iteration import cut_of, stop_of


def state_after(
    dataset: Dataset, batches: int, *, epoch: int = 0, since: Mapping[str, Any] | None = None, at_most: bool = False
) -> dict[str, Any]:
    """The state after a rank took so many batches, from the beginning of `epoch` or from the state `since`.

    at_most: more than there are is the end, and not an error
    """
    if isinstance(batches, bool) or not isinstance(batches, int) or batches < 0:
        raise ValueError(f"expected a number of batches from 0 up, got {batches!r}")
    if not dataset._settings.batched:
        raise StateError("expected a dataset of batches, so that they can be counted: say .batch(…)")
    with dataset.iterate(epoch) as begun:
        if since is not None:
            begun.load_state_dict(since)
        state = begun.state_dict()
    stop = stop_of(dataset._settings, epoch, state["epoch"])
    left = batches
    while left > (steps := steps_left(dataset, state["epoch"], state["done"])):
        if state["epoch"] + 1 == stop or not (steps or state["done"]):
            if at_most:
                break
            raise ValueError(f"expected at most the {batches - left + steps:,} batches that are left, got {batches:,}")
        left -= steps
        state |= {"epoch": state["epoch"] + 1, "done": 0}
    return state | {"done": _done(dataset, state["epoch"], state["done"], left)}


def steps_left(dataset: Dataset, epoch: int, done: int = 0) -> int:
    """Batches that a rank still has in an epoch."""
    world = dataset._launch().world
    return cut_of(dataset._settings, world).steps(dataset._source.order(dataset._settings, epoch), world, done)


def _done(dataset: Dataset, epoch: int, done: int, steps: int) -> int:
    if not steps:
        return done
    world = dataset._launch().world
    cut = cut_of(dataset._settings, world)
    last = cut.last(dataset._source.order(dataset._settings, epoch))
    return min(last, max(done, cut.first) + steps * world * cut.batch)
