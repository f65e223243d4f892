"""Expands the FILE arguments of commands: paths, globs, directories and dataset directories of hold.write."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable

from .._util.text import natural_key
from ..errors import InputError
from ..formats.base import HDF5_MAGIC, HDF5_SUFFIXES, TAR_SUFFIXES, TFRECORD_SUFFIXES, detect_format, is_tfrecord_name
from ..formats.tfrecord.manifest import MANIFEST_NAME
from ..loader.sources.discovery import check_unique, identify, nothing_matches
from ..writer.directory import SCHEMA_NAME

_LAST_SIGNATURE = 1 << 16  # the signature may follow a user block of 512 bytes, 1,024 bytes, …


def is_hdf5(path: str) -> bool:
    """Whether a file is HDF5 by its suffix or its signature."""
    return path.lower().endswith(HDF5_SUFFIXES) or _has_magic(path)


def _has_magic(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a FIFO would block
    except OSError:
        return False  # opening it later reports the error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        at = 0
        while at <= _LAST_SIGNATURE:
            if os.pread(fd, len(HDF5_MAGIC), at) == HDF5_MAGIC:
                return True
            at = at * 2 or 512
        return False
    except OSError:
        return False
    finally:
        os.close(fd)


def is_tar(path: str) -> bool:
    """Whether a file is a tar by its suffix or its content."""
    if path.lower().endswith(TAR_SUFFIXES):
        return True
    try:
        return detect_format(path) == "tar"
    except InputError:
        return False  # opening it later reports the error


def expand_data(arguments: Iterable[str], *, tars: bool = False) -> list[str]:
    """Returns the TFRecord and HDF5 files (and tars) that the arguments denote; raises InputError for duplicates."""
    suffixes = HDF5_SUFFIXES + (TAR_SUFFIXES if tars else ())
    return each_once(file for argument in arguments for file in _expand(argument, suffixes))


def _expand(argument: str, suffixes: tuple[str, ...]) -> list[str]:
    if not os.path.isdir(argument):
        return expand([argument])
    with os.scandir(argument) as entries:
        names = [e.name for e in entries if not e.name.startswith(".") and e.name.lower().endswith(suffixes)]
    found = [path for name in names if not os.path.isdir(path := os.path.join(argument, name))]
    try:
        found += expand([argument])
    except InputError:
        if not found:
            raise no_data(argument, "data files", TFRECORD_SUFFIXES + suffixes) from None
    return sorted(found, key=natural_key)


def expand(arguments: Iterable[str]) -> list[str]:
    """Returns the files that the arguments denote, in order; those of one glob or directory in natural order.

    A missing path stays in the list: opening it reports the error. A file that is given twice, under any name, raises
    InputError as in hold.read.
    """
    return each_once(file for argument in arguments for file in _expand_pattern(argument))


def each_once(paths: Iterable[str]) -> list[str]:
    listed = list(paths)
    check_unique((_identity(path), path) for path in listed)
    return listed


def _identity(path: str) -> object:
    try:
        return identify(path)
    except OSError:
        return os.path.abspath(path)


def _expand_pattern(argument: str) -> list[str]:
    if os.path.isdir(argument):
        return _tfrecords_in(argument)
    if os.path.lexists(argument) or not glob.has_magic(argument):
        return [argument]
    found = [file for file in glob.glob(argument, recursive=True) if _is_data(file)]
    if not found:
        raise nothing_matches(argument)
    return sorted(found, key=natural_key)


def _tfrecords_in(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and _is_data(entry.path)]
    found = [name for name in names if is_tfrecord_name(name)]
    if not found:
        raise no_data(folder, "TFRecord files", TFRECORD_SUFFIXES)
    return [os.path.join(folder, name) for name in sorted(found, key=natural_key)]


def no_data(folder: str, what: str, suffixes: Iterable[str]) -> InputError:
    names = ", ".join(f"*{suffix}" for suffix in suffixes)
    return InputError(f"{folder}: expected {what} in this folder, there are none: {names}")


def _is_data(path: str) -> bool:
    return not os.path.isdir(path) and os.path.basename(path) != MANIFEST_NAME


def is_run(path: str) -> bool:
    """Whether it is a dataset directory of hold.write, also without its schema.json: verify reports that."""
    if not os.path.isdir(os.path.join(path, "parts")):
        return False
    return os.path.isfile(os.path.join(path, SCHEMA_NAME)) or os.path.isdir(os.path.join(path, "tmp"))


def split_runs(arguments: Iterable[str], *, tars: bool = False) -> tuple[list[str], list[str]]:
    """Returns the dataset directories among the arguments and directly in them, and all other data files."""
    runs: list[str] = []
    others = []
    for argument in arguments:
        found = runs_in(argument)
        runs += found
        if not found or (found != [argument] and _has_data(argument, tars)):
            others.append(argument)
    files = expand_data(others, tars=tars)
    _check_no_parts(each_once(runs), files)
    return runs, files


def _check_no_parts(runs: Iterable[str], files: Iterable[str]) -> None:
    """Raises InputError for a part that is given together with its dataset directory."""
    parts = {identify(os.path.join(run, "parts")): run for run in runs}
    for file in files if parts else ():
        folder = os.path.dirname(file) or "."
        if os.path.isdir(folder) and (run := parts.get(identify(folder))) is not None:
            raise InputError(f"{file}: expected every file once, got it twice: also as a part of {run}")


def runs_in(path: str) -> list[str]:
    if is_run(path):
        return [path]
    if not os.path.isdir(path):
        return []
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    return [run for name in names if is_run(run := os.path.join(path, name))]


def _has_data(folder: str, tars: bool) -> bool:
    try:
        return bool(expand_data([folder], tars=tars))
    except InputError:
        return False


def size_of_run(path: str) -> int:
    try:
        with os.scandir(os.path.join(path, "parts")) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:
        return 0  # reading it later reports the error
