"""How a schema's columns lie in an HDF5 file.

Array            a dataset of its dtype, (rows, *shape): what any reader of HDF5 expects. bool is h5py's enumeration
                 of FALSE and TRUE
Bytes            a group: `values`, all strings joined as uint8, and `offsets`, int64: where each begins, and where the
                 last ends
Ragged           a group: `values`, all items joined, and `row_splits`, int64, alike. Where the items are strings or
                 lists again, `values` is such a group itself

Each group's attribute `holdfast` names its column as JSON, the file's own names the whole schema. Variable-length types
of HDF5 are not used: their data lie in heaps that no checksum of a chunk covers and that cannot be copied as they are.
"""

from __future__ import annotations

import json
from typing import Any

import h5py
import numpy as np

from ...errors import SchemaError
from ...schema import Bytes, Column, Ragged, Schema, Value
from ..schema_json import column_from_json, column_to_json, schema_from_json, schema_to_json

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
