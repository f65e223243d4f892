"""torch's DataLoader, with an end.

    from holdfast.torch import DataLoader

    with DataLoader(dataset, batch_size=64, num_workers=4) as loader:
        for batch in loader: ...

The same arguments, batches and order as torch's, for any Dataset.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from types import TracebackType
from typing import Any, Self, TypeVar

import torch.utils.data
from torch.utils.data import Dataset

from ._torch.dataset import RaggedTensor, TorchDataset, TorchSamples, as_torch, as_torch_map
from ._torch.loader_iterator import LoaderIterator, let_go
from .loader.dataset import Dataset as HoldfastDataset

__all__ = ["DataLoader", "RaggedTensor", "TorchDataset", "TorchSamples", "as_torch", "as_torch_map"]

_T_co = TypeVar("_T_co", covariant=True)

# Not in the loader itself, which must still pickle and copy.
_iterators: weakref.WeakKeyDictionary[Any, weakref.WeakSet[LoaderIterator]] = weakref.WeakKeyDictionary()


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """A drop-in for `torch.utils.data.DataLoader` that leaves no process, thread or descriptor behind.

    `copy_batches=True` copies each batch out of the shared memory it came through, so that batches may be kept: left
    there, each tensor costs a descriptor for as long as it lives. `False` saves the copy, for batches that are used and
    dropped.

    A dataset that has batches, `ds.batch(64).torch()`, is not batched again: `batch_size` is None there by default.
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
            if self._iterator is not None:  # persistent workers that did not come back for another epoch
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
            let_go(error, outer)
            raise
        _iterators.setdefault(self, weakref.WeakSet()).add(iterator)
        return iterator

    def close(self) -> None:
        """Ends all iterators of this loader, persistent workers too. Iterating again starts anew."""
        kept: Any = self._iterator  # of a copy's original too: copies share persistent workers
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
    """torch's, and one more. Who makes a loader anew from another one's attributes reads the names here."""
    torchs = inspect.signature(torch.utils.data.DataLoader.__init__)
    own = inspect.signature(DataLoader.__init__).parameters["copy_batches"]
    return torchs.replace(parameters=[*torchs.parameters.values(), own])


DataLoader.__init__.__signature__ = _signature()  # type: ignore[attr-defined]
