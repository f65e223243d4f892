"""Why a file cannot be a sample, said with its name."""

from __future__ import annotations

import os
import stat

from ...errors import CorruptError, DataError, InputError

MOST_BYTES = 1 << 30  # a file is read whole: one of more than this is no sample


def check_size(path: bytes, mode: int, size: int) -> None:
    """An InputError for what cannot be a sample: of another kind, empty, or huge."""
    if not stat.S_ISREG(mode):
        raise InputError(f"{os.fsdecode(path)}: expected a file to read, this is {kind_of(mode)}")
    if not size:
        raise InputError(f"{os.fsdecode(path)}: the file is empty")
    if size > MOST_BYTES:
        name = os.fsdecode(path)
        raise InputError(f"{name}: expected files of up to {MOST_BYTES:,} bytes as samples, this has {size:,}")


def kind_of(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFLNK: "a link",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "not a regular file")


def changed(path: bytes, row: int, fd: int, wanted: int) -> DataError | InputError:
    """The error for a file that did not have as many bytes as when it was listed."""
    name, info = os.fsdecode(path), os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        return InputError(f"{name}: expected a file to read, this is {kind_of(info.st_mode)} by now")
    reason = f"the file has changed: it had {wanted:,} bytes when it was listed, and has {info.st_size:,} now"
    return CorruptError(name, row, None, reason, "List the files again")
