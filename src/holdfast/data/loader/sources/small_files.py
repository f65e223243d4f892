"""Opens shards of small files, and reads the schema of a dataset directory. `data/inputs.py` finds the files."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from ....errors import InputError, SchemaError
from ....schema import Column, schema_file_name, schema_from_json
from ...formats.base import Shard
from ...inputs import SourceSpec
from ...remote_fs import ask, open_store


def open_files_shard(spec: SourceSpec, folder: str, labels: bool) -> Shard:
    """Opens the images of a folder, or all of its files when there are none. `labels`: folders are labels.

    `folder` is where the folder of `spec` is now. Its files are opened for every read, so its path is made absolute.
    """
    from ...formats.files import FilesShard, list_files

    if spec.files:
        names = [_small_below(spec.path, file) for file in spec.files]
        folders = sorted({name.partition("/")[0] for name in names if "/" in name}, key=os.fsencode)
        return FilesShard(names, root=os.path.abspath(folder), classes=folders if labels else None)
    images = list_files(os.path.abspath(folder), classes_from_folder=labels)
    return images if len(images) else list_files(os.path.abspath(folder), None, labels)


def _small_below(folder: str, file: str) -> str:
    if file.startswith(f"{folder}/"):
        return file[len(folder) + 1 :]
    return file if folder == "." and not os.path.isabs(file) else os.path.relpath(file, folder)


def directory_schema(specs: Sequence[SourceSpec], options: Mapping[str, Any] | None = None) -> dict[str, Column] | None:
    """Returns the schema that hold.write saved beside the parts, which a TFRecord part does not hold.

    None: the shards are not all parts of one dataset directory.
    """
    folders = {posixpath.dirname(spec.path) for spec in specs if not spec.is_files}
    if len(folders) != 1 or any(spec.is_files for spec in specs):
        return None
    directory, name = posixpath.split(folders.pop())
    if name != "parts":
        return None
    try:
        content = json.loads(_latest(directory, specs[0].is_remote, options))
        return schema_from_json(content["schema"]) if "holdfast_write" in content else None
    except (OSError, InputError, SchemaError, ValueError, LookupError, TypeError, AttributeError):
        return None  # then they are read as any other files


def _latest(directory: str, is_remote: bool, options: Mapping[str, Any] | None) -> bytes:
    """Reads the latest version of the schema: that of a log grows with its columns."""
    found = _read(posixpath.join(directory, schema_file_name()), is_remote, options)
    for version in count(1):
        try:
            found = _read(posixpath.join(directory, schema_file_name(version)), is_remote, options)
        except FileNotFoundError:
            break
    return found


def _read(path: str, is_remote: bool, options: Mapping[str, Any] | None) -> bytes:
    if not is_remote:
        with open(path, "rb") as file:
            return file.read()
    fs, inside = open_store(path, options)
    return bytes(ask(path, lambda: fs.cat_file(inside)))
