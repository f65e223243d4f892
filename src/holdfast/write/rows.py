"""One row's value in a column without a fixed size: a copy of it, in the one form that joins with every other that fits.

As people give them, values that fit one by one need not fit together: an empty list is an array of another type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..formats.columns import BytesColumn, ColumnData, RaggedColumn
from ..formats.gather import gather_rows
from ..formats.tfrecord.encoding import batch_maker
from ..schema import Column
from .fit import checked


def row_of(name: str, column: Column, value: Any) -> ColumnData:
    """A column of this one row. SchemaError: the value does not fit."""
    schema = {name: column}
    parts = checked(schema, {name: [value]})[0][0]
    own: Any = tuple(None if one is None else np.array(one) for one in parts)
    return batch_maker(schema)([own], None)[name]


def bytes_in(row: ColumnData) -> int:
    if isinstance(row, RaggedColumn):
        return row.row_splits.nbytes + bytes_in(row.values)
    return row.values.nbytes + row.offsets.nbytes if isinstance(row, BytesColumn) else int(row.nbytes)


def join_rows(rows: Sequence[ColumnData]) -> ColumnData:
    """What row_of gave, of one column and at least once, as a column of as many rows."""
    return gather_rows([{"": row} for row in rows], np.arange(len(rows)), np.zeros(len(rows), np.int64))[""]
