"""A schema as JSON: what a run's `schema.json` and an HDF5 part's own attribute hold."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from ..errors import SchemaError
from ..schema import Array, Bytes, Column, Float32, Int64, Ragged, Schema, Value, check_schema

_TYPES: dict[str, type[Value]] = {kind.__name__: kind for kind in (Array, Bytes, Float32, Int64)}


def schema_file_name(version: int = 0) -> str:
    """Returns the name of a run's schema: `schema.json`, and `schema.1.json` and so on where columns came later."""
    return f"schema.{version}.json" if version else "schema.json"


def schema_to_json(schema: Schema, *, stored: bool = False) -> dict[str, Any]:
    """`stored`: with how the columns are to be written, which is no part of what they are."""
    return {name: column_to_json(column) | (_stored(column) if stored else {}) for name, column in schema.items()}


def _stored(column: Column) -> dict[str, Any]:
    said = {"codec": column.codec, "chunk_rows": column.chunk_rows}
    return {name: value for name, value in said.items() if value is not None}


def column_to_json(column: Column) -> dict[str, Any]:
    key = {} if column.key is None else {"key": column.key}
    if isinstance(column, Ragged):
        return {"type": "Ragged", "inner": column_to_json(column.inner)} | key
    default = {} if column.default is None else {"default": _plain(column.default)}
    dtype = {"dtype": column.dtype} if isinstance(column, Array) and column.type_name == Array.__name__ else {}
    return {"type": column.type_name} | dtype | {"shape": list(column.shape)} | default | key


def _plain(default: Any) -> Any:
    """Of a default what JSON can hold; bytes as their hexadecimal digits, inf and NaN by name."""
    if isinstance(default, bytes):
        return {"hex": default.hex()}
    if isinstance(default, list):
        return [_plain(one) for one in default]
    if isinstance(default, float) and not math.isfinite(default):
        return {"float": str(default)}  # JSON has no such numbers
    if not isinstance(default, (int, float, str)):
        raise SchemaError(f"expected a default of numbers or bytes, got {default!r}")
    return default


def schema_from_json(content: Any) -> dict[str, Column]:
    """SchemaError: it is not what schema_to_json gives."""
    if not isinstance(content, Mapping):
        raise SchemaError(f"expected columns as JSON, got {type(content).__name__}")
    return check_schema({str(name): column_from_json(one) for name, one in content.items()})


def column_from_json(content: Any) -> Column:
    try:
        more = {name: content.get(name) for name in ("key", "codec", "chunk_rows")}
        if content["type"] == "Ragged":
            return Ragged(column_from_json(content["inner"]), **more)
        dtype = [content["dtype"]] if content["type"] == Array.__name__ else []
        return _TYPES[content["type"]](*dtype, *content["shape"], default=_rich(content.get("default")), **more)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SchemaError(f"expected a column as JSON, got {str(content)[:80]} ({error!r})") from None


def _rich(default: Any) -> Any:
    if isinstance(default, dict):
        if "float" in default:
            return float(default["float"])
        return bytes.fromhex(default["hex"])
    return [_rich(one) for one in default] if isinstance(default, list) else default


def schema_digest(schema: Schema) -> str:
    """The same for the same columns, in whatever order they were named and however they are to be written."""
    text = json.dumps(schema_to_json(schema), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def first_difference(ours: Schema, theirs: Schema) -> tuple[str, str, str] | None:
    """A column that is not the same in both, as it is in the one and in the other; None: there is none."""
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        sides = [repr(schema[name]) if name in schema else "no such column" for schema in (ours, theirs)]
        if name not in ours or name not in theirs or column_to_json(ours[name]) != column_to_json(theirs[name]):
            return name, sides[0], sides[1]
    return None
