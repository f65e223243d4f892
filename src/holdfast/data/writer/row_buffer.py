"""Buffers samples that are appended one by one: each is checked as it comes, and many are written at a time.

Values of a column without a fixed shape are copied in one canonical form. As given, values that fit one by one need not
fit together: an empty list is an array of another type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ...errors import SchemaError
from ...schema import Bytes, Column, Value
from ..formats.columns import ColumnData, Misfit, cast, dtype_of, join_offsets
from ..formats.row_buffers import as_array, buffers_of, column_from

Row = tuple[Any, ...]  # its values, and the offsets of each level: arrays, or None


def row_of(name: str, column: Column, value: Any) -> Row:
    """Copies one value in the canonical form. SchemaError: the value does not fit."""
    parts = buffers_of({name: column}, {name: [value]})[0][0]
    return tuple(None if one is None else np.array(one) for one in parts)


def bytes_in(row: Row) -> int:
    return sum(part.nbytes for part in row if part is not None)


def join_rows(column: Column, rows: Sequence[Row]) -> ColumnData:
    """Joins one or more rows as a column."""
    values, *ends = zip(*rows, strict=True)
    joined: Any = (np.concatenate(values), *(None if one[0] is None else join_offsets(one) for one in ends))
    return column_from(column, joined)


_MAX_ROWS = 512
_MAX_BYTES = 1 << 21


class RowBuffer:
    """`add` samples until it returns that it is full; `take` them as columns."""

    def __init__(self, schema: dict[str, Column]) -> None:
        self._schema = schema
        self._columns = {name: _collector(name, column) for name, column in schema.items()}
        self.rows = 0
        self._bytes = 0

    def add(self, sample: Mapping[str, Any]) -> bool:
        """Adds a sample. Returns whether the buffer is full. SchemaError: it does not fit, and was not added."""
        if sample.keys() != self._schema.keys():
            buffers_of(self._schema, {name: [value] for name, value in sample.items()})  # raises an error
        for name, value in sample.items():
            self._bytes += self._columns[name].put(self.rows, value)
        self.rows += 1
        return self.rows == _MAX_ROWS or self._bytes >= _MAX_BYTES

    def take(self) -> dict[str, Any]:
        rows, self.rows, self._bytes = self.rows, 0, 0
        return {name: column.take(rows) for name, column in self._columns.items()}


class _FixedShapeColumn:
    """Numbers of a fixed shape, copied into one array: callers reuse theirs."""

    def __init__(self, name: str, column: Value) -> None:
        self._name, self._column = name, column
        self._dtype = dtype_of(column)
        self._kinds = "iubf" if self._dtype.kind == "f" else "iub"
        self._row_bytes = self._dtype.itemsize * column.count
        self._rows: Any = None  # allocated with the first row: many parts are only asked whether they are done

    def put(self, row: int, value: Any) -> int:
        array = value if isinstance(value, np.ndarray) else self._array(value)
        if array.shape != self._column.shape or array.dtype.kind not in self._kinds:
            self._raise_mismatch(array)
        if self._rows is None:
            self._rows = self._make()
        self._rows[row] = array if array.dtype == self._dtype else self._cast(array)
        return self._row_bytes

    def _cast(self, array: Any) -> Any:
        try:
            return cast(array, self._dtype)
        except Misfit as error:
            raise SchemaError(f"column {self._name!r}: expected {self._column!r}, {error}") from None

    def _make(self) -> Any:
        """Allocates as many rows as the buffer holds when it is full."""
        rows = min(_MAX_ROWS, -(-_MAX_BYTES // self._row_bytes))
        return np.empty((rows, *self._column.shape), self._dtype)

    def _array(self, value: Any) -> Any:
        try:
            return as_array(value, self._dtype)
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise SchemaError(f"column {self._name!r}: expected {self._column!r}, {error}") from None

    def _raise_mismatch(self, array: Any) -> NoReturn:
        buffers_of({self._name: self._column}, {self._name: array[None]})  # raises an error that says why
        text = f"column {self._name!r}: expected {self._column!r}, got {array.dtype} of the shape {array.shape}"
        raise SchemaError(text)

    def take(self, rows: int) -> Any:
        return self._rows[:rows]


class _BytesColumn:
    """Byte strings, one per row."""

    def __init__(self, name: str, column: Column) -> None:
        self._name, self._column = name, column
        self._rows: list[bytes] = []

    def put(self, row: int, value: Any) -> int:
        del self._rows[row:]  # of a sample that did not fit in a later column
        data = self._bytes(value)
        self._rows.append(data)
        return len(data)

    def _bytes(self, value: Any) -> bytes:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        try:
            return value.encode() if isinstance(value, str) else row_of(self._name, self._column, value)[0].tobytes()
        except UnicodeEncodeError as error:
            raise SchemaError(f"column {self._name!r}: expected {self._column!r}, {error}") from None

    def take(self, rows: int) -> Any:
        taken, self._rows = self._rows[:rows], []
        return taken


class _VariableColumn:
    """Other columns without a fixed shape."""

    def __init__(self, name: str, column: Column) -> None:
        self._name, self._column = name, column
        self._rows: list[Row] = []

    def put(self, row: int, value: Any) -> int:
        del self._rows[row:]
        self._rows.append(row_of(self._name, self._column, value))
        return bytes_in(self._rows[-1])

    def take(self, rows: int) -> Any:
        taken, self._rows = self._rows[:rows], []
        return join_rows(self._column, taken)


def _collector(name: str, column: Column) -> _FixedShapeColumn | _BytesColumn | _VariableColumn:
    if isinstance(column, Bytes):
        return _VariableColumn(name, column) if column.shape else _BytesColumn(name, column)
    return _FixedShapeColumn(name, column) if isinstance(column, Value) else _VariableColumn(name, column)
