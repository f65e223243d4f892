"""Files as people name them: paths, globs (also quoted ones, with **), folders."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable

import click

from ..formats.tfrecord.manifest import MANIFEST_NAME

# In a folder: what looks like TFRecord. The last is what TensorFlow Datasets calls its shards.
PATTERNS = (
    "*.tfrecord",
    "*.tfrecord.gz",
    "*.tfrecord.zlib",
    "*.tfrecords*",
    "*.tfrec",
    "*.tfrecord-?????-of-?????",
)


def expand(arguments: Iterable[str]) -> list[str]:
    """All files the arguments mean, in their order; those of one glob or folder sorted naturally.

    A path that is not there stays in the list: whoever opens it says so.
    """
    return [file for argument in arguments for file in _expand(argument)]


def expand_once(arguments: Iterable[str]) -> list[str]:
    """The same, but a file that several arguments mean comes once."""
    files: dict[str, str] = {}
    for file in expand(arguments):
        files.setdefault(os.path.abspath(file), file)
    return list(files.values())


def _expand(argument: str) -> list[str]:
    if os.path.isdir(argument):
        return _in_folder(argument)
    if os.path.lexists(argument) or not glob.has_magic(argument):
        return [argument]
    found = [file for file in glob.glob(argument, recursive=True) if _is_data(file)]
    if not found:
        raise click.UsageError(f"nothing matches {argument!r}", click.get_current_context(silent=True))
    return sorted(found, key=natural)


def _in_folder(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and _is_data(entry.path)]
    found = [name for name in names if any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in PATTERNS)]
    if not found:
        wanted = ", ".join(PATTERNS)
        raise click.UsageError(
            f"no TFRecord files in the folder {folder!r}: wanted {wanted}", click.get_current_context(silent=True)
        )
    return [os.path.join(folder, name) for name in sorted(found, key=natural)]


def _is_data(path: str) -> bool:
    return not os.path.isdir(path) and os.path.basename(path) != MANIFEST_NAME


def natural(name: str) -> list[tuple[int, str]]:
    """`part-9` before `part-10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
