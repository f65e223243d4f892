"""A batch as samples, and how much of it there is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ..._native import codec
from ...errors import SchemaError
from ...formats.columns import Batch, BytesColumn, ColumnData, LentBytesColumn, RaggedColumn


def rows_of(batch: Batch) -> int:
    """How many rows all of its columns have."""
    counts = {name: len(column) for name, column in batch.items()}
    if len(set(counts.values())) > 1:
        raise SchemaError(f"the columns have different numbers of rows: {counts}")
    return next(iter(counts.values()), 0)


def nbytes_of(batch: Batch) -> int:
    """The bytes of its rows; not of what else the memory they are in holds."""
    return sum(map(_column_bytes, batch.values()))


def _column_bytes(column: ColumnData) -> int:
    if isinstance(column, RaggedColumn):
        return column._splits.nbytes + _column_bytes(column.values)
    if isinstance(column, LentBytesColumn):  # `values` would join them
        return column._spans.nbytes + int((column._spans[:, 1] - column._spans[:, 0]).sum())
    if isinstance(column, BytesColumn):
        return column._offsets.nbytes + column.values.nbytes
    return column.nbytes


def split_samples(batch: Batch) -> list[dict[str, Any]]:
    """Its rows, each a dict: numpy scalars, arrays, memoryviews, and columns for lists of strings and of lists.

    They share the batch's memory, but for scalars.
    """
    rows = rows_of(batch)
    return codec.pieces(tuple(batch), tuple(_items(column) for column in batch.values()), rows)


def _items(column: ColumnData) -> Any:
    """Something whose item i is row i, at little cost: all of a column are made at once, not row by row."""
    if isinstance(column, np.ndarray):
        return list(column)
    if isinstance(column, RaggedColumn):
        values = column._values
        return [values[start:stop] for start, stop in pairwise(column._splits.tolist())]
    if column.per_item:
        return column
    memory = column._values.data
    if isinstance(column, LentBytesColumn):
        return [memory[start:stop] for start, stop in column._spans.tolist()]
    return [memory[start:stop] for start, stop in pairwise(column._offsets.tolist())]
