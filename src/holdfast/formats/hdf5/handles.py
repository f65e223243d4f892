"""Why an HDF5 file cannot be opened, said so that a person knows what to do."""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass

import h5py

from ..._util.fds import point_to_null
from ..._util.process import call_after_fork
from ...errors import CorruptError, DataError, FormatError, InputError, UnfinishedError, cannot_open
from ...procfs.locks import writers_of
from .object_walk import reason_of

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


# All HDF5 files that this process reads: each is open once, whoever reads it, and never through an inherited handle.
#
# Within a process the HDF5 library knows a file by its inode and gives whoever opens it again what it has already.
# After a fork that would be the parent's open file, and closing it would free the parent's lock. So a child turns
# each inherited descriptor into one of /dev/null, closes all of them before it opens any, and then opens its own.

Identity = tuple[int, int]


@dataclass
class _Open:
    path: str
    file: h5py.File | None  # None: inherited, to be opened again when it is wanted
    fd: int
    users: int


class Handles:
    """Files by device and inode. Takes and gives are counted; reads run under h5py's own lock."""

    def __init__(self) -> None:
        self._open: dict[Identity, _Open] = {}
        self._inherited: list[h5py.File] = []
        self._turn = threading.Lock()

    def take(self, path: str) -> Identity:
        """Opens a file, or counts one user more of it."""
        identity = _identify(path)
        with self._turn:
            held = self._open.get(identity)
            if held is None:
                file = self._fresh(path)
                self._open[identity] = _Open(path, file, file.id.get_vfd_handle(), 1)
            else:
                held.users += 1
        return identity

    def file(self, identity: Identity) -> h5py.File:
        """What was taken, as this process's own handle."""
        with self._turn:
            held = self._open[identity]
            if held.file is None:
                if _identify(held.path) != identity:
                    raise InputError(f"{held.path}: another file has taken its place since it was opened")
                held.file = self._fresh(held.path)
                held.fd = held.file.id.get_vfd_handle()
            return held.file

    def give(self, identity: Identity) -> None:
        """One user less; the last one closes it."""
        with self._turn:
            held = self._open[identity]
            held.users -= 1
            if not held.users:
                del self._open[identity]
                self._drop_inherited()
                if held.file is not None:
                    held.file.close()

    def _fresh(self, path: str) -> h5py.File:
        self._drop_inherited()
        call_after_fork(self)  # here, because whoever was told is forgotten: a child's own children count, too
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
                pass  # it is cut off from its file already: there is nothing left to lose

    def after_fork_in_child(self) -> None:
        """System calls only: the library is asked to close them when it is next used."""
        self._turn = threading.Lock()  # the thread that may have had it is not here
        for held in self._open.values():
            if held.file is not None:
                with suppress(OSError):  # else closing it frees the parent's lock, which readers hardly need
                    point_to_null(held.fd)
                self._inherited.append(held.file)
                held.file = None


def _identify(path: str) -> Identity:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would block the open else
    except OSError as error:
        raise cannot_open(path, error) from error
    try:
        info = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(info.st_mode):
        kind = "a folder" if stat.S_ISDIR(info.st_mode) else "not a regular file"
        raise InputError(f"{path}: expected a file to read, this is {kind}")
    return info.st_dev, info.st_ino


HANDLES = Handles()
