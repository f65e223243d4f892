"""How a schema's columns lie in a tar: a member for each column of each sample.

Bytes            NAME       the bytes as they are
Int64()          NAME.cls   the number as text, as WebDataset has labels
Array, Ragged
of it            NAME.npy   numpy's own format
Bytes(n), Ragged
of strings, lists
of lists         NAME.npz   `values`, all joined; `offsets`, where each string begins and the last ends; `row_splits`,
                            alike for each inner list
__key__          no member  if it is Bytes(), the samples' keys; else they are numbered

NAME is the column's, in lower case and without what a member's name cannot have. The first member, `__holdfast__`, is
JSON that says which columns there are: WebDataset skips members with such names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ...errors import SchemaError
from ...schema import Bytes, Column, Int64, Ragged, Schema, Value
from ..schema_json import schema_from_json, schema_to_json
from .headers import BLOCK_BYTES, BadHeader, name_in, number_in

KEY = "__key__"
MARK = b"__holdfast__"
_VERSION = 1
_MARK_BYTES = 1 << 24  # the most that a mark may have


def is_key(name: str, column: Column) -> bool:
    """Whether a column is the samples' keys."""
    return name == KEY and isinstance(column, Bytes) and not column.shape


def is_nested(column: Column) -> bool:
    """Whether a sample's value is more than one array."""
    if isinstance(column, Ragged):
        return column.depth > 1 or isinstance(column.value, Bytes)
    return isinstance(column, Bytes) and bool(column.shape)


def is_label(column: Column) -> bool:
    """Whether a sample's value is one number that is written as text."""
    return isinstance(column, Value) and column.alike() == Int64()


def suffix_of(column: Column) -> str:
    if is_nested(column):
        return ".npz"
    if isinstance(column, Bytes):
        return ""
    return ".cls" if is_label(column) else ".npy"


def extensions_of(schema: Schema) -> dict[str, str]:
    """What the members of each column end with; the keys' column has none. SchemaError: no member is left."""
    found: dict[str, str] = {}
    for name, column in schema.items():
        if is_key(name, column):
            continue
        base = re.sub(r"[^a-z0-9_.-]", "_", name.lower()).strip(".") or "column"
        suffix, tries = suffix_of(column), 1
        if not suffix and base.endswith("__"):  # behind a key that begins so, it would be no sample's member
            base = base.rstrip("_.") or "column"
        # A column that came from `x.npy` goes there again.
        extension = base if suffix and f".{base}".endswith(suffix) else base + suffix
        while extension in found.values():
            tries += 1
            extension = f"{base}_{tries}{suffix}"
        found[name] = extension
    if not found:
        raise SchemaError(f"a sample in a tar has at least one member: expected a column beside {KEY!r}")
    return found


# ---- the mark


def mark_of(schema: Schema) -> bytes:
    """The first member's data, for a reader: each column's key is its members' extension."""
    extensions = extensions_of(schema)
    content = schema_to_json(schema)
    for name, extension in extensions.items():
        content[name].pop("key", None)
        if extension != name:
            content[name]["key"] = extension
    return json.dumps({"holdfast_tar": _VERSION, "schema": content}).encode() + b"\n"


def marked_schema(read_at: Callable[[int, int], bytes]) -> dict[str, Column] | None:
    """The schema that a tar was written with, if its first member says so."""
    block = read_at(0, BLOCK_BYTES)
    if len(block) < BLOCK_BYTES or name_in(block) != MARK:
        return None
    try:
        size = number_in(block[124:136])
        if size > _MARK_BYTES:
            return None
        content = json.loads(read_at(BLOCK_BYTES, size))
        return schema_from_json(content["schema"]) if content["holdfast_tar"] == _VERSION else None
    except (BadHeader, SchemaError, ValueError, KeyError, TypeError, RecursionError):
        return None
