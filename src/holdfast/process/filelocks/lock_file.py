"""Handles the file that `locked` locks: `NAME.lock` beside the protected file, created on first use, never deleted.

It does not lock the file itself: a file replaced by rename keeps its lock, and the next process would lock another
file. And where flock is implemented with byte ranges (NFS), a lock on an HDF5 file would block the h5py it protects.
The lock file is not deleted because another process may be about to lock it: two files of one name would each have a
holder.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import sys
import time
from typing import NamedTuple

from ..._util.text import one_line
from ...errors import WriteError
from ...procfs.locks import find_mount
from ...procfs.procfs import REAL

LOCK_SUFFIX = ".lock"
_MAX_BYTES = 4096


class LockNote(NamedTuple):
    """What the holder of an exclusive lock wrote into its file, for other hosts, which do not see it in /proc."""

    pid: int
    host: str
    command: str
    since: float

    def __str__(self) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} ({self.command}) since {at}"


def lock_path(path: str | os.PathLike[str]) -> str:
    """Returns the path of the lock file, the same for all names that symbolic links give a file."""
    return os.path.realpath(os.fsdecode(path)) + LOCK_SUFFIX


def open_lock_file(path: str, *, shared: bool) -> int:
    """Opens the lock file, for reading only if `shared`. Raises WriteError if it cannot be opened or is not regular."""
    access = os.O_RDONLY if shared else os.O_RDWR
    flags = access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO of that name would block the open
    try:
        try:
            # First without O_CREAT, with which the kernel rejects another user's file in a folder like /tmp.
            fd = os.open(path, flags)
        except FileNotFoundError:
            fd = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        hint = "; it is a symbolic link" if error.errno == errno.ELOOP else ""
        raise WriteError(f"cannot open the lock file {path}: {error.strerror}{hint}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise WriteError(f"expected a regular file at {path}, got another type of file")
    return fd


def write_note(fd: int) -> None:
    note = {"pid": os.getpid(), "host": socket.gethostname(), "command": " ".join(sys.orig_argv)[:60]}
    try:
        os.pwrite(fd, json.dumps({**note, "since": time.time()}).encode() + b"\n", 0)
    except OSError:
        pass  # the lock is valid without a note, for example on a full disk


def clear_note(fd: int) -> None:
    try:
        os.ftruncate(fd, 0)
    except OSError:
        pass


def read_note(path: str) -> LockNote | None:
    """Reads the note; it is valid only while the lock is held, as a killed holder leaves its note."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = json.loads(os.read(fd, _MAX_BYTES).split(b"\n")[0])
        finally:
            os.close(fd)
        return LockNote(
            int(found["pid"]), one_line(str(found["host"])), one_line(str(found["command"])), float(found["since"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def filesystem_of(path: str) -> str:
    """Returns `nfs4 on /data`; "" where the mounts cannot be read."""
    mount = find_mount(REAL, path)
    return "" if mount is None else f"{mount.kind} on {mount.point}"
