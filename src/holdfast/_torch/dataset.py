"""A holdfast dataset as torch's: `ds.torch()`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count, dropwhile, takewhile
from multiprocessing import context
from types import FrameType
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset, get_worker_info

from holdfast._base.launch import ALONE
from holdfast._base.sharders import Sharder, callers, find_sharder, has_stage, is_asked_by, local_of, module_of
from holdfast.errors import InputError, StateError
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
        self._ahead = False  # whether accelerate takes batches before it gives them
        self._dispatched = False  # whether it is known, of a worker that was spawned, that accelerate dispatches
        self._own: Begin | None = None  # where this worker's next pass begins, if it was told by itself
        self._epochs = dataset._with(repeat=1)
        self._inside: Dataset | None = None

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch: from its beginning, or where a state of it that was loaded says."""
        whole("epoch", epoch, 0)
        if _accelerate_begins_pass():
            self._check_shared()
            return  # its own count begins at 0 after a resume, and stands still when a pass is broken off
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
        if self.batched and _makes_batches(sys._getframe(1)):
            raise TypeError(
                "DataLoader: expected batch_size=None for a dataset that has batches, got a loader that makes batches "
                "of them: write DataLoader(ds.torch(), batch_size=None), or leave out .batch(…)"
            )
        info = get_worker_info()
        worker, workers = (0, 1) if info is None or _are_workers_shared() else (info.id, info.num_workers)
        self._ahead = is_asked_by("accelerate.data_loader")
        epochs = self._times or 1  # a pass without an end counts as one: how far it gets differs from rank to rank
        if info is None:
            begin = self._place.begin(epochs)
        else:
            own, self._own = self._own, None
            begin = self._place.begin_in_worker(epochs, _loader_number(info), own)
        stop = stop_of(self.dataset._settings, begin.first, begin.epoch)
        equal = self._dispatched or _is_dispatched(find_sharder())
        readable = self._readable(inside=info is not None)
        self._pass = _Pass(readable, begin, stop, worker, workers, equal=equal)
        return self._pass.run()

    def _check_shared(self) -> None:
        """Raises in every rank, and before workers start, where accelerate would lose samples or fail on them."""
        sharder = find_sharder()
        if sharder is None:
            return
        self.dataset._launch()  # says what is wrong with a rank that was given
        if not _is_dispatched(sharder):
            if self.batched or sharder.by.batch_size is None:
                raise TypeError(
                    f"{sharder.name}: expected samples and a loader that makes batches of them, got "
                    f"{'batches' if self.batched else 'batch_size=None'}. {_UNPREPARED}, or write dispatch_batches=True"
                )
        elif self.dataset._settings.global_batch is not None:
            raise InputError(
                f"{sharder.name}: expected .batch(size) with the size of one rank's batches, got .batch(global_size="
                f"{self.dataset._settings.global_batch}): accelerate puts together as many batches as there are ranks"
            )
        elif not self.batched and sharder.by.num_workers > 1:
            raise InputError(
                f"{sharder.name}: expected at most one worker where torch makes the batches, got "
                f"{sharder.by.num_workers}. Each ends with a short batch, of which accelerate may drop samples: write "
                "num_workers=1 (for a Trainer dataloader_num_workers=1), dispatch_batches=False, or .batch(…) and "
                "batch_size=None"
            )

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
        inside, ahead = get_worker_info() is not None, ""
        if self._pass is not None and self._pass.equal:
            ahead = "accelerate dispatches this dataset, and fetches"  # also where its stateful loader asks
        elif self._pass is not None and self._ahead and not is_asked_by("accelerate.data_loader"):
            ahead = "accelerate reads this dataset, and fetches"
        elif not inside and self._place.in_workers:
            ahead = "a loader's workers read this dataset, and fetch"
        if ahead:
            raise StateError(
                f"{ahead} ahead: expected state_after(batches), with the number of batches that were taken in this pass"
            )
        if inside:  # a stateful loader asks each of its workers
            return self._state(self._own or self._place.last) if self._pass is None else self._own_state(self._pass)
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
        """A worker that is started anew may not know its rank: torch.distributed is not initialized in it, and who
        asks for data is not on its stack. Where nobody said a rank, the process may be about to become one."""
        state = self.__dict__ | {"_pass": None, "_inside": None}
        if context.get_spawning_popen() is None:
            return state
        state["_dispatched"] = _is_dispatched(find_sharder())
        if self.dataset._settings.shard == "auto" and (rank := self.dataset._launch()).source != ALONE:
            for name in ("dataset", "_epochs"):
                state[name] = state[name].shard((rank.rank, rank.world))
        return state


_UNPREPARED = (
    'Leave the loader out of accelerator.prepare(): .shard("auto", remainder="pad") gives each rank its own part'
)


def _is_dispatched(sharder: Sharder | None) -> bool:
    """Whether accelerate reads on the first rank alone, and cuts what it read into parts for all of them."""
    return sharder is not None and type(sharder.by).__name__ == "DataLoaderDispatcher"


def _accelerate_begins_pass() -> bool:
    """Whether set_epoch() is called by accelerate's loader as it begins a pass, and not by a user through it."""
    frames = dropwhile(lambda frame: module_of(frame) == __name__, callers())
    own = takewhile(lambda frame: module_of(frame) == "accelerate.data_loader", frames)
    return any(frame.f_code.co_name == "__iter__" for frame in own)


def _are_workers_shared() -> bool:
    """Whether datasets or webdataset asks, and gives each worker of a loader its part itself."""
    for frame in takewhile(lambda frame: frame.f_code.co_name != "_worker_loop", callers()):
        module = module_of(frame)
        if module == "datasets.iterable_dataset":
            return True
        if module == "webdataset.pipeline" and has_stage(local_of(frame, "self"), "split_by_worker"):
            return True
    return False


def _loader_number(info: Any) -> int:
    """What all workers of one loader iterator have in common, and no other's have: the pipe of their results.

    Its number stands in a local variable of torch's loop. Where that is not on the stack, in a thread, torch's seed is
    taken: loaders with generators of the same seed have the same.
    """
    frame = next((frame for frame in callers() if frame.f_code.co_name == "_worker_loop"), None)
    results: Any = None if frame is None else local_of(frame, "data_queue")
    try:
        return os.fstat(results._writer.fileno()).st_ino
    except (AttributeError, OSError):
        return int(info.seed) - int(info.id)


def _makes_batches(frame: FrameType) -> bool:
    """Whether this is torch's fetcher, of a loader that makes batches."""
    return module_of(frame) == "torch.utils.data._utils.fetch" and local_of(frame, "auto_collation") is True


class _Pass:
    """Epochs from `begin` to before `stop`, as one process has them.

    equal: batches before the last must have as many samples: who cuts them into parts for the ranks drops the rest
    """

    def __init__(
        self, dataset: Dataset, begin: Begin, stop: int | None, worker: int, workers: int, *, equal: bool
    ) -> None:
        self.begin, self.workers = begin, workers
        self._dataset, self._stop, self._worker, self.equal = dataset, stop, worker, equal
        self.iteration: Iteration | None = None
        settings = dataset._settings
        maps = any(one.each == "batch" and one.kind == "map" for one in settings.functions)
        self._rows = None if maps else settings.batch  # a function may make any number of rows
        self.given = 0

    def run(self) -> Iterator[Any]:
        batched = self._dataset._settings.batched
        convert = batch_to_torch if batched else sample_to_torch
        done, before = self.begin.done, 0
        for epoch in count(self.begin.epoch) if self._stop is None else range(self.begin.epoch, self._stop):
            steps = steps_left(self._dataset, epoch, done)
            # Who had the last batch of an epoch is not who has the first of the next one.
            turn = (self._worker - before) % self.workers
            last = steps - 1 if self._stop == epoch + 1 else -1
            with self._dataset.iterate(epoch, worker=(turn, self.workers)) as self.iteration:
                if done:
                    self.iteration.load_state_dict({**self.iteration.state_dict(), "done": done})
                for number, batch in enumerate(self.iteration):
                    self.given += 1
                    made = convert(batch)
                    if self.equal and batched and turn + number * self.workers != last:
                        self._check_whole(made)
                    yield made
            if not steps and not done:
                break  # nothing in an epoch: for ever would be without an end
            before, done = before + steps, 0

    def _check_whole(self, batch: Any) -> None:
        tensors = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim)
        rows = next((len(tensor) for tensor in tensors), self._rows)
        self._rows = self._rows or rows
        if rows != self._rows:
            raise InputError(
                f"accelerate with dispatch_batches=True: expected batches of {self._rows} samples up to the last one, "
                f"got one of {rows}, of which accelerate may drop some. Batches get shorter by filter(), by what was "
                f"skipped, and at the end of an epoch that repeat() goes on after. {_UNPREPARED}"
            )
