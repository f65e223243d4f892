"""Converts between the columns of a schema and the buffers of the codec.

A TFRecord has 64-bit integers, 32-bit floats and byte strings. Numbers of other dtypes are stored as one of the first
two, and are cast back when they are read with the same schema; a value that would change on the way is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...._native import codec
from ...._util.text import names_there
from ....errors import SchemaError
from ....schema import Bytes, Column, Ragged, Schema, Value
from ..columns import (
    Batch,
    BytesColumn,
    ColumnData,
    Misfit,
    RaggedColumn,
    ZeroCopyBytesColumn,
    cast,
    cast_column,
    dtype_of,
)
from ..gather import default_numbers

KIND_NAMES = {codec.NONE: "nothing", codec.BYTES: "bytes", codec.FLOAT32: "floats", codec.INT64: "integers"}
DTYPES: dict[int, np.dtype[Any]] = {
    codec.BYTES: np.dtype(np.uint8),
    codec.FLOAT32: np.dtype(np.float32),
    codec.INT64: np.dtype(np.int64),
}


def value_of(column: Column) -> Value:
    return column.value if isinstance(column, Ragged) else column


def kind_of(column: Column) -> int:
    value = value_of(column)
    if isinstance(value, Bytes):
        return codec.BYTES
    return codec.FLOAT32 if dtype_of(value).kind == "f" else codec.INT64


def stored_as(column: Column) -> np.dtype[Any]:
    """Returns the dtype of a column's values in a TFRecord."""
    return DTYPES[kind_of(column)]


def is_cast(column: Column) -> bool:
    """Tells whether a TFRecord stores the column's values in another dtype."""
    return stored_as(column) != dtype_of(value_of(column))


def can_borrow(column: Column) -> bool:
    """Tells whether a column's values can stay in the buffer that they were read into."""
    return isinstance(column, Bytes) and not column.shape and column.default is None


def fields_of(schema: Schema, borrow: bool = False) -> list[codec.Field]:
    """Returns the schema in the codec's terms. With `borrow`, byte strings stay in the input buffer where possible."""
    fields: list[codec.Field] = []
    for name, column in schema.items():
        key = (name if column.key is None else column.key).encode()
        value = value_of(column)
        depth = column.depth if isinstance(column, Ragged) else codec.FIXED
        default = None if isinstance(column, Ragged) else _default_of(name, column)
        kind = codec.BORROWED_BYTES if borrow and can_borrow(column) else kind_of(column)
        fields.append((key, kind, depth, value.count, default))
    return fields


def _default_of(name: str, value: Value) -> bytes | list[bytes] | None:
    if value.default is None:
        return None
    if isinstance(value, Bytes):
        given = value.default if isinstance(value.default, (list, tuple)) else [value.default] * value.count
        texts = [item.encode() if isinstance(item, str) else item for item in given]
        if len(texts) != value.count or not all(isinstance(item, (bytes, bytearray)) for item in texts):
            raise SchemaError(f"column {name!r}: expected a default of {value.count} bytes, got {value.default!r}")
        return [bytes(item) for item in texts]
    try:
        return cast(default_numbers(name, value), stored_as(value), exact=True).tobytes()
    except Misfit as error:
        raise SchemaError(f"column {name!r}: the default {value.default!r} does not fit a TFRecord: {error}") from None


# ---- reading: buffers to columns

Maker = Callable[[codec.ColumnBuffers, Any], ColumnData]


def batch_maker(schema: Schema, borrow: bool = False) -> Callable[[Sequence[codec.ColumnBuffers], Any], Batch]:
    """Returns a function that makes columns from the result of Decoder.take and the buffer with the borrowed bytes.

    It runs for every few hundred rows, so everything that follows from the schema is computed here, once.
    """
    makers = [(name, _reader_of(name, c, borrow)) for name, c in schema.items()]
    return lambda taken, buffer: {name: make(parts, buffer) for (name, make), parts in zip(makers, taken, strict=True)}


def _reader_of(name: str, column: Column, borrow: bool) -> Maker:
    if borrow and can_borrow(column):
        return _borrowed_maker
    make, dtype = _column_maker(column, stored_as(column)), dtype_of(value_of(column))
    if not is_cast(column):
        return make

    def make_and_cast(parts: codec.ColumnBuffers, buffer: Any) -> ColumnData:
        try:
            return cast_column(make(parts, buffer), dtype, exact=True)
        except Misfit as error:
            raise Misfit(error.row, f"{error.what}, in column {name!r}") from None

    return make_and_cast


def column_from(column: Column, parts: codec.ColumnBuffers) -> ColumnData:
    """Makes a column from buffers in the column's own dtype, as buffers_of returns them."""
    return _column_maker(column, dtype_of(value_of(column)))(parts, None)


def _borrowed_maker(parts: codec.ColumnBuffers, buffer: Any) -> ColumnData:
    return ZeroCopyBytesColumn(np.frombuffer(buffer, np.uint8), np.frombuffer(parts[0], np.int64).reshape(-1, 2))


def _column_maker(column: Column, dtype: np.dtype[Any]) -> Maker:
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
    frombuffer, uint8, int64 = np.frombuffer, DTYPES[codec.BYTES], np.dtype(np.int64)
    per_item = value.count if value.shape else 0
    return lambda parts, _: BytesColumn(frombuffer(parts[0], uint8), frombuffer(parts[1], int64), per_item)


# ---- writing: the user's columns to buffers


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


# ---- writing: buffers to the dtypes of a TFRecord


def stored_buffers(schema: Schema, buffers: list[codec.ColumnBuffers], first: int) -> list[codec.ColumnBuffers]:
    """Casts the buffers to the dtypes of a TFRecord. `first` is the number of their first sample.

    Raises a SchemaError for a value that would change when it is read again.
    """
    found = list(buffers)
    for number, (name, column) in enumerate(schema.items()):
        if is_cast(column):
            values, ends, steps, splits = buffers[number]
            count = value_of(column).count
            try:
                stored = cast(np.asarray(values).reshape(-1, count), stored_as(column), exact=True)
            except Misfit as error:
                for outer in (steps, splits):
                    error = error if outer is None else error.of_list(outer)
                where, dtype = f"column {name!r}, sample {first + error.row:,}", dtype_of(value_of(column))
                advice = ". Float32 in the schema rounds it, and so does cast in a conversion" * (dtype.kind == "f")
                raise SchemaError(f"{where}: {error}, and a TFRecord has no {dtype}{advice}") from None
            found[number] = (stored.reshape(-1), ends, steps, splits)
    return found
