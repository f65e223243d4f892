"""One row's value in a column without a fixed size: a copy of it, in the one form that joins with all others that fit.

As people give them, values that fit one by one need not fit together: an empty list is an array of another type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..formats.columns import ColumnData
from ..formats.tfrecord.encoding import buffers_of, column_from
from ..schema import Column

Row = tuple[Any, ...]  # its values, and the ends of what they are in: arrays, or None


def row_of(name: str, column: Column, value: Any) -> Row:
    """SchemaError: the value does not fit."""
    parts = buffers_of({name: column}, {name: [value]})[0][0]
    return tuple(None if one is None else np.array(one) for one in parts)


def bytes_in(row: Row) -> int:
    return sum(part.nbytes for part in row if part is not None)


def join_rows(column: Column, rows: Sequence[Row]) -> ColumnData:
    """One or more of them, as a column."""
    values, *ends = zip(*rows, strict=True)
    joined: Any = (np.concatenate(values), *(None if one[0] is None else _join_ends(one) for one in ends))
    return column_from(column, joined)


def _join_ends(ends: Sequence[Any]) -> Any:
    joined, total = [np.zeros(1, np.int64)], 0
    for one in ends:
        joined.append(one[1:] + total)
        total += int(one[-1])
    return np.concatenate(joined)
