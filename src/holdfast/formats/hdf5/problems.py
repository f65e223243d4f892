"""Why an HDF5 file cannot be opened, said so that a person knows what to do."""

from __future__ import annotations

import errno
import os

from ...errors import CorruptError, DataError, FormatError, InputError, UnfinishedError, cannot_open
from ...proc.holders import writers_of
from .walk import reason_of

_FLAGS = "already open for write"  # a mark in the file: left by a writer that is at work, or that died


def error_for(path: str, error: Exception) -> DataError | InputError:
    """The error for what h5py raised at opening: of a damaged file that need not be an OSError."""
    text = str(error)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOENT):
        return cannot_open(path, OSError(number, os.strerror(number)))
    if number == errno.EAGAIN or "unable to lock file" in text:
        return UnfinishedError(path, None, None, f"it is locked{_by(path)}", "Wait for its writer to close it")
    if "signature not found" in text:
        if not os.path.getsize(path):
            return FormatError(path, None, None, "the file is empty: its writer has not finished, or died")
        return FormatError(path, None, None, "not an HDF5 file", "Look at it with `file`, and at what wrote it")
    by = _by(path)
    if by:
        return UnfinishedError(path, None, None, f"it cannot be read yet: still being written{by}", "Wait for it")
    if _FLAGS in text:
        hint = "If nobody writes it any more, `holdfast salvage FILE OUT` gets its rows into a new file"
        return UnfinishedError(path, None, None, "its writer marked it as open and has not closed it", hint)
    if "truncated file" in text:
        return CorruptError(path, None, os.path.getsize(path), f"the file is cut: {reason_of(error)}", "Write it again")
    return CorruptError(path, None, None, f"it cannot be opened: {reason_of(error)}", "Write it again")


def _by(path: str) -> str:
    writers = writers_of(path)
    if not writers:
        return ""
    who = writers[0]
    return " by this process itself" if who.pid == os.getpid() else f" by process {who.pid} ({who.command})"
