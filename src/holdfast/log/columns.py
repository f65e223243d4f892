"""Values as they come from a training, as rows of one schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from ..errors import SchemaError
from ..formats.dtypes import Misfit, cast, dtype_of
from ..schema import Array, Bytes, Column, Float32, Int64, Value, check_schema
from ..write.rows import bytes_in, join_rows, row_of

OWN: dict[str, Column] = {"step": Int64(), "worker": Int64(), "time_ns": Int64()}

_TEXT = (str, bytes, bytearray, memoryview)
_VALUE_BYTES = 100  # that an object takes beside what it holds

Row = dict[str, Any]


def given_schema(schema: Mapping[str, Column | type[Value]]) -> dict[str, Column]:
    """Of a whole row: what a user says, behind the columns that every log has."""
    columns = check_schema(schema)
    _keep_own(columns)
    return OWN | columns


def schema_of(values: Mapping[str, Any]) -> dict[str, Column]:
    """What the first row looks like, behind the columns that every log has."""
    _keep_own(values)
    return OWN | {name: _column_of(name, value) for name, value in values.items()}


def _keep_own(names: Mapping[str, Any]) -> None:
    taken = sorted(OWN.keys() & names.keys())
    if taken:
        raise SchemaError(f"column {taken[0]!r}: every log has one of this name already; give yours another")


def _column_of(name: str, value: Any) -> Column:
    if isinstance(value, _TEXT):
        return Bytes()
    array = _array(name, value)
    try:
        if array.dtype.kind in "OSU":
            return Bytes(*array.shape)
        return (Float32 if array.dtype.kind == "f" else Int64)(*array.shape)
    except SchemaError as error:
        raise SchemaError(f"column {name!r}: {error}") from None


def check_own(schema: Mapping[str, Column], where: str) -> None:
    for name, column in OWN.items():
        if schema.get(name) != column:
            got = f"is {schema[name]!r}" if name in schema else "is missing"
            hint = "make the folder of a log with hold.log(logdir, schema=…)"
            raise SchemaError(f"{where}: wanted a log, got a folder of other data, column {name!r} {got}; {hint}")


def check_names(schema: Mapping[str, Column], values: Mapping[str, Any], where: str) -> None:
    """That a worker logs what the others do. Later rows may leave floats out; the first shows a mistake early."""
    strange = [name for name in values if name not in schema]
    missing = [name for name in schema if name not in values and name not in OWN]
    if strange:
        raise SchemaError(f"{where}: column {strange[0]!r} is not one of those there ({', '.join(schema)})")
    if missing:
        text = f"column {missing[0]!r} is {schema[missing[0]]!r} there, this worker's first row has none"
        raise SchemaError(f"{where}: {text}; give schema= to every worker if not all of them log it")


# ---- one row


def fitted(schema: Mapping[str, Column], values: Mapping[str, Any]) -> Row:
    """A copy of the values, as the schema has them. A float that is missing is NaN; SchemaError: all else that is."""
    for name in values:
        if name not in schema or name in OWN:
            raise SchemaError(f"column {name!r} is not one of those logged so far ({', '.join(schema)})")
    return {name: _fitted(name, column, values) for name, column in schema.items() if name not in OWN}


def _fitted(name: str, column: Column, values: Mapping[str, Any]) -> Any:
    if name not in values:
        if not _is_float(column):
            raise SchemaError(f"column {name!r}: wanted {column!r}, got nothing: only floats may be missing in a row")
        return np.full(column.shape, np.nan, dtype_of(column))
    value = values[name]
    return _number(name, column, value) if isinstance(column, Array) else row_of(name, column, value)


def _is_float(column: Column) -> TypeGuard[Array]:
    return isinstance(column, Array) and dtype_of(column).kind == "f"


def _number(name: str, column: Array, value: Any) -> Any:
    array = _array(name, value)
    kinds = "fiub" if _is_float(column) else "iub"
    if array.shape != column.shape or array.dtype.kind not in kinds:
        got = f"{array.dtype} of the shape {array.shape}" if array.shape or column.shape else f"{value!r}"
        hint = ""
        if not _is_float(column) and array.dtype.kind == "f":
            hint = f"; give schema={{{name!r}: hold.Float32(…), …}} where the first value of a float is a whole number"
        raise SchemaError(f"column {name!r}: wanted {column!r}, got {got}{hint}")
    if _is_float(column):
        with np.errstate(over="ignore"):  # a loss that has run away is what one wants to see: it is inf
            return array.astype(dtype_of(column))
    try:
        return np.array(cast(array, dtype_of(column)))
    except Misfit as error:
        raise SchemaError(f"column {name!r}: wanted {column!r}, {error}") from None


def _array(name: str, value: Any) -> Any:
    """Of numbers, arrays, and tensors of any framework, wherever they are."""
    try:
        array = np.asarray(_on_host(value))
        if array.dtype.kind == "V" and array.dtype.names is None:  # bfloat16 and its like
            array = array.astype(np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SchemaError(f"column {name!r}: no array can be made of this {type(value).__name__}: {error}") from None
    texts = array.dtype.kind in "OSU" and all(isinstance(one, _TEXT) for one in array.ravel().tolist())
    if array.dtype.kind not in "fiub" and not texts:
        wanted = "wanted a number, an array of numbers, bytes or str"
        raise SchemaError(f"column {name!r}: {wanted}, got {type(value).__name__} ({array.dtype})")
    return array


def _on_host(value: Any) -> Any:
    """A tensor of torch's as one that numpy takes."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    return tensor.float() if "float" in str(tensor.dtype) else tensor


def bytes_of(row: Row) -> int:
    """About as much as it takes in memory."""
    sizes = [bytes_in(value) if isinstance(value, tuple) else getattr(value, "nbytes", 8) for value in row.values()]
    return sum(sizes) + _VALUE_BYTES * len(sizes)


# ---- many rows


def joined(schema: Mapping[str, Column], rows: list[Row]) -> dict[str, Any]:
    """As columns."""
    return {name: _joined(column, [row[name] for row in rows]) for name, column in schema.items()}


def _joined(column: Column, values: list[Any]) -> Any:
    if isinstance(column, Array):
        return np.array(values, dtype_of(column))
    return join_rows(column, values)
