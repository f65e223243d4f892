"""A schema from a file: what `holdfast inspect --schema` prints, or a run's schema.json. No code in it is run."""

from __future__ import annotations

import ast
import json
from typing import Any

from ..errors import SchemaError, cannot_open
from ..formats.schema_json import schema_from_json
from ..schema import Array, Bytes, Column, Float32, Int64, Ragged, check_schema

_TYPES: dict[str, Any] = {"Array": Array, "Bytes": Bytes, "Float32": Float32, "Int64": Int64, "Ragged": Ragged}
_WANTED = "expected a schema as `holdfast inspect --schema` prints it, or a run's schema.json"


def read_schema_file(path: str) -> dict[str, Column]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise cannot_open(path, error) from error
    except UnicodeDecodeError:
        raise SchemaError(f"{path}: {_WANTED}, got no text") from None
    try:
        return _from_json(text) or parse_schema(text)
    except (SchemaError, ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise SchemaError(f"{path}: {_WANTED}: {error}") from None


def _from_json(text: str) -> dict[str, Column] | None:
    """None: it is no schema.json."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    is_run = isinstance(content, dict) and "holdfast_write" in content
    return schema_from_json(content["schema"]) if is_run else None


def parse_schema(text: str) -> dict[str, Column]:
    """`schema = {"label": hold.Int64()}`, or the braces alone.

    >>> parse_schema('{"label": Int64(key="cls"), "boxes": hold.Ragged(hold.Float32(4))}')
    {'label': Int64(key='cls'), 'boxes': Ragged(Float32(4))}
    """
    found = [node for node in ast.parse(text.strip()).body if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr))]
    tables = [node.value for node in found if isinstance(node.value, ast.Dict)]
    if len(tables) != 1:
        raise SchemaError(f"got {len(tables)} schemas in it")
    [table] = tables
    return check_schema({_name(key): _column(value) for key, value in zip(table.keys, table.values, strict=True)})


def _name(node: ast.expr | None) -> str:
    name = None if node is None else ast.literal_eval(node)
    if not isinstance(name, str):
        raise SchemaError(f"expected a column's name, got {name!r}")
    return name


def _column(node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        return _type(node)
    positional = [_argument(one) for one in node.args]
    named = {str(one.arg): _literal(one.value) for one in node.keywords}
    return _type(node.func)(*positional, **named)


def _literal(node: ast.expr) -> Any:
    """A value as Python spells it; NaN and infinity have no spelling of their own."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(one) for one in node.elts]
    odd = {f"float('{name}')": float(name) for name in ("nan", "inf", "-inf")}
    text = ast.unparse(node)
    return odd[text] if text in odd else ast.literal_eval(node)


def _argument(node: ast.expr) -> Any:
    return _column(node) if isinstance(node, (ast.Call, ast.Name, ast.Attribute)) else ast.literal_eval(node)


def _type(node: ast.expr) -> Any:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if name not in _TYPES:
        raise SchemaError(f"expected Array, Int64, Float32, Bytes or Ragged, got {ast.unparse(node)}")
    return _TYPES[name]
