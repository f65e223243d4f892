"""A holdfast dataset as torch's: `ds.torch()`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from multiprocessing import context
from types import FrameType
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from holdfast.errors import StateError
from holdfast.read.after import state_after, steps_left
from holdfast.read.dataset import Dataset
from holdfast.read.iteration import Iteration, stop_of
from holdfast.read.settings import whole

from .place import Begin, Place
from .tensors import batch_to_torch, sample_to_torch


def as_torch(dataset: Dataset, *, epoch: int = 0) -> TorchDataset:
    """An IterableDataset of dicts. `ds.torch()` is the same."""
    return TorchDataset(dataset, epoch)


class TorchDataset(IterableDataset[Any]):
    """Dicts of tensors; strings are lists of bytes, lists of any length a `holdfast.torch.Ragged`.

    Iterate it as it is, or in a DataLoader: `batch_size=None` for a dataset that has batches, with any number of
    workers, which take the batches in turn: the same batches in the same order as without any. Functions that were
    to run in processes run in the workers themselves there.

    Every pass is of the next epoch, with its own order and random functions, also after a pass that was broken off;
    with repeat(3) it is of the next three. `set_epoch` says which epoch the next pass is of, as a DistributedSampler's
    does, and also reaches workers that stay; passes go on from there. A pass is counted when iter() is called: two
    loaders over one TorchDataset have an epoch each. Each `ds.torch()` counts for itself.
    """

    def __init__(self, dataset: Dataset, epoch: int = 0) -> None:
        whole("epoch", epoch, 0)
        self.dataset = dataset
        self._times = dataset._settings.repeat
        self._place = Place(Begin(epoch, epoch, 0))
        self._pass: _Pass | None = None
        self._own: Begin | None = None  # where this worker's next pass begins, if it was told by itself
        self._epochs = dataset._with(repeat=1)
        self._inside: Dataset | None = None

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch: from its beginning, or where a state of it that was loaded says."""
        whole("epoch", epoch, 0)
        self._place.set_epoch(epoch)
        self._pass = None

    def __len__(self) -> int:
        """Batches (or samples) of this rank, in all epochs of a pass."""
        if self._times is None:
            raise TypeError("a dataset that repeats for ever has no length")
        return len(self._epochs) * self._times

    @property
    def batched(self) -> bool:
        """Whether it gives batches, and not samples."""
        return self.dataset._settings.batched

    def __iter__(self) -> Iterator[Any]:
        # torch's fetcher, which calls this, knows whether the loader makes batches; nothing else tells.
        if self.batched and _is_torch_fetcher(caller := sys._getframe(1)) and _local(caller, "auto_collation") is True:
            raise TypeError(
                "DataLoader: expected batch_size=None for a dataset that has batches, got a loader that makes batches "
                "of them: write DataLoader(ds.torch(), batch_size=None), or leave out .batch(…)"
            )
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        epochs = self._times or 1  # a pass without an end counts as one: how far it gets differs from rank to rank
        if info is None:
            begin = self._place.begin(epochs)
        else:
            own, self._own = self._own, None
            begin = self._place.begin_in_worker(epochs, _loader_number(info), own)
        stop = stop_of(self.dataset._settings, begin.first, begin.epoch)
        self._pass = _Pass(self._readable(inside=info is not None), begin, stop, worker, workers)
        return self._pass.run()

    def _readable(self, *, inside: bool) -> Dataset:
        if not inside:
            return self._epochs
        if self._inside is None:  # one for all passes: a cache lives in it
            functions = tuple(
                replace(one, where="inline", workers=0) if one.where == "processes" else one
                for one in self._epochs._settings.functions
            )
            self._inside = self._epochs._with(functions=functions)  # a loader's workers may have no children
        return self._inside

    # ---- where it stands

    def state_dict(self) -> dict[str, Any]:
        """Where this process stands after the last batch it was given, good for any number of ranks and workers.

        When a loader's workers read, only who takes their batches knows how many were used: `state_after` tells then.
        """
        if get_worker_info() is not None:  # a stateful loader asks each of its workers
            return self._state(self._own or self._place.last) if self._pass is None else self._own_state(self._pass)
        if self._place.in_workers:
            raise StateError(
                "a loader's workers read this dataset, and fetch ahead: wanted state_after(batches), with the number "
                "of batches that were taken in this pass"
            )
        if self._pass is not None and self._pass.iteration is not None:
            return self._pass.iteration.state_dict()
        return self._state(self._place.last)

    def state_after(self, batches: int) -> dict[str, Any]:
        """The state after so many batches of this pass were taken, by whatever loader."""
        begun = self._place.last
        return state_after(self.dataset, batches, epoch=begun.first, since=self._state(begun))

    def _own_state(self, own: _Pass) -> dict[str, Any]:
        """From where this worker, among as many others, goes on with its own next batch."""
        taken, since = own.given * own.workers, self._state(own.begin)  # the others may have had one less
        return state_after(self.dataset, taken, epoch=own.begin.first, since=since, at_most=True)

    def _state(self, begin: Begin) -> dict[str, Any]:
        with self.dataset.iterate(begin.epoch) as begun:
            return {**begun.state_dict(), "done": begin.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on from there; the one after it is of the next epoch."""
        with self.dataset.iterate(0) as begun:
            begun.load_state_dict(state)  # or says why not
        begin = Begin(self._first_of_pass(state["epoch"]), state["epoch"], state["done"])
        if get_worker_info() is None:
            self._place.load(begin)
            self._pass = None
        else:
            self._own = begin

    def _first_of_pass(self, epoch: int) -> int:
        """The first epoch of the pass that `epoch` is in, counting passes of repeat(n) from those that were begun."""
        stop = stop_of(self.dataset._settings, self._place.last.first, epoch)
        return epoch if stop is None or self._times is None or stop < self._times else stop - self._times

    def __getstate__(self) -> dict[str, Any]:
        """A worker that is started anew may not know its rank: torch.distributed is not initialized in it."""
        state = self.__dict__ | {"_pass": None, "_inside": None}
        if context.get_spawning_popen() is not None and self.dataset._settings.shard == "auto":
            rank = self.dataset._launch()
            for name in ("dataset", "_epochs"):
                state[name] = state[name].shard((rank.rank, rank.world))
        return state


def _loader_number(info: Any) -> int:
    """What all workers of one loader iterator have in common, and no other's have: the pipe of their results.

    Its number stands in a local variable of torch's loop. Where that is not on the stack, in a thread, torch's seed is
    taken: loaders with generators of the same seed have the same.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_worker_loop":
        frame = frame.f_back
    results: Any = None if frame is None else _local(frame, "data_queue")
    try:
        return os.fstat(results._writer.fileno()).st_ino
    except (AttributeError, OSError):
        return int(info.seed) - int(info.id)


def _is_torch_fetcher(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "torch.utils.data._utils.fetch"


def _local(frame: FrameType, name: str) -> Any:
    """A local variable of a frame. Before Python 3.13 a frame keeps the dict of all of them once it was asked for, and
    with it every object that they had: it is emptied."""
    found = frame.f_locals
    value = found.get(name)
    if isinstance(found, dict):
        found.clear()
    return value


class _Pass:
    """Epochs from `begin` to before `stop`, as one process has them."""

    def __init__(self, dataset: Dataset, begin: Begin, stop: int | None, worker: int, workers: int) -> None:
        self.begin, self.workers = begin, workers
        self._dataset, self._stop, self._worker = dataset, stop, worker
        self.iteration: Iteration | None = None
        self.given = 0

    def run(self) -> Iterator[Any]:
        convert = batch_to_torch if self._dataset._settings.batched else sample_to_torch
        done, before = self.begin.done, 0
        for epoch in count(self.begin.epoch) if self._stop is None else range(self.begin.epoch, self._stop):
            # Who had the last batch of an epoch is not who has the first of the next one.
            turn = (self._worker - before) % self.workers
            with self._dataset.iterate(epoch, worker=(turn, self.workers)) as self.iteration:
                if done:
                    self.iteration.load_state_dict({**self.iteration.state_dict(), "done": done})
                for batch in self.iteration:
                    self.given += 1
                    yield convert(batch)
            if not (steps := steps_left(self._dataset, epoch, done)) and not done:
                break  # nothing in an epoch: for ever would be without an end
            before, done = before + steps, 0
