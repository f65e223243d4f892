"""Samples given one by one: each is checked as it comes, and many are handed on at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from ..errors import SchemaError
from ..schema import Bytes, Column, Float32, Value
from .fit import checked

_MOST_ROWS = 512
_MOST_BYTES = 1 << 21


class Stage:
    """`add` samples until it says that it is full; `take` them as columns."""

    def __init__(self, schema: dict[str, Column]) -> None:
        self._schema = schema
        self._columns = {name: _maker(name, column) for name, column in schema.items()}
        self.rows = 0
        self._bytes = 0

    def add(self, sample: Mapping[str, Any]) -> bool:
        """Whether it is full now. SchemaError: the sample does not fit, and is not in."""
        if sample.keys() != self._schema.keys():
            checked(self._schema, {name: [value] for name, value in sample.items()})  # says which
        for name, value in sample.items():
            self._bytes += self._columns[name].put(self.rows, value)
        self.rows += 1
        return self.rows == _MOST_ROWS or self._bytes >= _MOST_BYTES

    def take(self) -> dict[str, Any]:
        rows, self.rows, self._bytes = self.rows, 0, 0
        return {name: column.take(rows) for name, column in self._columns.items()}


class _Numbers:
    """Numbers of a fixed shape go straight into an array: people fill one array of theirs again and again."""

    def __init__(self, name: str, column: Value) -> None:
        self._name, self._column = name, column
        self._is_float = isinstance(column, Float32)
        self._rows = np.empty((_MOST_ROWS, *column.shape), np.float32 if self._is_float else np.int64)
        self._row_bytes = self._rows.itemsize * column.count

    def put(self, row: int, value: Any) -> int:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        kind = array.dtype.kind
        if array.shape != self._column.shape or kind not in ("iubf" if self._is_float else "iub"):
            self._refuse(array)
        if (kind == "f" and array.dtype.itemsize > 4) or (kind == "u" and array.dtype.itemsize == 8):
            checked({self._name: self._column}, {self._name: array[None]})  # it may be too large a number
        self._rows[row] = array
        return self._row_bytes

    def _refuse(self, array: Any) -> NoReturn:
        checked({self._name: self._column}, {self._name: array[None]})  # says why
        text = f"column {self._name!r}: wanted {self._column!r}, got {array.dtype} of the shape {array.shape}"
        raise SchemaError(text)

    def take(self, rows: int) -> Any:
        return self._rows[:rows]


class _Others:
    """What has no fixed size."""

    def __init__(self, name: str, column: Column) -> None:
        self._schema = {name: column}
        self._name = name
        self._is_bytes = isinstance(column, Bytes) and not column.shape
        self._rows: list[Any] = []

    def put(self, row: int, value: Any) -> int:
        del self._rows[row:]  # of a sample that did not fit in a later column
        if self._is_bytes and isinstance(value, (bytes, bytearray, memoryview, str)):
            data = value.encode() if isinstance(value, str) else bytes(value)
            self._rows.append(data)
            return len(data)
        buffers, _ = checked(self._schema, {self._name: [value]})
        self._rows.append(_copied(value))
        return sum(getattr(one, "nbytes", 0) for one in buffers[0] if one is not None)

    def take(self, rows: int) -> Any:
        taken, self._rows = self._rows[:rows], []
        return taken


def _maker(name: str, column: Column) -> _Numbers | _Others:
    is_number = isinstance(column, Value) and not isinstance(column, Bytes)
    return _Numbers(name, column) if is_number else _Others(name, column)  # type: ignore[arg-type]


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return [_copied(one) for one in value] if isinstance(value, (list, tuple)) else value
