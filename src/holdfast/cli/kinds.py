"""Which files are HDF5 or tar, and all files of a folder that are data: of the commands that take all formats."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from ..errors import InputError
from ..formats.shard import kind_of
from .inputs import PATTERNS, each_once, expand, natural, no_data

_SUFFIXES = (".h5", ".hdf5", ".hdf")
_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_MAGIC = b"\x89HDF\r\n\x1a\n"
_FURTHEST = 1 << 16  # a signature may stand behind a user block of 512 bytes, 1,024, …


def is_hdf5(path: str) -> bool:
    """By its content; by its name where that says nothing (empty, damaged, not there)."""
    return path.lower().endswith(_SUFFIXES) or _has_magic(path)


def _has_magic(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would block the open else
    except OSError:
        return False  # whoever opens it says so
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        at = 0
        while at <= _FURTHEST:
            if os.pread(fd, len(_MAGIC), at) == _MAGIC:
                return True
            at = at * 2 or 512
        return False
    except OSError:
        return False
    finally:
        os.close(fd)


def is_tar(path: str) -> bool:
    """By its name, or by its content."""
    if path.lower().endswith(_TAR_SUFFIXES):
        return True
    try:
        return kind_of(path) == "tar"
    except InputError:
        return False  # whoever opens it says so


def expand_data(arguments: Iterable[str], *, tars: bool = False) -> list[str]:
    """All TFRecord and HDF5 files (and tars) that paths, globs and folders mean; one that is meant twice is refused."""
    suffixes = _SUFFIXES + (_TAR_SUFFIXES if tars else ())
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
            raise no_data(argument, "data files", [*PATTERNS, *(f"*{suffix}" for suffix in suffixes)]) from None
    return sorted(found, key=natural)
