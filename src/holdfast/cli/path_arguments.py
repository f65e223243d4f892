"""The FILE arguments of commands: the files that hold.read would read, their formats, and the dataset directories."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from ..data.formats.base import detect_format
from ..data.formats.suffixes import TITLES, Format, format_of_name
from ..data.loader.sources.discovery import check_unique, find_files, find_files_below, identify
from ..data.writer.directory import SCHEMA_NAME
from ..errors import FormatError, InputError


def expand(arguments: Iterable[str]) -> list[str]:
    """Returns the files that the arguments denote, in order. A file that is given twice, under any name, raises
    InputError as in hold.read. A missing path stays in the list: opening it reports the error."""
    listed = [spec.path for spec in find_files(arguments)]
    check_unique((_identity(path), path) for path in listed)
    return listed


def expand_below(arguments: Iterable[str]) -> dict[str, str]:
    """Returns the files as `expand` does, each with its path below the folder that an argument names."""
    found = find_files_below(arguments)
    check_unique((_identity(path), path) for path, _ in found)
    return dict(found)


class Expanded(NamedTuple):
    """The files and dataset directories to report on, each once. `repeated`: what was given more than once."""

    runs: list[str]
    files: list[str]
    repeated: list[str]


def expand_once(arguments: Iterable[str], *, whole_runs: bool = True) -> Expanded:
    """Returns what the arguments denote, each file once. Without `whole_runs`, the parts of dataset directories."""
    runs: dict[object, str] = {}
    files: dict[object, str] = {}
    repeated = []
    for spec in find_files(arguments, whole_runs=whole_runs):
        known, identity = runs if spec.is_run else files, _identity(spec.path)
        if identity in known:
            repeated.append(f"{spec.path} is the same as {known[identity]}")
        else:
            known[identity] = spec.path
    parts: dict[object, str] = {identify(os.path.join(run, "parts")): run for run in runs.values()}
    for identity, file in list(files.items() if parts else ()):
        run = parts.get(_identity(os.path.dirname(file) or "."))
        if run is not None:
            repeated.append(f"{file} is a part of {run}")
            del files[identity]
    return Expanded(list(runs.values()), list(files.values()), repeated)


def _identity(path: str) -> object:
    try:
        return identify(path)
    except OSError:
        return os.path.abspath(path)


def format_of(path: str) -> Format:
    """Returns the format to read a file as. Raises a FormatError if its name and its content disagree."""
    try:
        return detect_format(path)
    except InputError:
        return format_of_name(path) or "tfrecord"  # opening it later reports the error


def check_tfrecord(path: str) -> None:
    """Raises a FormatError for a file of another format, or of another than its name says."""
    kind = format_of(path)
    if kind != "tfrecord" and os.path.isfile(path):
        hint = "`holdfast convert` makes one of it; hold.read indexes HDF5 and tar by itself"
        raise FormatError(path, None, None, f"expected TFRecord, this is {TITLES[kind]}", hint)


def is_run(path: str) -> bool:
    """Whether it is a dataset directory of hold.write, also without its schema.json: verify reports that."""
    if not os.path.isdir(os.path.join(path, "parts")):
        return False
    return os.path.isfile(os.path.join(path, SCHEMA_NAME)) or os.path.isdir(os.path.join(path, "tmp"))


def runs_in(path: str) -> list[str]:
    if is_run(path):
        return [path]
    if not os.path.isdir(path):
        return []
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    return [run for name in names if is_run(run := os.path.join(path, name))]


def size_of_run(path: str) -> int:
    try:
        with os.scandir(os.path.join(path, "parts")) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:
        return 0  # reading it later reports the error
