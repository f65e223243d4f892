"""Lists of different lengths made equal: filled up to the longest of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import SchemaError
from ...formats.columns import Batch, BytesColumn, ColumnData, RaggedColumn

Array = npt.NDArray[Any]


def pad_columns(batch: Batch, pad_value: Any = 0) -> Batch:
    """The batch with every RaggedColumn filled up to its longest row: with `pad_value`, strings with empty ones."""
    return {
        name: pad_column(name, column, pad_value) if isinstance(column, RaggedColumn) else column
        for name, column in batch.items()
    }


def pad_column(name: str, column: RaggedColumn, pad_value: Any = 0) -> ColumnData:
    values, sizes = column.values, np.diff(column.row_splits)
    longest = int(sizes.max(initial=0))
    if isinstance(values, RaggedColumn):
        values = pad_column(name, values, pad_value)
        if isinstance(values, BytesColumn):
            raise SchemaError(f"column {name!r}: strings in lists of lists cannot be padded")
    there = np.arange(longest) < sizes[:, None]
    if isinstance(values, BytesColumn):
        return _pad_strings(values, there)
    padded = _filled(name, (len(sizes), longest, *values.shape[1:]), values.dtype, pad_value)
    padded[there] = values
    return padded


def _pad_strings(values: BytesColumn, there: npt.NDArray[np.bool_]) -> BytesColumn:
    """A row is at least one string: a column of none a row is one of single strings."""
    per_string = values.per_item or 1
    per_item = max(there.shape[1], 1) * per_string
    sizes = np.zeros((there.shape[0], per_item), np.int64)
    sizes[:, : there.shape[1] * per_string][np.repeat(there, per_string, axis=1)] = np.diff(values.offsets)
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return BytesColumn(values.values, offsets, per_item)


def pad_arrays(name: str, arrays: list[Array], pad_value: Any = 0) -> Array:
    """Arrays of any shape, but of as many dimensions, in one that is large enough for each."""
    dimensions = [array.ndim for array in arrays]
    if len(set(dimensions)) > 1:
        place = next(place for place, n in enumerate(dimensions) if n != dimensions[0])
        raise SchemaError(
            f"column {name!r}: sample 0 of the batch has the shape {arrays[0].shape}, sample {place} the shape "
            f"{arrays[place].shape}: only as many dimensions can be padded"
        )
    largest = tuple(max(sizes) for sizes in zip(*[array.shape for array in arrays], strict=True))
    padded = _filled(name, (len(arrays), *largest), np.result_type(*arrays), pad_value)
    for place, array in enumerate(arrays):
        padded[place][tuple(slice(n) for n in array.shape)] = array
    return padded


def _filled(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], pad_value: Any) -> Array:
    try:
        with np.errstate(over="raise"):
            value = np.array(pad_value, dtype)
        if dtype.kind in "iub" and value != pad_value:  # a float may be rounded
            raise ValueError(f"it would be {value}")
    except (TypeError, ValueError, OverflowError, FloatingPointError) as error:
        raise SchemaError(f"column {name!r}: the pad value {pad_value!r} does not fit {dtype}: {error}") from None
    return np.full(shape, value, dtype)
