"""A drop-in DataLoader for torch that closes its workers, and datasets for torch.

    from holdfast.torch import DataLoader

    with DataLoader(dataset, batch_size=64, num_workers=4) as loader:
        for batch in loader: ...

It has the arguments, batches and order of torch's DataLoader, for any Dataset.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from types import TracebackType
from typing import Any, Self, TypeVar

import torch.utils.data
from torch.utils.data import Dataset

from .data.loader.dataset import Dataset as HoldfastDataset
from .data.torch_loader.loader_iterator import LoaderIterator, clear_library_frames
from .data.torch_loader.torch_dataset import RaggedTensor, TorchDataset, TorchSamples, as_torch, as_torch_map

__all__ = ["DataLoader", "RaggedTensor", "TorchDataset", "TorchSamples", "as_torch", "as_torch_map"]

_T_co = TypeVar("_T_co", covariant=True)

# Not an attribute of the loader, which must pickle and copy.
_iterators: weakref.WeakKeyDictionary[Any, weakref.WeakSet[LoaderIterator]] = weakref.WeakKeyDictionary()


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """A drop-in for `torch.utils.data.DataLoader` that leaves no process, thread or descriptor behind.

    A dataset that has batches, `ds.batch(64).torch()`, is not batched again: `batch_size` defaults to None for it.

    Args:
        copy_batches: Copy each batch out of the shared memory it came through, so that batches may be kept: left there,
            each tensor costs a descriptor as long as it lives. False saves the copy, for batches that are not kept.
            All other arguments are those of torch.
    """

    def __init__(self, dataset: Dataset[_T_co], *args: Any, copy_batches: bool = True, **kwargs: Any) -> None:
        if isinstance(dataset, HoldfastDataset):
            dataset._check_indexing("DataLoader")
        if not args and not kwargs.keys() & {"batch_size", "batch_sampler"} and _has_batches(dataset):
            kwargs["batch_size"] = None
        super().__init__(dataset, *args, **kwargs)
        self.copy_batches = copy_batches

    def __iter__(self) -> Any:
        iterator = self._iterator
        if isinstance(iterator, LoaderIterator) and iterator.closed:
            self._iterator = None
        try:
            return super().__iter__()
        except BaseException:
            if self._iterator is not None:  # persistent workers that failed to begin another epoch
                self.close()
            raise

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        outer = sys.exception()
        try:
            iterator = LoaderIterator(self, copy_batches=self.copy_batches)
        except BaseException as error:
            clear_library_frames(error, outer)
            raise
        _iterators.setdefault(self, weakref.WeakSet()).add(iterator)
        return iterator

    def close(self) -> None:
        """Ends all iterators of this loader, and persistent workers too. Iterating again starts new ones."""
        kept: Any = self._iterator  # may come from the loader that this one is a copy of: they share persistent workers
        for iterator in [*_iterators.get(self, ()), *([kept] if isinstance(kept, LoaderIterator) else [])]:
            iterator.close()
        self._iterator = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _has_batches(dataset: Any) -> bool:
    return isinstance(dataset, TorchDataset) and dataset.batched


def _signature() -> inspect.Signature:
    """Returns torch's signature and `copy_batches`: frameworks that rebuild a loader read the parameter names here."""
    torchs = inspect.signature(torch.utils.data.DataLoader.__init__)
    own = inspect.signature(DataLoader.__init__).parameters["copy_batches"]
    return torchs.replace(parameters=[*torchs.parameters.values(), own])


DataLoader.__init__.__signature__ = _signature()  # type: ignore[attr-defined]
