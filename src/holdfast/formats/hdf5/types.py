"""Between HDF5's types and a schema's columns."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ...errors import SchemaError
from ...schema import Bytes, Column, Float32, Int64, Ragged, Value
from ..columns import BytesColumn, ColumnData, RaggedColumn
from ..gather import join_bytes

_KINDS: dict[str, type[Value]] = {"i": Int64, "u": Int64, "b": Int64, "f": Float32, "S": Bytes}
_INT64_MOST = np.iinfo(np.int64).max


class Unfit(ValueError):
    """A dataset's type or values are not what a column can hold."""


class Damaged(Unfit):
    """Parts of a file contradict each other, so that no column could hold what it says."""


def column_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Column:
    """The column a dataset of this type, and of this shape behind the first axis, is read as."""
    inner = _listed(dtype)
    if inner is not None and not shape and _kind(inner) in (Int64, Float32):
        return Ragged(_KINDS[inner.kind]())
    kind = None if inner is not None else _kind(dtype)
    if kind is None:
        raise Unfit(f"has the type {describe(dtype)}, which no column can hold")
    try:
        return kind(*shape)
    except SchemaError:
        raise Unfit(f"has rows of the shape {shape}, which hold nothing") from None


def _listed(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """What a variable-length list holds; None for all that is none. To h5py a string is one, too."""
    inner = h5py.check_vlen_dtype(dtype)
    return inner if isinstance(inner, np.dtype) else None


def _kind(dtype: np.dtype[Any]) -> type[Value] | None:
    if h5py.check_string_dtype(dtype) is not None:
        return Bytes
    kind = _KINDS.get(dtype.kind)
    return None if kind is Float32 and dtype.itemsize > 8 else kind


def describe(dtype: np.dtype[Any]) -> str:
    inner = _listed(dtype)
    if inner is not None:
        return f"list of {inner}"
    if h5py.check_string_dtype(dtype) is not None:
        return "string"
    if h5py.check_ref_dtype(dtype) is not None:
        return "reference"
    return f"compound {dtype}" if dtype.names else str(dtype)


def check_fit(column: Column, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Whether a dataset can be read as this column; Unfit says what was wanted and what is there."""
    if _is_raw(column, dtype):
        return
    found = column_of(dtype, shape)
    want, got = _value(column), _value(found)
    # A whole number is a float, too: a metric of a log may have begun as an int.
    is_same = type(want) is type(got) or (isinstance(want, Float32) and isinstance(got, Int64))
    if isinstance(column, Ragged) != isinstance(found, Ragged) or not is_same:
        raise Unfit(f"holds {found!r}, wanted {column!r}")
    if isinstance(column, Ragged):
        if column.depth > 1:
            raise Unfit(f"holds {found!r}, wanted {column!r}: lists of lists cannot be read")
    elif want.count != got.count:
        raise Unfit(f"holds {found!r}, wanted {column!r}: {want.count:,} values a row, got {got.count:,}")


def _value(column: Column) -> Value:
    return column.value if isinstance(column, Ragged) else column


def _is_raw(column: Column, dtype: np.dtype[Any]) -> bool:
    """Images and the like are often kept as uint8: Bytes() gives a row's bytes as they are."""
    inner = _listed(dtype)
    return isinstance(column, Bytes) and not column.shape and (dtype if inner is None else inner) == np.uint8


def as_column(raw: npt.NDArray[Any], column: Column) -> ColumnData:
    """What h5py read, as the column holds it. Arrays that fit are not copied."""
    if isinstance(column, Ragged):
        return _as_lists(raw, column)
    if not isinstance(column, Bytes):
        return _as_numbers(raw, column).reshape(len(raw), *column.shape)
    if raw.dtype == np.uint8:
        each = raw[0].size if len(raw) else 0
        return BytesColumn(np.ascontiguousarray(raw).reshape(-1), np.arange(len(raw) + 1, dtype=np.int64) * each)
    return join_bytes([_bytes(item) for item in raw.reshape(-1)], column.count if column.shape else 0)


def _bytes(item: Any) -> bytes:
    if isinstance(item, np.ndarray):
        return item.tobytes()
    return item.encode("utf-8", "surrogateescape") if isinstance(item, str) else bytes(item)


def _as_lists(raw: npt.NDArray[Any], column: Ragged) -> RaggedColumn:
    value = column.value
    splits = np.zeros(len(raw) + 1, np.int64)
    sizes = np.fromiter((len(item) for item in raw), np.int64, len(raw))
    wrong = np.flatnonzero(sizes % value.count)
    if len(wrong):
        at = int(wrong[0])
        raise Unfit(f"wanted lists of a multiple of {value.count} values, got {sizes[at]:,} (row {at:,} of these)")
    np.cumsum(sizes // value.count, out=splits[1:])
    parts = [np.asarray(item) for item in raw if len(item)]
    dtype = np.int64 if isinstance(value, Int64) else np.float32
    joined = _as_numbers(np.concatenate(parts), value) if parts else np.zeros(0, dtype)
    return RaggedColumn(joined.reshape(-1, *value.shape), splits)


def _as_numbers(raw: npt.NDArray[Any], value: Value) -> npt.NDArray[Any]:
    if isinstance(value, Int64):
        if raw.dtype.kind == "u" and raw.dtype.itemsize == 8 and raw.size and int(raw.max()) > _INT64_MOST:
            raise Unfit(f"has {int(raw.max()):,}, which is more than Int64 can hold")
        return raw.astype(np.int64, copy=False)
    with np.errstate(over="ignore"):
        cast = raw.astype(np.float32, copy=False)
    if raw.dtype.itemsize > 4 and not np.array_equal(np.isfinite(cast), np.isfinite(raw)):
        raise Unfit("has values that are more than Float32 can hold")
    return cast
