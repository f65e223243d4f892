"""Converts logged values to rows of a schema that grows with them.

A column that is missing in some rows gets a flag column, `x_present`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from typing import Any, TypeGuard

import numpy as np

from ...errors import SchemaError
from ...schema import Array, Bytes, Column, Float32, Int64, Ragged, Value, check_schema
from ..formats.columns import Misfit, cast, dtype_of
from ..writer.row_buffer import bytes_in, join_rows, row_of

OWN: dict[str, Column] = {"step": Int64(), "worker": Int64(), "time_ns": Int64()}

_TEXT = (str, bytes, bytearray, memoryview)
_VALUE_BYTES = 100  # overhead of a Python object
_PRESENT = "_present"
_PRESENCE = (Int64(default=0), Int64(default=1))

Schema = dict[str, Column]
Row = dict[str, Any]  # only the values that were logged
Reject = Callable[[SchemaError], None]  # raises the error, or records that a value is left out
Check = Callable[[Schema], None]


def given_schema(schema: Mapping[str, Column | type[Value]]) -> Schema:
    """Returns the columns that every log has, then those of the user."""
    columns = check_schema(schema)
    for name, column in columns.items():
        _check_own_name(name)
        if column not in _PRESENCE:  # else it is the flag
            _check_flag({_stem(name)} & columns.keys(), name)
    return OWN | columns


def _check_own_name(name: str) -> None:
    if name in OWN:
        raise SchemaError(f"column {name!r}: every log has one of this name already; use another name")


def _check_flag(columns: Container[str], name: str) -> None:
    """Raises SchemaError if `name` and a column there are x and x_present, the name of x's flag."""
    flag = name if _stem(name) != name and _stem(name) in columns else name + _PRESENT
    if flag == name or flag in columns:
        text = f"{flag!r} says in which rows {_stem(flag)!r} is, so that a log cannot have both as metrics"
        raise SchemaError(f"column {name!r}: {text}; rename one of them")


def check_own(schema: Mapping[str, Column], where: str) -> None:
    for name, column in OWN.items():
        if schema.get(name) != column:
            got = f"is {schema[name]!r}" if name in schema else "is missing"
            hint = "make the folder of a log with hold.log(logdir, schema=…)"
            raise SchemaError(f"{where}: expected a log, got a folder of other data, column {name!r} {got}; {hint}")


# ---- one row


def grown(schema: Schema, values: Mapping[str, Any], reject: Reject, check: Check) -> tuple[Schema, Row]:
    """Returns the schema with what the values add to it, and a copy of the values.

    They add new columns, floats for ints, and `x_present` for a column that is not in every row. None is no value.
    """
    columns, row = dict(schema), {}
    is_first = len(schema) == len(OWN)
    for name, value in values.items():
        if value is None:
            continue
        try:
            _check_own_name(name)
            if name in columns:
                if is_presence(columns, name):
                    raise SchemaError(f"column {name!r} says in which rows {_stem(name)!r} is; use another name")
                column = columns[name]
                if not isinstance(value, int) and is_int(column):
                    column = _meet(column, _column_of(name, value))
            else:
                _check_flag(columns, name)
                found = _column_of(name, value)
                column = found if is_first else _late(found)
            if column is not columns.get(name):
                check({**columns, name: column})
            row[name] = _fitted(name, column, value)
        except SchemaError as error:
            reject(error)
            continue
        if name not in columns and not is_first:
            add_presence(columns, name, 0)
        columns[name] = column
    for name in [name for name in columns if name not in row and name not in OWN]:
        if name + _PRESENT not in columns and not is_presence(columns, name):
            add_presence(columns, name)
    return columns, row


def fitted(schema: Schema, values: Mapping[str, Any], reject: Reject) -> Row:
    """Returns a copy of the values, for a fixed schema. A missing value gets the default; a float without one, NaN."""
    row = {}
    for name, value in values.items():
        if value is None:
            continue
        try:
            if name not in schema or name in OWN:
                raise SchemaError(f"column {name!r}: expected one of the columns {', '.join(schema)}")
            row[name] = _fitted(name, schema[name], value)
        except SchemaError as error:
            reject(error)
    for name, column in schema.items():
        if name in row or name in OWN or is_presence(schema, name):
            continue
        if isinstance(column, Value) and not is_float(column) and column.default is None:
            text = f"expected {column!r}, got nothing, and it cannot be left out without a default"
            reject(SchemaError(f"column {name!r}: {text}"))
    return row


def is_presence(schema: Mapping[str, Column], name: str) -> bool:
    """Whether a column is the flag of another. A user's own column of such a name has no default, or has a flag."""
    return (
        name.endswith(_PRESENT)
        and _stem(name) in schema
        and name + _PRESENT not in schema
        and schema.get(name) in _PRESENCE
    )


def _stem(name: str) -> str:
    return name.removesuffix(_PRESENT)


def add_presence(columns: Schema, name: str, before: int = 1) -> None:
    """Adds the flag of a column. `before`: its value in earlier rows."""
    columns.setdefault(name + _PRESENT, _PRESENCE[before])


def _late(column: Column) -> Column:
    """Returns a column with the default that earlier rows need."""
    if isinstance(column, Ragged):
        raise SchemaError(f"expected {column!r} from the first row on: a list cannot be added later")
    if column.default is not None:
        return column
    return column.alike(default=_nothing(column), codec=column.codec)


def _nothing(column: Value) -> Any:
    """Returns what is written for a missing value."""
    return math.nan if is_float(column) else b"" if isinstance(column, Bytes) else 0


def _meet(there: Column, new: Column) -> Column:
    """Returns the existing column, or a float64 one if it has ints and gets a float."""
    if not is_int(there) or not is_float(new) or new.shape != there.shape:
        return there
    default = None if there.default is None else math.nan
    return Array("float64", there.shape, default=default, codec=there.codec)


def united(there: Schema, ours: Schema) -> tuple[Schema, dict[str, SchemaError]]:
    """Returns the columns of both, and an error for each of ours that is incompatible with the one there."""
    columns, wrong = dict(there), {}
    for name, column in ours.items():
        try:
            if is_presence(ours, name):
                continue
            if name not in columns or is_presence(columns, name):
                _check_flag(columns, name)
                columns[name] = _late(column)
                continue
            met = _meet(columns[name], column)
            if not _takes(met, column):
                raise SchemaError(f"column {name!r} is {columns[name]!r} there, got {column!r}")
            columns[name] = met
        except SchemaError as error:
            wrong[name] = error
    for name, column in ours.items():
        if is_presence(ours, name) and _stem(name) not in wrong:
            columns.setdefault(name, column)
    return columns, wrong


def without(schema: Schema, names: Container[str]) -> Schema:
    """Returns the schema without these columns and their flags."""
    flags = [name for name in schema if is_presence(schema, name) and _stem(name) in names]
    return {name: column for name, column in schema.items() if name not in names and name not in flags}


def _takes(there: Column, ours: Column) -> bool:
    """Whether values of our column can be written to the one there."""
    if isinstance(there, Ragged) or isinstance(ours, Ragged):
        return there == ours
    if there.shape != ours.shape:
        return False
    if is_float(there):
        return isinstance(ours, Array)
    return is_int(ours) and dtype_of(there) == dtype_of(ours) if is_int(there) else isinstance(ours, Bytes)


def _column_of(name: str, value: Any) -> Column:
    try:
        name.encode()
        if isinstance(value, _TEXT):
            return Bytes()
        array = _array(name, value)
        if array.dtype.kind in "OSU":
            return Bytes(*array.shape)
        return (Float32 if array.dtype.kind == "f" else Int64)(*array.shape)
    except UnicodeEncodeError:
        raise SchemaError(f"column {name!r}: expected a name that UTF-8 can hold") from None
    except SchemaError as error:
        text = str(error)
        raise SchemaError(text if text.startswith("column ") else f"column {name!r}: {text}") from None


def _fitted(name: str, column: Column, value: Any) -> Any:
    return _number(name, column, value) if isinstance(column, Array) else row_of(name, column, value)


def is_float(column: Column) -> TypeGuard[Array]:
    return isinstance(column, Array) and column.dtype.startswith("float")


def is_int(column: Column) -> TypeGuard[Array]:
    return isinstance(column, Array) and not column.dtype.startswith("float")


def _number(name: str, column: Array, value: Any) -> Any:
    array = _array(name, value)
    kinds = "fiub" if is_float(column) else "iub"
    if array.shape != column.shape or array.dtype.kind not in kinds:
        got = f"{array.dtype} of the shape {array.shape}" if array.shape or column.shape else f"{value!r}"
        raise SchemaError(f"column {name!r}: expected {column!r}, got {got}")
    if is_float(column):
        with np.errstate(over="ignore"):  # a diverged loss should show, as inf
            return array.astype(dtype_of(column))
    try:
        return np.array(cast(array, dtype_of(column)))
    except Misfit as error:
        raise SchemaError(f"column {name!r}: expected {column!r}, {error}") from None


def _array(name: str, value: Any) -> Any:
    """Converts numbers, arrays, and tensors of any framework and device."""
    try:
        array = np.asarray(_on_host(value))
        if array.dtype.kind == "V" and array.dtype.names is None:  # bfloat16 and its like
            array = array.astype(np.float32)
    except Exception as error:  # a value's own __array__ may raise anything
        raise SchemaError(f"column {name!r}: cannot make an array of this {type(value).__name__}: {error}") from error
    texts = array.dtype.kind in "OSU" and all(isinstance(one, _TEXT) for one in array.ravel().tolist())
    if array.dtype.kind not in "fiub" and not texts:
        expected = "expected a number, an array of numbers, bytes or str"
        raise SchemaError(f"column {name!r}: {expected}, got {type(value).__name__} ({array.dtype})")
    return array


def _on_host(value: Any) -> Any:
    """Returns a torch tensor as one that numpy can convert."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    return tensor.float() if "float" in str(tensor.dtype) else tensor


def copied(values: Mapping[str, Any], reject: Reject) -> dict[str, Any]:
    """Copies the values, because a training may reuse its arrays."""
    kept = {}
    for name, value in values.items():
        try:
            kept[name] = value if value is None or isinstance(value, _TEXT) else np.array(_array(name, value))
        except SchemaError as error:
            reject(error)
    return kept


def bytes_of(row: Row) -> int:
    """Estimates the memory that a row takes."""
    sizes = [bytes_in(value) if isinstance(value, tuple) else getattr(value, "nbytes", 8) for value in row.values()]
    return sum(sizes) + _VALUE_BYTES * len(sizes)


# ---- many rows


def joined(schema: Schema, rows: list[Row]) -> dict[str, Any]:
    """Joins rows into the columns of the schema, filling in missing values."""
    return {name: _joined(schema, name, column, rows) for name, column in schema.items()}


def _joined(schema: Schema, name: str, column: Column, rows: list[Row]) -> Any:
    if is_presence(schema, name):
        return np.array([_stem(name) in row for row in rows], np.int64)
    if isinstance(column, Array):
        dtype = dtype_of(column)
        gap = _nothing(column) if column.default is None else column.default
        missing = np.broadcast_to(np.asarray(gap, dtype), column.shape)
        with np.errstate(over="ignore"):
            return np.array([row.get(name, missing) for row in rows], dtype)
    empty = row_of(name, column, _gap(column)) if any(name not in row for row in rows) else ()
    return join_rows(column, [row.get(name, empty) for row in rows])


def _gap(column: Column) -> Any:
    if isinstance(column, Ragged):
        return []
    given = _nothing(column) if column.default is None else column.default
    return np.full(column.shape, given, object).tolist() if column.shape else given
