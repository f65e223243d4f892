"""Between HDF5's types and a schema's columns."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ...errors import SchemaError
from ...schema import (
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


class Unfit(ValueError):
    """A dataset's type or values are not what a column can hold. `row` is which of those read, if it is one."""

    row = 0


class Damaged(Unfit):
    """Parts of a file contradict each other, so that no column could hold what it says."""


def column_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Column:
    """The column a dataset of this type, and of this shape behind the first axis, is read as."""
    inner = _listed(dtype)
    name = (dtype if inner is None else inner).newbyteorder("=").name  # a file of either byte order is read
    if inner is not None and not shape and name in DTYPES:
        return Ragged(Array(name))
    try:
        if inner is None and (dtype.kind == "S" or h5py.check_string_dtype(dtype) is not None):
            return Bytes(*shape)
        if inner is None and name in DTYPES:
            return Array(name, *shape)
        raise Unfit(f"has the type {describe(dtype)}, which no column can hold")
    except SchemaError:
        raise Unfit(f"has rows of the shape {shape}, which hold nothing") from None


def _listed(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """What a variable-length list holds; None for all that is none. To h5py a string is one, too."""
    inner = h5py.check_vlen_dtype(dtype)
    return inner if isinstance(inner, np.dtype) else None


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
    """Whether a dataset can be read as this column; Unfit says what was expected and what is there.

    Integers can be read as any other integers, and floats as other floats: the column says which. Values that do not
    fit are refused when they are read.
    """
    if _is_raw(column, dtype):
        return
    found = column_of(dtype, shape)
    want, got = _value(column), _value(found)
    # A metric of a log may have begun as an int: a whole number is a float, too, where that has room for it.
    widens = family(got) == "integers" and isinstance(want, Array) and want.dtype == "float64"
    if isinstance(column, Ragged) != isinstance(found, Ragged) or not (widens or family(want) == family(got)):
        raise Unfit(f"holds {found!r}, expected {column!r}")
    if isinstance(column, Ragged):
        if column.depth > 1:
            raise Unfit(f"holds {found!r}, expected {column!r}: lists of lists cannot be read")
    elif want.count != got.count:
        raise Unfit(f"holds {found!r}, expected {column!r}: {want.count:,} values a row, got {got.count:,}")


def family(value: Value) -> str:
    """Returns what columns must have in common for one to be read as the other: strings, integers or floats."""
    if isinstance(value, Bytes):
        return "strings"
    return "floats" if dtype_of(value).kind == "f" else "integers"


def _value(column: Column) -> Value:
    return column.value if isinstance(column, Ragged) else column


def in_native_order(raw: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Swaps the bytes of lists that h5py read as they are in a dataset of this type, and called native."""
    inner = _listed(dtype)
    if inner is None or inner.isnative or not _forgets_byte_order():
        return raw
    found = np.empty_like(raw)
    for place, item in np.ndenumerate(raw):
        found[place] = item.byteswap() if isinstance(item, np.ndarray) and item.dtype.isnative else item
    return found


@cache
def _forgets_byte_order() -> bool:
    """Whether this h5py is one that reads lists of the other byte order wrong; 3.14 is."""
    with h5py.File(io.BytesIO(), "w") as file:
        dataset = file.create_dataset("x", (1,), h5py.vlen_dtype(np.dtype(np.uint16).newbyteorder()))
        dataset[0] = np.array([1], np.dtype(np.uint16).newbyteorder())
        return int(dataset[0][0]) != 1


def _is_raw(column: Column, dtype: np.dtype[Any]) -> bool:
    """Images and the like are often kept as uint8: Bytes() gives a row's bytes as they are."""
    inner = _listed(dtype)
    return isinstance(column, Bytes) and not column.shape and (dtype if inner is None else inner) == np.uint8


def as_column(raw: npt.NDArray[Any], column: Column) -> ColumnData:
    """What h5py read, as the column holds it. Arrays that fit are not copied."""
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
    wrong = np.flatnonzero(sizes % value.count)
    if len(wrong):
        at = int(wrong[0])
        raise Unfit(f"expected lists of a multiple of {value.count} values, got {sizes[at]:,} (row {at:,} of these)")
    np.cumsum(sizes // value.count, out=splits[1:])
    parts = [np.asarray(item) for item in raw if len(item)]
    joined: npt.NDArray[Any] = np.concatenate(parts) if parts else np.zeros(0, dtype_of(value))
    return in_dtype(RaggedColumn(joined.reshape(-1, *value.shape), splits), value)


def in_dtype(found: ColumnData, value: Value) -> ColumnData:
    """Casts what a file has to the column's dtype; Unfit: a value does not fit it."""
    try:
        return cast_column(found, dtype_of(value), exact=is_exact(value))
    except Misfit as error:
        unfit = Unfit(f"has {error.what}")
        unfit.row = error.row
        raise unfit from None


# How a schema's columns lie in an HDF5 file.
#
# Array            a dataset of its dtype, (rows, *shape): what any reader of HDF5 expects. bool is h5py's enumeration
# of FALSE and TRUE Bytes            a group: `values`, all strings joined as uint8, and `offsets`, int64: where each
# begins, and where the last ends Ragged           a group: `values`, all items joined, and `row_splits`, int64,
# alike. Where the items are strings or lists again, `values` is such a group itself
#
# Each group's attribute `holdfast` names its column as JSON, the file's own names the whole schema. Variable-length
# types of HDF5 are not used: their data lie in heaps that no checksum of a chunk covers and that cannot be copied as
# they are.

MARK = "holdfast"
_LARGEST_ATTRIBUTE = 60_000


def key_of(name: str, column: Column) -> str:
    return name if column.key is None else column.key


def is_packed(column: Column) -> bool:
    """Whether a column is a group of values and ends."""
    return isinstance(column, (Ragged, Bytes))


def check_keys(schema: Schema) -> None:
    """A key is a path in the file: SchemaError where it is none, or where one leads through another."""
    keys = {key_of(name, column): name for name, column in schema.items()}
    for key, name in keys.items():
        steps = key.split("/")
        if "\0" in key or any(step in ("", ".", "..") for step in steps):
            raise SchemaError(f"column {name!r}: expected a path such as 'a' or 'train/a' for its dataset, got {key!r}")
        for n in range(1, len(steps)):
            above = keys.get("/".join(steps[:n]))
            if above is not None:
                raise SchemaError(f"column {name!r} would lie inside of column {above!r}: name one of them otherwise")


def marked_column(thing: Any) -> Column | None:
    """The column that a group holds; None for a group that is just one."""
    if not isinstance(thing, h5py.Group):
        return None
    content = _mark(thing)
    try:
        return column_from_json(content["column"]) if content else None
    except (SchemaError, KeyError):
        return None


def schema_mark(schema: Schema) -> str | np.bytes_:
    """What a file says of the schema it was written with."""
    return _as_attribute({"version": 1, "schema": schema_to_json(schema)})


def column_mark(column: Column) -> str | np.bytes_:
    """What a group says of the column that it holds."""
    return _as_attribute({"version": 1, "column": column_to_json(column)})


def _as_attribute(content: dict[str, Any]) -> str | np.bytes_:
    """A string of fixed length lies in its object's header, under the header's checksum; one of any length in a heap
    without, which the library can go round in for ever when it is damaged. A header has room for 64 kB."""
    text = json.dumps(content)
    return np.bytes_(text.encode()) if len(text) < _LARGEST_ATTRIBUTE else text


def marked_schema(file: h5py.File) -> dict[str, Column] | None:
    """The schema that a file was written with, if it says so."""
    content = _mark(file)
    try:
        return schema_from_json(content["schema"]) if content else None
    except (SchemaError, KeyError):
        return None


def _mark(thing: Any) -> dict[str, Any] | None:
    if MARK not in thing.attrs:  # get() would take one that cannot be read for none
        return None
    text = thing.attrs[MARK]
    try:
        content = json.loads(text) if isinstance(text, (str, bytes)) else None
    except (ValueError, RecursionError):  # somebody else's attribute may hold brackets within brackets
        return None
    return content if isinstance(content, dict) else None


def values_per_row(column: Column) -> int:
    """How many entries a row has in the ends of a packed column."""
    return column.count if isinstance(column, Value) else 1
