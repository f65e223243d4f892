"""Batches and samples as torch has them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from holdfast.formats.columns import BytesColumn, RaggedColumn
from holdfast.read.flow.samples import tuple_like


class Ragged(NamedTuple):
    """Lists of any length: row i is `values[row_splits[i]:row_splits[i + 1]]`.

    `values` is a tensor, a list of bytes, or, for lists of lists, a Ragged. A tuple, so that torch's loaders collate,
    pin and move it as they do any other: `torch.nested.nested_tensor_from_jagged(values, row_splits)` makes one of it.
    """

    values: Any
    row_splits: torch.Tensor

    def rows(self) -> list[Any]:
        """One item a row."""
        ends = self.row_splits.tolist()
        return [_rows(self.values, start, stop) for start, stop in pairwise(ends)]


def _rows(values: Any, start: int, stop: int) -> Any:
    if not isinstance(values, Ragged):
        return values[start:stop]
    splits = values.row_splits[start : stop + 1]
    inner = _rows(values.values, int(splits[0]), int(splits[-1]))
    return Ragged(inner, splits - splits[0]).rows()


def batch_to_torch(value: Any) -> Any:
    """Arrays become tensors that share their memory, strings lists of bytes, lists of any length a Ragged."""
    if isinstance(value, np.ndarray):
        return _tensor(value)
    if isinstance(value, RaggedColumn):
        return Ragged(batch_to_torch(value.values), _tensor(value.row_splits))
    if isinstance(value, BytesColumn):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: batch_to_torch(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return tuple_like(value, [batch_to_torch(one) for one in value])
    return value


def sample_to_torch(value: Any) -> Any:
    """What torch's own collation takes: tensors, bytes, and lists of these."""
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
    """Without a copy where torch can have the memory as it is. What it has no type for stays an array."""
    if array.dtype.kind not in "biufc" or array.dtype == np.longdouble or array.dtype == np.clongdouble:
        return array
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(step < 0 for step in array.strides):
        array = array.copy()
    return torch.from_numpy(array)
