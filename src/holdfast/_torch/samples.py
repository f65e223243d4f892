"""A holdfast dataset as torch's map-style one: `ds.torch_map()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.utils.data

from holdfast.read.dataset import Dataset

from .tensors import sample_to_torch


def as_torch_map(dataset: Dataset) -> TorchSamples:
    """A Dataset of samples by number. `ds.torch_map()` is the same."""
    return TorchSamples(dataset)


class TorchSamples(torch.utils.data.Dataset[Any]):
    """Samples by number, in the order of the files, for torch's samplers: they shuffle and share, and torch collates.

    Any number of workers, started in any way: files are opened in the process that reads them.
    """

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
        """A batch at once: torch asks for this where it is there."""
        return [sample_to_torch(sample) for sample in self.dataset[list(indices)]]
