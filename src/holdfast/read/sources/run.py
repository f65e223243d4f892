"""The schema of a run that hold.write made: its folder says it, and a TFRecord part cannot."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from ..._base.stores import ask, open_store
from ...errors import InputError, SchemaError
from ...formats.schema_json import schema_file_name, schema_from_json
from ...schema import Column
from .find import SourceSpec


def run_schema(specs: Sequence[SourceSpec], options: Mapping[str, Any] | None = None) -> dict[str, Column] | None:
    """None: they are not all parts of one run."""
    folders = {posixpath.dirname(spec.path) for spec in specs if not spec.is_files}
    if len(folders) != 1 or any(spec.is_files for spec in specs):
        return None
    run, name = posixpath.split(folders.pop())
    if name != "parts":
        return None
    try:
        content = json.loads(_latest(run, specs[0].is_remote, options))
        return schema_from_json(content["schema"]) if "holdfast_write" in content else None
    except (OSError, InputError, SchemaError, ValueError, LookupError, TypeError, AttributeError):
        return None  # then it is as with any other files


def _latest(run: str, is_remote: bool, options: Mapping[str, Any] | None) -> bytes:
    """A log's schema grows with its columns: the latest version has all of them."""
    found = _read(posixpath.join(run, schema_file_name()), is_remote, options)
    for version in count(1):
        try:
            found = _read(posixpath.join(run, schema_file_name(version)), is_remote, options)
        except FileNotFoundError:
            break
    return found


def _read(path: str, is_remote: bool, options: Mapping[str, Any] | None) -> bytes:
    if not is_remote:
        with open(path, "rb") as file:
            return file.read()
    fs, inside = open_store(path, options)
    return bytes(ask(path, lambda: fs.cat_file(inside)))
