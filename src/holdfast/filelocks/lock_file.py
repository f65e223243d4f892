"""The file that `locked` locks: `NAME.lock` beside what it stands for, made when it is first used, never deleted.

Not the file itself: what is replaced by rename takes its lock along, and the next comer locks another file. And where
flock is made of byte ranges (NFS), a lock on an HDF5 file itself would shut out the very h5py it is to protect. It is
not taken away because another may be about to lock it: there would be two files of one name, each with a holder.
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

from .._util.text import one_line
from ..errors import WriteError
from ..procfs.locks import find_mount
from ..procfs.procfs import REAL

LOCK_SUFFIX = ".lock"
_MOST_BYTES = 4096


class LockNote(NamedTuple):
    """What the holder of an exclusive lock wrote into it: for those on other hosts, whom /proc does not tell."""

    pid: int
    host: str
    command: str
    since: float

    def __str__(self) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} ({self.command}) since {at}"


def lock_path(path: str | os.PathLike[str]) -> str:
    """One lock for all names that symbolic links give a file."""
    return os.path.realpath(os.fsdecode(path)) + LOCK_SUFFIX


def open_lock_file(path: str, *, shared: bool) -> int:
    """A descriptor of it; readable is enough for a shared lock. WriteError says what is in the way."""
    access = os.O_RDONLY if shared else os.O_RDWR
    flags = access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO of that name would block the open
    try:
        try:
            # Without O_CREAT first: the kernel refuses it for another user's file in a folder like /tmp.
            fd = os.open(path, flags)
        except FileNotFoundError:
            fd = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        hint = "; it is a symbolic link" if error.errno == errno.ELOOP else ""
        raise WriteError(f"cannot open the lock file {path}: {error.strerror}{hint}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise WriteError(f"expected a regular file to lock, {path} is none")
    return fd


def is_still(path: str, fd: int) -> bool:
    """Whether the name still leads to what is open: somebody may have cleared the folder meanwhile."""
    try:
        here = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (mine.st_dev, mine.st_ino)


def write_note(fd: int) -> None:
    note = {"pid": os.getpid(), "host": socket.gethostname(), "command": " ".join(sys.orig_argv)[:60]}
    try:
        os.pwrite(fd, json.dumps({**note, "since": time.time()}).encode() + b"\n", 0)
    except OSError:
        pass  # a full disk is no reason not to have the lock


def clear_note(fd: int) -> None:
    try:
        os.ftruncate(fd, 0)
    except OSError:
        pass


def read_note(path: str) -> LockNote | None:
    """What is written there. It counts only while the lock is held: a killed holder leaves its note."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = json.loads(os.read(fd, _MOST_BYTES).split(b"\n")[0])
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
