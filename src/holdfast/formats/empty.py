"""Columns without rows."""

from __future__ import annotations

import numpy as np

from ..schema import Bytes, Column, Ragged, Schema
from .columns import Batch, ColumnData, RaggedColumn
from .gather import fill


def empty_batch(schema: Schema) -> Batch:
    """What these columns are when there is no sample."""
    return {name: _empty(name, column) for name, column in schema.items()}


def _empty(name: str, column: Column) -> ColumnData:
    if isinstance(column, Ragged):
        return RaggedColumn(_empty(name, column.inner), np.zeros(1, np.int64))
    return fill(name, column.alike(default=b"" if isinstance(column, Bytes) else 0), 0)
