"""Checks rows against a schema, and converts between columns and their buffers, for every format.

A column's buffers are its values, the ends of its strings, and those of its inner and outer lists, None where it has
none: the layout of the codec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..._native import codec
from ..._util.text import names_there
from ...errors import SchemaError
from ...schema import Bytes, Column, Ragged, Schema, Value
from .columns import BytesColumn, ColumnData, Misfit, RaggedColumn, cast, dtype_of


def value_of(column: Column) -> Value:
    return column.value if isinstance(column, Ragged) else column


# ---- columns to buffers


def buffers_of(schema: Schema, columns: Mapping[str, Any]) -> tuple[list[codec.ColumnBuffers], int]:
    """Returns a batch's columns in the codec's layout, each in its own dtype, and the number of rows.

    Arrays of the right dtype are not copied. Integers are checked, floats are rounded to the column's dtype.
    """
    missing, unknown = sorted(set(schema) - set(columns)), sorted(set(columns) - set(schema))
    if missing or unknown:
        wrong = [f"missing {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
        there = names_there(unknown[0] if unknown else "", list(schema), "The schema has")
        raise SchemaError(f"the columns do not fit the schema: {'; '.join(wrong)}. {there}")
    buffers, counts = [], {}
    for name, column in schema.items():
        try:
            parts, counts[name] = _buffers_of_column(column, columns[name])
        except Misfit as error:
            raise SchemaError(f"column {name!r}: expected {column!r}, {error} (row {error.row:,} of these)") from None
        # RuntimeError: a torch tensor that requires grad
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise SchemaError(f"column {name!r}: expected {column!r}, {error}") from None
        buffers.append(parts)
    if len(set(counts.values())) > 1:
        raise SchemaError(f"the columns have different numbers of rows: {counts}")
    return buffers, next(iter(counts.values()))


def _buffers_of_column(column: Column, data: Any) -> tuple[codec.ColumnBuffers, int]:
    if not isinstance(column, Ragged):
        (values, ends), rows = _values_of(column, data)
        return (values, ends, None, None), rows
    data, splits = _split(data)
    steps = None
    try:
        if isinstance(column.inner, Ragged):
            data, steps = _split(data)
        (values, ends), _ = _values_of(column.value, data)
    except Misfit as error:
        raise (error if steps is None else error.of_list(steps)).of_list(splits) from None
    return (values, ends, steps, splits), len(splits) - 1


def _split(data: Any) -> tuple[Any, Any]:
    """Joins a list of lists; returns the items and where each list ends."""
    if isinstance(data, RaggedColumn):
        return data.values, np.ascontiguousarray(data.row_splits)
    rows = list(data)
    for row in rows:
        if isinstance(row, (str, bytes)) or not hasattr(row, "__len__"):
            raise TypeError(f"expected a list, got {row!r}")
    splits = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=splits[1:])
    full = [row for row in rows if len(row)]  # the type and shape of an empty one mean nothing
    if full and all(isinstance(row, np.ndarray) for row in full):
        return np.concatenate(full), splits
    return [item for row in rows for item in row], splits


def _values_of(value: Value, data: Any) -> tuple[tuple[Any, Any], int]:
    if isinstance(value, Bytes):
        return _bytes_of(value, data)
    dtype = dtype_of(value)
    array = as_array(data, dtype)
    if array.size == 0:
        array = array.astype(dtype).reshape(0, *value.shape)
    if array.dtype.kind not in "iubf" or (dtype.kind != "f" and array.dtype.kind == "f"):
        raise TypeError(f"got {array.dtype} values")
    if array.shape[1:] != value.shape:
        raise ValueError(f"got items of shape {array.shape[1:]}")
    return (np.ascontiguousarray(cast(array, dtype)), None), len(array)


def as_array(data: Any, dtype: np.dtype[Any]) -> Any:
    """Returns the data as an array of their own dtype. numpy may turn Python integers beyond int64 into floats."""
    array = np.asarray(data)
    if dtype == np.uint64 and array.dtype.kind in "fO" and not hasattr(data, "dtype"):
        objects = np.array(data, object)
        if all(isinstance(one, int) for one in objects.reshape(-1)):
            return objects.astype(np.uint64)
    return array


def _bytes_of(value: Bytes, data: Any) -> tuple[tuple[Any, Any], int]:
    if isinstance(data, BytesColumn):
        if (data.per_item or 1) != value.count:
            raise ValueError(f"got {data.per_item or 1} strings a row")
        return (data.values, np.ascontiguousarray(data.offsets)), len(data)
    rows = list(data)
    items = rows
    for _ in value.shape:
        items = [item for row in items for item in row]
    if len(items) != len(rows) * value.count:
        raise ValueError("got rows of another shape")
    texts = items if set(map(type, items)) <= {bytes} else [_as_bytes(item) for item in items]
    ends = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=ends[1:])
    return (np.frombuffer(b"".join(texts), np.uint8), ends), len(rows)


def _as_bytes(item: Any) -> bytes | bytearray:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, (bytes, bytearray)):
        return item
    if isinstance(item, memoryview):
        return item.tobytes()
    raise TypeError(f"got {type(item).__name__}, not bytes")


# ---- buffers to columns

Maker = Callable[[codec.ColumnBuffers, Any], ColumnData]


def column_from(column: Column, parts: codec.ColumnBuffers) -> ColumnData:
    """Makes a column from buffers in the column's own dtype, as buffers_of returns them."""
    return column_maker(column, dtype_of(value_of(column)))(parts, None)


def column_maker(column: Column, dtype: np.dtype[Any]) -> Maker:
    """Returns a function that makes a column from buffers whose values have this dtype."""
    value = value_of(column)
    make = _bytes_maker(value) if isinstance(value, Bytes) else _array_maker(value, dtype)
    if not isinstance(column, Ragged):
        return make
    frombuffer, int64 = np.frombuffer, np.dtype(np.int64)
    if column.depth == codec.RAGGED:
        return lambda parts, buffer: RaggedColumn(make(parts, buffer), frombuffer(parts[3], int64))
    return lambda parts, buffer: RaggedColumn(
        RaggedColumn(make(parts, buffer), frombuffer(parts[2], int64)), frombuffer(parts[3], int64)
    )


def _array_maker(value: Value, dtype: np.dtype[Any]) -> Maker:
    frombuffer, shape = np.frombuffer, (-1, *value.shape)
    if not value.shape:
        return lambda parts, _: frombuffer(parts[0], dtype)
    return lambda parts, _: frombuffer(parts[0], dtype).reshape(shape)


def _bytes_maker(value: Bytes) -> Maker:
    frombuffer, uint8, int64 = np.frombuffer, np.dtype(np.uint8), np.dtype(np.int64)
    per_item = value.count if value.shape else 0
    return lambda parts, _: BytesColumn(frombuffer(parts[0], uint8), frombuffer(parts[1], int64), per_item)
