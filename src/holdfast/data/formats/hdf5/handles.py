"""Opens each HDF5 file that this process reads once, and never uses a handle that was inherited over a fork.

Within a process the library knows a file by its inode and returns the handle it has already. After a fork that would
be the parent's, and closing it would free the parent's lock. So a child points every inherited descriptor to /dev/null,
closes all inherited files before it opens any, and opens its own.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from dataclasses import dataclass

import h5py

from ...._util.atomic import FileStamp
from ...._util.fds import point_to_null
from ...._util.process import call_after_fork
from ....errors import CorruptError, DataError, FormatError, InputError, UnfinishedError, cannot_open
from ....procfs.locks import writers_of
from .file_state import check_regular, describe_writer
from .object_walk import reason_of

_OPEN_FLAG = "already open for write"  # the library's message

Identity = tuple[int, int]


@dataclass
class _Open:
    path: str
    file: h5py.File | None  # None: inherited; opened again on use
    fd: int
    users: int


class Handles:
    """Open files by device and inode, with a count of their users. h5py's own lock guards the reads."""

    def __init__(self) -> None:
        self._open: dict[Identity, _Open] = {}
        self._inherited: list[h5py.File] = []
        self._lock = threading.Lock()

    def take(self, path: str) -> Identity:
        """Opens a file, or adds a user to it."""
        identity = _identify(path)
        with self._lock:
            entry = self._open.get(identity)
            if entry is None:
                file = self._fresh(path)
                self._open[identity] = _Open(path, file, file.id.get_vfd_handle(), 1)
            else:
                entry.users += 1
        return identity

    def file(self, identity: Identity) -> h5py.File:
        """Returns the file as this process's own handle."""
        with self._lock:
            entry = self._open[identity]
            if entry.file is None:
                if _identify(entry.path) != identity:
                    raise InputError(f"{entry.path}: it was replaced by another file since it was opened")
                entry.file = self._fresh(entry.path)
                entry.fd = entry.file.id.get_vfd_handle()
            return entry.file

    def fd(self, identity: Identity) -> int:
        """Returns the descriptor of this process's own handle."""
        self.file(identity)
        return self._open[identity].fd

    def stamp(self, identity: Identity) -> FileStamp:
        """Returns the stamp of the open file as it is now."""
        return FileStamp.of(self.fd(identity))

    def give(self, identity: Identity) -> None:
        """Removes a user; the last one closes the file."""
        with self._lock:
            entry = self._open[identity]
            entry.users -= 1
            if not entry.users:
                del self._open[identity]
                self._drop_inherited()
                if entry.file is not None:
                    entry.file.close()

    def _fresh(self, path: str) -> h5py.File:
        self._drop_inherited()
        call_after_fork(self)  # again in every child, whose own children count as well
        try:
            return h5py.File(path, "r")
        except MemoryError:
            raise
        except Exception as error:
            raise error_for(path, error) from error

    def _drop_inherited(self) -> None:
        while self._inherited:
            try:
                self._inherited.pop().close()
            except (OSError, RuntimeError):
                pass  # its descriptor is that of /dev/null

    def after_fork_in_child(self) -> None:
        """Makes system calls only; the library closes the files when it is used next."""
        self._lock = threading.Lock()  # a thread that held it does not exist here
        for entry in self._open.values():
            if entry.file is not None:
                with suppress(OSError):  # else closing it frees the parent's lock, which readers hardly need
                    point_to_null(entry.fd)
                self._inherited.append(entry.file)
                entry.file = None


def _identify(path: str) -> Identity:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # the open of a FIFO would block otherwise
    except OSError as error:
        raise cannot_open(path, error) from error
    try:
        info = os.fstat(fd)
    finally:
        os.close(fd)
    check_regular(path, info.st_mode)
    return info.st_dev, info.st_ino


def error_for(path: str, error: Exception) -> DataError | InputError:
    """Returns the error for what h5py raised on opening a file: for a corrupt one that may be any exception."""
    text = str(error)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOENT):
        return cannot_open(path, OSError(number, os.strerror(number)))
    if number == errno.EAGAIN or "unable to lock file" in text:
        return UnfinishedError(path, None, None, f"it is locked{_written_by(path)}", "Wait for its writer to close it")
    if "signature not found" in text:
        if not os.path.getsize(path):
            return FormatError(path, None, None, "the file is empty: its writer has not finished, or died")
        return FormatError(
            path, None, None, "not an HDF5 file", "Check with `file` what it is, and which program wrote it"
        )
    writer = _written_by(path)
    if writer:
        return UnfinishedError(path, None, None, f"still being written{writer}", "Wait for its writer to close it")
    if _OPEN_FLAG in text:
        hint = "If its writer died, `holdfast salvage FILE OUT` copies its rows into a new file"
        return UnfinishedError(path, None, None, "its writer has not closed it", hint)
    if "truncated file" in text:
        return CorruptError(
            path, None, os.path.getsize(path), f"the file is truncated: {reason_of(error)}", "Write it again"
        )
    return CorruptError(path, None, None, f"it cannot be opened: {reason_of(error)}", "Write it again")


def _written_by(path: str) -> str:
    writers = writers_of(path)
    return f" {describe_writer(writers[0])}" if writers else ""


HANDLES = Handles()
