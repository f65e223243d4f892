"""Maps a schema's columns to HDF5 objects and types, and back.

Array    a dataset of its dtype, (rows, *shape), as any reader of HDF5 expects; bool is h5py's enumeration of FALSE and
         TRUE
Bytes    a group: `values`, all strings joined as uint8, and `offsets`, int64: where each string begins, and the end
Ragged   a group: `values`, all items joined, and `row_splits`, int64, in the same way. If the items are strings or
         lists, `values` is such a group itself

The attribute `holdfast` of each group holds its column as JSON, that of the file the schema. HDF5's variable-length
types are not used: their data lie in heaps that no chunk's checksum covers, and cannot be copied as chunks.
"""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ....errors import SchemaError
from ....schema import (
    DTYPES,
    Array,
    Bytes,
    Column,
    Ragged,
    Schema,
    Value,
    column_from_json,
    column_to_json,
    schema_from_json,
    schema_to_json,
)
from ..columns import BytesColumn, ColumnData, Misfit, RaggedColumn, cast_column, dtype_of, is_exact
from ..gather import join_bytes

SCHEMA_ATTRIBUTE = "holdfast"
_MAX_ATTRIBUTE_BYTES = 60_000


class IncompatibleTypeError(ValueError):
    """A dataset's type or values do not fit the column. `row`: which of those read, if it is one."""

    row = 0


class InconsistentFileError(IncompatibleTypeError):
    """Parts of a file contradict each other, so that no column fits."""


def column_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Column:
    """Returns the column that a dataset of this dtype and row shape is read as."""
    inner = _list_dtype(dtype)
    name = (dtype if inner is None else inner).newbyteorder("=").name  # files of either byte order are read
    if inner is not None and not shape and name in DTYPES:
        return Ragged(Array(name))
    try:
        if inner is None and (dtype.kind == "S" or h5py.check_string_dtype(dtype) is not None):
            return Bytes(*shape)
        if inner is None and name in DTYPES:
            return Array(name, *shape)
        raise IncompatibleTypeError(f"has the type {describe(dtype)}, which no column can hold")
    except SchemaError:
        raise IncompatibleTypeError(f"has rows of the shape {shape}, which hold nothing") from None


def _list_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Returns the dtype of a variable-length list's items; None for other types, also for strings."""
    inner = h5py.check_vlen_dtype(dtype)
    return inner if isinstance(inner, np.dtype) else None


def describe(dtype: np.dtype[Any]) -> str:
    inner = _list_dtype(dtype)
    if inner is not None:
        return f"list of {inner}"
    if h5py.check_string_dtype(dtype) is not None:
        return "string"
    if h5py.check_ref_dtype(dtype) is not None:
        return "reference"
    return f"compound {dtype}" if dtype.names else str(dtype)


def check_fit(column: Column, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raises IncompatibleTypeError if a dataset cannot be read as this column.

    Integers can be read as any other integers, and floats as other floats: the column decides. Values that do not fit
    raise when they are read.
    """
    if _is_raw(column, dtype):
        return
    found = column_of(dtype, shape)
    want, got = value_of(column), value_of(found)
    # A logged metric may have begun as an int: float64 may hold it exactly.
    widens = family(got) == "integers" and isinstance(want, Array) and want.dtype == "float64"
    if isinstance(column, Ragged) != isinstance(found, Ragged) or not (widens or family(want) == family(got)):
        raise IncompatibleTypeError(f"holds {found!r}, expected {column!r}")
    if isinstance(column, Ragged):
        if column.depth > 1:
            raise IncompatibleTypeError(f"holds {found!r}, expected {column!r}: lists of lists cannot be read")
    elif want.count != got.count:
        raise IncompatibleTypeError(
            f"holds {found!r}, expected {column!r}: {want.count:,} values per row, got {got.count:,}"
        )


def family(value: Value) -> str:
    """Returns strings, integers or floats: columns of one family can be read as each other."""
    if isinstance(value, Bytes):
        return "strings"
    return "floats" if dtype_of(value).kind == "f" else "integers"


def value_of(column: Column) -> Value:
    return column.value if isinstance(column, Ragged) else column


def in_native_order(raw: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Swaps the bytes of lists where h5py returned them in the other byte order but called them native."""
    inner = _list_dtype(dtype)
    if inner is None or inner.isnative or not _forgets_byte_order():
        return raw
    found = np.empty_like(raw)
    for place, item in np.ndenumerate(raw):
        found[place] = item.byteswap() if isinstance(item, np.ndarray) and item.dtype.isnative else item
    return found


@cache
def _forgets_byte_order() -> bool:
    """Returns whether this h5py reads lists of the other byte order wrongly, as 3.14 does."""
    with h5py.File(io.BytesIO(), "w") as file:
        dataset = file.create_dataset("x", (1,), h5py.vlen_dtype(np.dtype(np.uint16).newbyteorder()))
        dataset[0] = np.array([1], np.dtype(np.uint16).newbyteorder())
        return int(dataset[0][0]) != 1


def _is_raw(column: Column, dtype: np.dtype[Any]) -> bool:
    """Returns whether Bytes() reads the rows of a uint8 dataset as they are: images are often stored so."""
    inner = _list_dtype(dtype)
    return isinstance(column, Bytes) and not column.shape and (dtype if inner is None else inner) == np.uint8


def as_column(raw: npt.NDArray[Any], column: Column) -> ColumnData:
    """Converts what h5py read to the column's type. Arrays that fit are not copied."""
    if isinstance(column, Ragged):
        return _as_lists(raw, column)
    if not isinstance(column, Bytes):
        return in_dtype(raw.reshape(len(raw), *column.shape), column)
    if raw.dtype == np.uint8:
        each = raw[0].size if len(raw) else 0
        return BytesColumn(np.ascontiguousarray(raw).reshape(-1), np.arange(len(raw) + 1, dtype=np.int64) * each)
    return join_bytes([_bytes(item) for item in raw.reshape(-1)], column.count if column.shape else 0)


def _bytes(item: Any) -> bytes:
    if isinstance(item, np.ndarray):
        return item.tobytes()
    return item.encode("utf-8", "surrogateescape") if isinstance(item, str) else bytes(item)


def _as_lists(raw: npt.NDArray[Any], column: Ragged) -> ColumnData:
    value = column.value
    splits = np.zeros(len(raw) + 1, np.int64)
    sizes = np.fromiter((len(item) for item in raw), np.int64, len(raw))
    misfits = np.flatnonzero(sizes % value.count)
    if len(misfits):
        at = int(misfits[0])
        raise IncompatibleTypeError(
            f"expected lists of a multiple of {value.count} values, got {sizes[at]:,} (row {at:,} of these)"
        )
    np.cumsum(sizes // value.count, out=splits[1:])
    parts = [np.asarray(item) for item in raw if len(item)]
    joined: npt.NDArray[Any] = np.concatenate(parts) if parts else np.zeros(0, dtype_of(value))
    return in_dtype(RaggedColumn(joined.reshape(-1, *value.shape), splits), value)


def in_dtype(found: ColumnData, value: Value) -> ColumnData:
    """Casts values to the column's dtype; raises IncompatibleTypeError if one does not fit."""
    try:
        return cast_column(found, dtype_of(value), exact=is_exact(value))
    except Misfit as error:
        unfit = IncompatibleTypeError(f"has {error.what}")
        unfit.row = error.row
        raise unfit from None


def key_of(name: str, column: Column) -> str:
    return name if column.key is None else column.key


def is_packed(column: Column) -> bool:
    """Returns whether a column is a group of values and offsets."""
    return isinstance(column, (Ragged, Bytes))


def check_keys(schema: Schema) -> None:
    """Raises SchemaError if a key is not a valid path in the file, or lies inside of another."""
    keys = {key_of(name, column): name for name, column in schema.items()}
    for key, name in keys.items():
        steps = key.split("/")
        if "\0" in key or any(step in ("", ".", "..") for step in steps):
            raise SchemaError(f"column {name!r}: expected a path such as 'a' or 'train/a' for its dataset, got {key!r}")
        for n in range(1, len(steps)):
            above = keys.get("/".join(steps[:n]))
            if above is not None:
                raise SchemaError(f"column {name!r} would lie inside column {above!r}: rename one of them")


def stored_column(obj: Any) -> Column | None:
    """Returns the column that a group stores; None for any other group."""
    if not isinstance(obj, h5py.Group):
        return None
    content = _read_attribute(obj)
    try:
        return column_from_json(content["column"]) if content else None
    except (SchemaError, KeyError):
        return None


def schema_attribute(schema: Schema) -> str | np.bytes_:
    """Returns the attribute that records a file's schema."""
    return _as_attribute({"version": 1, "schema": schema_to_json(schema)})


def column_attribute(column: Column) -> str | np.bytes_:
    """Returns the attribute that records a group's column."""
    return _as_attribute({"version": 1, "column": column_to_json(column)})


def _as_attribute(content: dict[str, Any]) -> str | np.bytes_:
    """Encodes as a string of fixed length, which lies in the object header, under the header's checksum; a variable one
    lies in a heap without, in which the library can loop forever if it is corrupt. A header has room for 64 kB."""
    text = json.dumps(content)
    return np.bytes_(text.encode()) if len(text) < _MAX_ATTRIBUTE_BYTES else text


def stored_schema(file: h5py.File) -> dict[str, Column] | None:
    """Returns the schema that a file was written with, if it records one."""
    content = _read_attribute(file)
    try:
        return schema_from_json(content["schema"]) if content else None
    except (SchemaError, KeyError):
        return None


def _read_attribute(obj: Any) -> dict[str, Any] | None:
    if SCHEMA_ATTRIBUTE not in obj.attrs:  # get() returns None for one that cannot be read
        return None
    text = obj.attrs[SCHEMA_ATTRIBUTE]
    try:
        content = json.loads(text) if isinstance(text, (str, bytes)) else None
    except (ValueError, RecursionError):  # another program's attribute may be deeply nested
        return None
    return content if isinstance(content, dict) else None


def offsets_name(column: Column) -> str:
    """Returns the name of the dataset of offsets in a column's group."""
    return "row_splits" if isinstance(column, Ragged) else "offsets"


def values_per_row(column: Column) -> int:
    """Returns how many offsets a row has."""
    return column.count if isinstance(column, Value) else 1
