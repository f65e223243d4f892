"""Converts between the columns of a schema and the buffers of the codec.

A TFRecord has 64-bit integers, 32-bit floats and byte strings. Numbers of other dtypes are stored as one of the first
two, and are cast back when they are read with the same schema; a value that would change on the way is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...._native import codec
from ....errors import SchemaError
from ....schema import Bytes, Column, Ragged, Schema, Value
from ..columns import Batch, ColumnData, Misfit, ZeroCopyBytesColumn, cast, cast_column, dtype_of
from ..gather import default_numbers
from ..row_buffers import Maker, column_maker, value_of

KIND_NAMES = {codec.NONE: "nothing", codec.BYTES: "bytes", codec.FLOAT32: "floats", codec.INT64: "integers"}
DTYPES: dict[int, np.dtype[Any]] = {
    codec.BYTES: np.dtype(np.uint8),
    codec.FLOAT32: np.dtype(np.float32),
    codec.INT64: np.dtype(np.int64),
}


def kind_of(column: Column) -> int:
    value = value_of(column)
    if isinstance(value, Bytes):
        return codec.BYTES
    return codec.FLOAT32 if dtype_of(value).kind == "f" else codec.INT64


def stored_as(column: Column) -> np.dtype[Any]:
    """Returns the dtype of a column's values in a TFRecord."""
    return DTYPES[kind_of(column)]


def is_cast(column: Column) -> bool:
    """Returns whether a TFRecord stores the column's values in another dtype."""
    return stored_as(column) != dtype_of(value_of(column))


def can_borrow(column: Column) -> bool:
    """Returns whether a column's values can stay in the buffer that they were read into."""
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


def batch_maker(schema: Schema, borrow: bool = False) -> Callable[[Sequence[codec.ColumnBuffers], Any], Batch]:
    """Returns a function that makes columns from the result of Decoder.take and the buffer with the borrowed bytes.

    It runs for every few hundred rows, so everything that follows from the schema is computed here, once.
    """
    makers = [(name, _reader_of(name, c, borrow)) for name, c in schema.items()]
    return lambda taken, buffer: {name: make(parts, buffer) for (name, make), parts in zip(makers, taken, strict=True)}


def _reader_of(name: str, column: Column, borrow: bool) -> Maker:
    if borrow and can_borrow(column):
        return _borrowed_maker
    make, dtype = column_maker(column, stored_as(column)), dtype_of(value_of(column))
    if not is_cast(column):
        return make

    def make_and_cast(parts: codec.ColumnBuffers, buffer: Any) -> ColumnData:
        try:
            return cast_column(make(parts, buffer), dtype, exact=True)
        except Misfit as error:
            raise Misfit(error.row, f"{error.what}, in column {name!r}") from None

    return make_and_cast


def _borrowed_maker(parts: codec.ColumnBuffers, buffer: Any) -> ColumnData:
    return ZeroCopyBytesColumn(np.frombuffer(buffer, np.uint8), np.frombuffer(parts[0], np.int64).reshape(-1, 2))


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
