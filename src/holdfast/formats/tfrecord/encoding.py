"""Between a schema's columns and the codec's buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..._base.text import names_there
from ..._native import codec
from ...errors import SchemaError
from ...schema import Bytes, Column, Float32, Int64, Ragged, Schema, Value
from ..columns import Batch, BytesColumn, ColumnData, LentBytesColumn, RaggedColumn

KINDS: dict[type[Value], int] = {Bytes: codec.BYTES, Float32: codec.FLOAT32, Int64: codec.INT64}
KIND_NAMES = {codec.NONE: "nothing", codec.BYTES: "bytes", codec.FLOAT32: "floats", codec.INT64: "integers"}
DTYPES: dict[int, np.dtype[Any]] = {
    codec.BYTES: np.dtype(np.uint8),
    codec.FLOAT32: np.dtype(np.float32),
    codec.INT64: np.dtype(np.int64),
}


def value_of(column: Column) -> Value:
    return column.value if isinstance(column, Ragged) else column


def kind_of(column: Column) -> int:
    return KINDS[type(value_of(column))]


def lendable(column: Column) -> bool:
    """Whether a column's values can stay in the buffer they were read into."""
    return isinstance(column, Bytes) and not column.shape and column.default is None


def fields_of(schema: Schema, lend: bool = False) -> list[codec.Field]:
    """The schema in the codec's terms. With `lend`, byte strings stay where they are, as far as they can."""
    fields: list[codec.Field] = []
    for name, column in schema.items():
        key = (name if column.key is None else column.key).encode()
        value = value_of(column)
        depth = column.depth if isinstance(column, Ragged) else codec.FIXED
        default = None if isinstance(column, Ragged) else _default_of(name, column)
        kind = codec.LENT_BYTES if lend and lendable(column) else kind_of(column)
        fields.append((key, kind, depth, value.count, default))
    return fields


def _default_of(name: str, value: Value) -> bytes | list[bytes] | None:
    if value.default is None:
        return None
    if isinstance(value, Bytes):
        given = value.default if isinstance(value.default, (list, tuple)) else [value.default] * value.count
        texts = [item.encode() if isinstance(item, str) else item for item in given]
        if len(texts) != value.count or not all(isinstance(item, (bytes, bytearray)) for item in texts):
            raise SchemaError(f"column {name!r}: wanted a default of {value.count} bytes, got {value.default!r}")
        return [bytes(item) for item in texts]
    dtype = DTYPES[KINDS[type(value)]]
    try:
        array = np.asarray(value.default)
        if not np.can_cast(array.dtype, dtype, "same_kind") and array.dtype.kind not in "iub":
            raise ValueError(f"{array.dtype} is not {dtype}")
        with np.errstate(over="ignore"):
            cast = array.astype(dtype)
        if not np.array_equal(np.isfinite(cast), np.isfinite(array)) or (dtype.kind == "i" and (cast != array).any()):
            raise ValueError("it is out of range")
        return np.broadcast_to(cast, value.shape).tobytes()
    except (ValueError, TypeError, OverflowError) as error:
        raise SchemaError(f"column {name!r}: the default {value.default!r} does not fit {value!r}: {error}") from None


# ---- reading: buffers -> columns


Maker = Callable[[codec.ColumnBuffers, Any], ColumnData]


def batch_maker(schema: Schema, lend: bool = False) -> Callable[[Sequence[codec.ColumnBuffers], Any], Batch]:
    """Makes the columns the schema names of what Decoder.take gave, and of the buffer that lent bytes are in.

    Everything that follows from the schema is settled once: this runs for every few hundred rows.
    """
    makers = [(name, _lent_maker if lend and lendable(c) else _column_maker(c)) for name, c in schema.items()]
    return lambda taken, lent: {name: make(parts, lent) for (name, make), parts in zip(makers, taken, strict=True)}


def _lent_maker(parts: codec.ColumnBuffers, lent: Any) -> ColumnData:
    return LentBytesColumn(np.frombuffer(lent, np.uint8), np.frombuffer(parts[0], np.int64).reshape(-1, 2))


def _column_maker(column: Column) -> Maker:
    value = value_of(column)
    make = _bytes_maker(value) if isinstance(value, Bytes) else _array_maker(value)
    if not isinstance(column, Ragged):
        return make
    frombuffer, int64 = np.frombuffer, np.dtype(np.int64)
    if column.depth == codec.RAGGED:
        return lambda parts, lent: RaggedColumn(make(parts, lent), frombuffer(parts[3], int64))
    return lambda parts, lent: RaggedColumn(
        RaggedColumn(make(parts, lent), frombuffer(parts[2], int64)), frombuffer(parts[3], int64)
    )


def _array_maker(value: Value) -> Maker:
    frombuffer, dtype, shape = np.frombuffer, DTYPES[KINDS[type(value)]], (-1, *value.shape)
    if not value.shape:
        return lambda parts, _: frombuffer(parts[0], dtype)
    return lambda parts, _: frombuffer(parts[0], dtype).reshape(shape)


def _bytes_maker(value: Bytes) -> Maker:
    frombuffer, uint8, int64 = np.frombuffer, DTYPES[codec.BYTES], np.dtype(np.int64)
    per_item = value.count if value.shape else 0
    return lambda parts, _: BytesColumn(frombuffer(parts[0], uint8), frombuffer(parts[1], int64), per_item)


# ---- writing: what people have -> buffers


def buffers_of(schema: Schema, columns: Mapping[str, Any]) -> tuple[list[codec.ColumnBuffers], int]:
    """A batch's columns in the codec's layout, and how many rows it has. Arrays that fit are not copied."""
    missing, unknown = sorted(set(schema) - set(columns)), sorted(set(columns) - set(schema))
    if missing or unknown:
        wrong = [f"missing {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
        there = names_there(unknown[0] if unknown else "", list(schema), "The schema has")
        raise SchemaError(f"the columns do not fit the schema: {'; '.join(wrong)}. {there}")
    buffers, counts = [], {}
    for name, column in schema.items():
        try:
            parts, counts[name] = _buffers_of_column(column, columns[name])
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:  # the last: a tensor with a gradient
            raise SchemaError(f"column {name!r}: wanted {column!r}, {error}") from None
        buffers.append(parts)
    if len(set(counts.values())) > 1:
        raise SchemaError(f"the columns have different numbers of rows: {counts}")
    return buffers, next(iter(counts.values()))


def _buffers_of_column(column: Column, data: Any) -> tuple[codec.ColumnBuffers, int]:
    if not isinstance(column, Ragged):
        (values, ends), rows = _values_of(column, data)
        return (values, ends, None, None), rows
    data, splits = _split(data)
    if not isinstance(column.inner, Ragged):
        (values, ends), _ = _values_of(column.inner, data)
        return (values, ends, None, splits), len(splits) - 1
    data, steps = _split(data)
    (values, ends), _ = _values_of(column.value, data)
    return (values, ends, steps, splits), len(splits) - 1


def _split(data: Any) -> tuple[Any, Any]:
    """A list of lists -> everything joined, and where each list ends."""
    if isinstance(data, RaggedColumn):
        return data.values, np.ascontiguousarray(data.row_splits)
    rows = list(data)
    for row in rows:
        if isinstance(row, (str, bytes)) or not hasattr(row, "__len__"):
            raise TypeError(f"got {row!r} where a list was due")
    splits = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=splits[1:])
    full = [row for row in rows if len(row)]  # an empty one has a type and a shape that say nothing
    if full and all(isinstance(row, np.ndarray) for row in full):
        return np.concatenate(full), splits
    return [item for row in rows for item in row], splits


def _values_of(value: Value, data: Any) -> tuple[tuple[Any, Any], int]:
    if isinstance(value, Bytes):
        return _bytes_of(value, data)
    dtype = DTYPES[KINDS[type(value)]]
    array = np.asarray(data)
    if array.size == 0:
        array = array.astype(dtype).reshape(0, *value.shape)
    if array.dtype.kind not in "iubf" or (dtype.kind == "i" and array.dtype.kind == "f"):
        raise TypeError(f"got {array.dtype} values")
    if array.shape[1:] != value.shape:
        raise ValueError(f"got items of shape {array.shape[1:]}")
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max and dtype.kind == "i":
        raise OverflowError("got a number above 2^63 - 1")
    return (np.ascontiguousarray(array, dtype), None), len(array)


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
    raise TypeError(f"got {type(item).__name__} where bytes were due")
