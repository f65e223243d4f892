"""Frameworks that shard samples among the ranks themselves: whose loader asks for data right now.

accelerate, Hugging Face datasets and webdataset let every rank, or the first one, read everything, and keep each rank's
part of it. A dataset that shards as well would lose the rest. The dataset inside does not know of its wrapper; but the
wrapper's method is on the stack, also in a forked worker, which has the stack it was forked on, and while a dataset is
pickled for a worker that is being spawned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple


class Sharder(NamedTuple):
    """`name` says which framework shards, and how; `by` is its loader or dataset."""

    name: str
    by: Any


def find_sharder() -> Sharder | None:
    """Find the framework that asks for data now, and shards what it gets among several ranks."""
    asked = {name: share for name, share in _SHARDERS.items() if name in sys.modules}
    for frame in callers() if asked else ():
        share = asked.get(module_of(frame))
        if share is not None and (found := share(frame)):
            return found
    return None


def is_asked_by(module: str) -> bool:
    """Whether a function of this module is on the stack."""
    return module in sys.modules and any(module_of(frame) == module for frame in callers())


def module_of(frame: FrameType) -> str:
    """The name of the module whose function a frame is of."""
    return str(frame.f_globals.get("__name__", ""))


def local_of(frame: FrameType, name: str) -> Any:
    """A local variable of a frame. Before Python 3.13 a frame keeps the dict of all of them once it was asked for, and
    with it every object that they had: it is emptied."""
    found = frame.f_locals
    value = found.get(name)
    if isinstance(found, dict):
        found.clear()
    return value


def callers() -> Iterator[FrameType]:
    """The frames on the stack, from that of who asks for the first one on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _accelerate(frame: FrameType) -> Sharder | None:
    """A loader that dispatches; or the dataset that keeps each rank's part, or the loader of one.

    A stateful loader is asked, and starts its workers, while accelerate's is being made: it has few attributes then.
    """
    if sys.modules["accelerate.state"].PartialState().num_processes == 1:
        return None
    asking = local_of(frame, "self")
    if type(asking).__name__ == "DataLoaderDispatcher":
        return Sharder("accelerate with dispatch_batches=True", asking)
    for keeper in (asking, getattr(asking, "dataset", None), local_of(frame, "dataset")):
        # One of datasets that is in no IterableDatasetShard has given each rank some of its files.
        if type(keeper).__name__ == "IterableDatasetShard" or type(keeper).__module__ == "datasets.iterable_dataset":
            return Sharder("accelerate with dispatch_batches=False", keeper)
    return None


def _datasets(frame: FrameType) -> Sharder | None:
    """A dataset that was given to split_dataset_by_node()."""
    asking = local_of(frame, "self")
    ranks = getattr(getattr(asking, "_distributed", None), "world_size", 1)
    return Sharder("datasets.split_dataset_by_node", asking) if ranks > 1 else None


def _webdataset(frame: FrameType) -> Sharder | None:
    """A pipeline that shards what its source gives."""
    asking = local_of(frame, "self")
    return Sharder("webdataset.split_by_node", asking) if has_stage(asking, "split_by_node") else None


def has_stage(pipeline: Any, name: str) -> bool:
    """Whether one of a webdataset pipeline's functions has this name."""
    return any(getattr(stage, "__name__", "") == name for stage in getattr(pipeline, "pipeline", ()))


_SHARDERS: dict[str, Callable[[FrameType], Sharder | None]] = {
    "accelerate.data_loader": _accelerate,
    "datasets.iterable_dataset": _datasets,
    "webdataset.pipeline": _webdataset,
}
