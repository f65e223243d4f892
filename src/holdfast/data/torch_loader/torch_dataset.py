"""holdfast datasets as torch datasets: `ds.torch()` is iterable, `ds.torch_map()` is map-style."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, dropwhile, pairwise, takewhile
from multiprocessing import context
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset, get_worker_info

from ..._util.rank import ALONE, FrameworkSharder, callers, find_sharder, has_stage, is_asked_by, local_of, module_of
from ...errors import InputError, StateError
from ..formats.columns import BytesColumn, RaggedColumn, tuple_like
from ..loader.dataset import Dataset, state_after, steps_left
from ..loader.iterator import Iteration, stop_epoch
from ..loader.options import as_int
from .shared_epoch import PassStart, SharedEpoch


class RaggedTensor(NamedTuple):
    """Lists of any length: row i is `values[row_splits[i]:row_splits[i + 1]]`.

    `values` is a tensor, a list of bytes, or, for lists of lists, a RaggedTensor. It is a tuple, so torch's loaders can
    collate, pin and move it. `torch.nested.nested_tensor_from_jagged(values, row_splits)` converts it.
    """

    values: Any
    row_splits: torch.Tensor

    def rows(self) -> list[Any]:
        """Returns one item a row."""
        ends = self.row_splits.tolist()
        return [_rows(self.values, start, stop) for start, stop in pairwise(ends)]


RaggedTensor.__module__ = "holdfast.torch"  # a NamedTuple takes no such line in its body


def _rows(values: Any, start: int, stop: int) -> Any:
    if not isinstance(values, RaggedTensor):
        return values[start:stop]
    splits = values.row_splits[start : stop + 1]
    inner = _rows(values.values, int(splits[0]), int(splits[-1]))
    return RaggedTensor(inner, splits - splits[0]).rows()


def batch_to_torch(value: Any) -> Any:
    """Converts arrays to tensors that share their memory, strings to lists of bytes, ragged columns to RaggedTensor."""
    if isinstance(value, np.ndarray):
        return _tensor(value)
    if isinstance(value, RaggedColumn):
        return RaggedTensor(batch_to_torch(value.values), _tensor(value.row_splits))
    if isinstance(value, BytesColumn):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: batch_to_torch(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return tuple_like(value, [batch_to_torch(one) for one in value])
    return value


def sample_to_torch(value: Any) -> Any:
    """Converts a sample to what torch's own collation takes: tensors, bytes, and lists of these."""
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, (bytes, str)):
        return _tensor(np.asarray(value))
    if isinstance(value, (memoryview, bytearray)):
        return bytes(value)
    if isinstance(value, BytesColumn):
        return value.tolist()
    if isinstance(value, RaggedColumn):
        return [sample_to_torch(row) for row in value]
    if isinstance(value, Mapping):
        return {name: sample_to_torch(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return tuple_like(value, [sample_to_torch(one) for one in value])
    return value


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    """Converts without a copy where torch can use the memory. An array of a type that torch lacks stays an array."""
    if array.dtype.kind not in "biufc" or array.dtype == np.longdouble or array.dtype == np.clongdouble:
        return array
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(step < 0 for step in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def as_torch_map(dataset: Dataset) -> TorchSamples:
    """Returns a map-style Dataset of samples. `ds.torch_map()` does the same."""
    return TorchSamples(dataset)


class TorchSamples(torch.utils.data.Dataset[Any]):
    """Samples by index, in file order; torch's samplers shuffle and shard them, and torch collates them.

    It works with any number of workers, started in any way: files are opened in the process that reads them.
    """

    __module__ = "holdfast.torch"

    def __init__(self, dataset: Dataset) -> None:
        dataset._check_indexing("torch_map()")
        self.dataset = dataset
        self._len: int | None = None

    def __len__(self) -> int:
        if self._len is None:
            self._len = self.dataset.samples
        return self._len

    def __getitem__(self, index: int) -> Any:
        return sample_to_torch(self.dataset[index])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Reads a batch at once; torch calls this where it exists."""
        return [sample_to_torch(sample) for sample in self.dataset[list(indices)]]


def as_torch(dataset: Dataset, *, epoch: int = 0) -> TorchDataset:
    """Returns an IterableDataset of dicts. `ds.torch()` does the same."""
    return TorchDataset(dataset, epoch)


class TorchDataset(IterableDataset[Any]):
    """Yields dicts of tensors; strings are lists of bytes, lists of any length a `holdfast.torch.RaggedTensor`.

    Iterate it directly, or with a DataLoader: `batch_size=None` for a dataset that has batches. Any number of workers
    gives the same batches in the same order, because they take turns. Functions with where="processes" run in these
    workers then.

    Every pass is the next epoch, with its own order and random functions, also after a pass that was left early; with
    repeat(3) it is the next three. `set_epoch` sets the epoch of the next pass, as a DistributedSampler's does, and
    also reaches persistent workers. A pass is counted when iter() is called: two loaders over one TorchDataset read
    different epochs. Each `ds.torch()` has a count of its own.
    """

    __module__ = "holdfast.torch"

    def __init__(self, dataset: Dataset, epoch: int = 0) -> None:
        as_int("epoch", epoch, 0)
        self.dataset = dataset
        self._times = dataset._settings.repeat
        self._shared = SharedEpoch(PassStart(epoch, epoch, 0))
        self._pass: _Pass | None = None
        self._ahead = False  # whether accelerate fetches batches ahead
        self._dispatched = False  # set in a spawned worker when accelerate dispatches the batches
        self._own: PassStart | None = None  # in a worker: where its next pass begins, from load_state_dict
        self._epochs = dataset._with(repeat=1)
        self._inside: Dataset | None = None

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass. It begins at the start, or where a loaded state of this epoch left off."""
        as_int("epoch", epoch, 0)
        if _accelerate_begins_pass():
            self._check_shared()
            return  # accelerate's own count restarts at 0 after a resume, and stops when a pass is left early
        self._shared.set_epoch(epoch)
        self._pass = None

    def __len__(self) -> int:
        """Returns the batches (or samples) of this rank in all epochs of a pass."""
        if self._times is None:
            raise TypeError("a dataset that repeats forever has no length")
        return len(self._epochs) * self._times

    @property
    def batched(self) -> bool:
        """Whether it yields batches rather than samples."""
        return self.dataset._settings.batched

    def __iter__(self) -> Iterator[Any]:
        # Only torch's fetcher, which calls this, knows whether the loader makes batches.
        if self.batched and _makes_batches(sys._getframe(1)):
            raise TypeError(
                "DataLoader: expected batch_size=None for a dataset that has batches, got a loader that batches them "
                "again: write DataLoader(ds.torch(), batch_size=None), or leave out .batch(…)"
            )
        info = get_worker_info()
        worker, workers = (0, 1) if info is None or _are_workers_shared() else (info.id, info.num_workers)
        self._ahead = is_asked_by("accelerate.data_loader")
        epochs = self._times or 1  # an endless pass counts as one: how far it gets differs from rank to rank
        if info is None:
            begin = self._shared.begin(epochs)
        else:
            own, self._own = self._own, None
            begin = self._shared.begin_in_worker(epochs, _loader_number(info), own)
        stop = stop_epoch(self.dataset._settings, begin.first, begin.epoch)
        equal = self._dispatched or _is_dispatched(find_sharder())
        dataset = self._dataset_here(inside=info is not None)
        self._pass = _Pass(dataset, begin, stop, worker, workers, equal=equal)
        return self._pass.run()

    def _check_shared(self) -> None:
        """Raises on every rank, before workers start, where accelerate would lose samples or fail on them."""
        sharder = find_sharder()
        if sharder is None:
            return
        self.dataset._launch()  # raises if the given rank is wrong
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

    def _dataset_here(self, *, inside: bool) -> Dataset:
        if not inside:
            return self._epochs
        if self._inside is None:  # one for all passes: a cache lives in it
            functions = tuple(
                replace(one, where="inline", workers=0) if one.where == "processes" else one
                for one in self._epochs._settings.functions
            )
            self._inside = self._epochs._with(functions=functions)  # a loader's daemonic workers may have no children
        return self._inside

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch that was yielded, valid for any number of ranks and workers.

        When a loader's workers read, only the caller knows how many of their batches were used: call `state_after`.
        """
        inside, ahead = get_worker_info() is not None, ""
        if self._pass is not None and self._pass.equal:
            ahead = "accelerate dispatches this dataset, and fetches"  # also where its stateful loader asks
        elif self._pass is not None and self._ahead and not is_asked_by("accelerate.data_loader"):
            ahead = "accelerate reads this dataset, and fetches"
        elif not inside and self._shared.in_workers:
            ahead = "a loader's workers read this dataset, and fetch"
        if ahead:
            raise StateError(
                f"{ahead} ahead: expected state_after(batches), with the number of batches that were used in this pass"
            )
        if inside:  # torchdata's stateful loader asks each of its workers
            return self._state(self._own or self._shared.last) if self._pass is None else self._own_state(self._pass)
        if self._pass is not None and self._pass.iteration is not None:
            return self._pass.iteration.state_dict()
        return self._state(self._shared.last)

    def state_after(self, batches: int) -> dict[str, Any]:
        """Returns the state after so many batches of this pass were used, by whatever loader."""
        begun = self._shared.last
        return state_after(self.dataset, batches, epoch=begun.first, since=self._state(begun))

    def _own_state(self, own: _Pass) -> dict[str, Any]:
        """Returns the state from which this one of several workers continues with its own next batch."""
        taken, since = own.given * own.workers, self._state(own.begin)  # the other workers may have yielded one less
        return state_after(self.dataset, taken, epoch=own.begin.first, since=since, at_most=True)

    def _state(self, begin: PassStart) -> dict[str, Any]:
        with self.dataset.iterate(begin.epoch) as begun:
            return {**begun.state_dict(), "done": begin.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state in the next pass; the pass after it is the next epoch."""
        with self.dataset.iterate(0) as begun:
            begun.load_state_dict(state)  # raises if the state does not match
        begin = PassStart(self._first_of_pass(state["epoch"]), state["epoch"], state["done"])
        if get_worker_info() is None:
            self._shared.load(begin)
            self._pass = None
        else:
            self._own = begin

    def _first_of_pass(self, epoch: int) -> int:
        """Returns the first epoch of the pass that `epoch` is in; with repeat(n), counted from the last pass."""
        stop = stop_epoch(self.dataset._settings, self._shared.last.first, epoch)
        return epoch if stop is None or self._times is None or stop < self._times else stop - self._times

    def __getstate__(self) -> dict[str, Any]:
        """Adds the rank for a worker that is spawned: torch.distributed is not initialized there, and accelerate is
        not on its stack. Without a known rank nothing is added: the process may be about to become a rank itself."""
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


def _is_dispatched(sharder: FrameworkSharder | None) -> bool:
    """Whether accelerate reads on the first rank alone and distributes parts of its batches to all ranks."""
    return sharder is not None and type(sharder.by).__name__ == "DataLoaderDispatcher"


def _accelerate_begins_pass() -> bool:
    """Whether accelerate's loader calls set_epoch() at the start of a pass, and not a user through it."""
    frames = dropwhile(lambda frame: module_of(frame) == __name__, callers())
    own = takewhile(lambda frame: module_of(frame) == "accelerate.data_loader", frames)
    return any(frame.f_code.co_name == "__iter__" for frame in own)


def _are_workers_shared() -> bool:
    """Whether the caller is datasets or webdataset, which divides the samples among the workers itself."""
    for frame in takewhile(lambda frame: frame.f_code.co_name != "_worker_loop", callers()):
        module = module_of(frame)
        if module == "datasets.iterable_dataset":
            return True
        if module == "webdataset.pipeline" and has_stage(local_of(frame, "self"), "split_by_worker"):
            return True
    return False


def _loader_number(info: Any) -> int:
    """Returns a number that the workers of one loader iterator share, and no others: the inode of their result pipe.

    The pipe is in a local variable of torch's worker loop. Where that is not on the stack, in a thread, it is torch's
    seed, which loaders with equally seeded generators share.
    """
    frame = next((frame for frame in callers() if frame.f_code.co_name == "_worker_loop"), None)
    results: Any = None if frame is None else local_of(frame, "data_queue")
    try:
        return os.fstat(results._writer.fileno()).st_ino
    except (AttributeError, OSError):
        return int(info.seed) - int(info.id)


def _makes_batches(frame: FrameType) -> bool:
    """Whether this is the frame of torch's fetcher, of a loader that makes batches."""
    return module_of(frame) == "torch.utils.data._utils.fetch" and local_of(frame, "auto_collation") is True


class _Pass:
    """The epochs from `begin` to before `stop`, as one process reads them.

    Args:
        equal: All batches but the last must have the same size, because accelerate drops what it cannot divide.
    """

    def __init__(
        self, dataset: Dataset, begin: PassStart, stop: int | None, worker: int, workers: int, *, equal: bool
    ) -> None:
        self.begin, self.workers = begin, workers
        self._dataset, self._stop, self._worker, self.equal = dataset, stop, worker, equal
        self.iteration: Iteration | None = None
        settings = dataset._settings
        maps = any(one.each == "batch" and one.kind == "map" for one in settings.functions)
        self._rows = None if maps else settings.batch  # a batch function may return any number of rows
        self.given = 0

    def run(self) -> Iterator[Any]:
        batched = self._dataset._settings.batched
        convert = batch_to_torch if batched else sample_to_torch
        done, before = self.begin.done, 0
        for epoch in count(self.begin.epoch) if self._stop is None else range(self.begin.epoch, self._stop):
            steps = steps_left(self._dataset, epoch, done)
            # The turns go on across epochs: the worker after the one with the last batch takes the first.
            turn = (self._worker - before) % self.workers
            last = steps - 1 if self._stop == epoch + 1 else -1
            with self._dataset.iterate(epoch, worker=(turn, self.workers)) as self.iteration:
                if done:
                    self.iteration.load_state_dict({**self.iteration.state_dict(), "done": done})
                for number, batch in enumerate(self.iteration):
                    self.given += 1
                    made = convert(batch)
                    if self.equal and batched and turn + number * self.workers != last:
                        self._check_size(made)
                    yield made
            if not steps and not done:
                break  # an endless pass over empty epochs would never yield
            before, done = before + steps, 0

    def _check_size(self, batch: Any) -> None:
        tensors = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim)
        rows = next((len(tensor) for tensor in tensors), self._rows)
        self._rows = self._rows or rows
        if rows != self._rows:
            raise InputError(
                f"accelerate with dispatch_batches=True: expected batches of {self._rows} samples up to the last one, "
                f"got one of {rows}, of which accelerate may drop some. Batches get shorter by filter(), by skipped "
                f"samples, and at the end of an epoch within repeat(). {_UNPREPARED}"
            )
