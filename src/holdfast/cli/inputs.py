"""Files as people name them: paths, globs (also quoted ones, with **), folders."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable

from ..errors import InputError
from ..formats.tfrecord.manifest import MANIFEST_NAME
from ..read.sources.local import identify, nothing_matches, refuse_twice

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

    A path that is not there stays in the list: whoever opens it says so. A file that is meant twice, by whatever
    names, is refused as hold.read does.
    """
    return each_once(file for argument in arguments for file in _expand(argument))


def each_once(paths: Iterable[str]) -> list[str]:
    listed = list(paths)
    refuse_twice((_identity(path), path) for path in listed)
    return listed


def _identity(path: str) -> object:
    try:
        return identify(path)
    except OSError:
        return os.path.abspath(path)


def _expand(argument: str) -> list[str]:
    if os.path.isdir(argument):
        return _in_folder(argument)
    if os.path.lexists(argument) or not glob.has_magic(argument):
        return [argument]
    found = [file for file in glob.glob(argument, recursive=True) if _is_data(file)]
    if not found:
        raise nothing_matches(argument)
    return sorted(found, key=natural)


def _in_folder(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and _is_data(entry.path)]
    found = [name for name in names if any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in PATTERNS)]
    if not found:
        raise no_data(folder, "TFRecord files", PATTERNS)
    return [os.path.join(folder, name) for name in sorted(found, key=natural)]


def no_data(folder: str, what: str, patterns: Iterable[str]) -> InputError:
    return InputError(f"{folder}: expected {what} in this folder, there are none: {', '.join(patterns)}")


def _is_data(path: str) -> bool:
    return not os.path.isdir(path) and os.path.basename(path) != MANIFEST_NAME


def natural(name: str) -> list[tuple[int, str]]:
    """`part-9` before `part-10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
