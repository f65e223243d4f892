"""The workspace of one attempt: a directory below `tmp/`, with a lock that is released when its process dies.

The lock is on a separate file, because a reader of the committed part must be able to lock the data.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..._util.atomic import close_synced, is_still
from ..._util.failpoints import failpoint
from ...errors import WriteError

NO_LOCK = "no lock"

_LOCK = "lock"
_HOST = re.sub(r"[^A-Za-z0-9_.-]", "_", socket.gethostname())[:40]
_TRIES = 100
_COMMIT_FDS = 2  # of the data and of the record, which are synced together
_QUIET_S = 24 * 3600


class Workspace:
    """A locked directory. `close` removes it; `detach` only releases the lock.

    `reserve` keeps the descriptors that a commit will need, until `release_reserve`.
    """

    def __init__(self, tmp: Path, task: str) -> None:
        self.fd, self._pid = -1, os.getpid()
        self._reserve: list[int] = []
        for _ in range(_TRIES):
            self.folder = tmp / f"{_HOST}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
            try:
                os.mkdir(self.folder)
                failpoint("workspace-made")
                self.fd = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                if _take(self.fd) and is_still(self.folder / _LOCK, self.fd):
                    self.note(task)
                    return
            except FileNotFoundError:
                if not tmp.is_dir():
                    raise WriteError(f"{tmp}: the directory was removed while the dataset was being written") from None
                # else another process removed it before it was locked
            except OSError as error:
                remove_files(self.folder)
                self.detach()
                raise WriteError(f"cannot work in {tmp}: {error.strerror}") from error
            self.detach()
        raise WriteError(f"cannot work in {tmp}: new files vanished at once, {_TRIES} times in a row")

    def note(self, text: str) -> None:
        """Writes a line for cleaning up: first the task, then the name that the data are about to get."""
        os.write(self.fd, f"{text}\n".encode())

    def reserve(self, task: str) -> None:
        try:
            while len(self._reserve) < _COMMIT_FDS:
                self._reserve.append(os.dup(self.fd))
        except OSError as error:
            text = f"its commit needs {_COMMIT_FDS} free descriptors: {error.strerror}"
            raise WriteError(
                f"cannot open a part of task {task!r}: {text}; commit other parts first, or raise `ulimit -n`"
            ) from error

    def release_reserve(self) -> None:
        while self._reserve:
            close_synced(self._reserve.pop())

    def path(self, name: str) -> Path:
        return self.folder / name

    def detach(self) -> None:
        self.release_reserve()
        fd, self.fd = (
            self.fd,
            -1,
        )  # in this order: after a Ctrl-C in between, the number must not be closed a second time
        close_synced(fd)

    def close(self) -> None:
        """Removes the directory. Safe to call twice; what cannot be removed is left to the next process."""
        if self.fd >= 0:
            remove_files(self.folder)
            self.detach()

    def __del__(self) -> None:
        """Releases the lock also when a Ctrl-C interrupted the owner's cleanup."""
        self.close() if os.getpid() == self._pid else self.detach()


@contextmanager
def dead_workspace(folder: Path) -> Iterator[str | None]:
    """Yields the lines in a dead attempt's lock file, and holds its lock. None: it is alive or another user's."""
    try:
        fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Killed before it had a lock; or about to create it, and then its owner starts over with another directory.
        yield NO_LOCK if _is_empty(folder) and _is_quiet(folder) else None
        return
    except OSError:
        yield None  # another user's
        return
    try:
        yield os.pread(fd, 1 << 20, 0).decode(errors="replace") if _is_quiet(folder) and _take(fd) else None
    finally:
        os.close(fd)


def workspaces(tmp: Path) -> list[Path]:
    try:
        with os.scandir(tmp) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _is_quiet(folder: Path) -> bool:
    """Returns whether a free lock proves that its owner is dead. A network filesystem may keep locks per machine: a
    workspace of another machine must not have changed for a day."""
    if folder.name.rsplit("-", 2)[0] == _HOST:
        return True
    try:
        with os.scandir(folder) as entries:
            last_s = max([entry.stat().st_mtime for entry in entries], default=os.stat(folder).st_mtime)
    except OSError:
        return False
    return _now_s(folder.parent) - last_s > _QUIET_S


def _now_s(tmp: Path) -> float:
    """Returns the time by the file server's clock, which sets mtimes: this machine's may be wrong by days."""
    path = tmp / f".{uuid.uuid4().hex}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return time.time()
    try:
        os.unlink(path)
        return os.fstat(fd).st_mtime
    finally:
        os.close(fd)


def _is_empty(folder: Path) -> bool:
    try:
        return not os.listdir(folder)
    except OSError:
        return False


def _take(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def remove_dead_workspace(folder: Path, note: str) -> None:
    """Removes a workspace that dead_workspace yielded. One without a lock may be new: only if it is empty."""
    remove_files(folder, empty=note == NO_LOCK)


def remove_files(folder: Path, empty: bool = False) -> None:
    """Removes the files, the lock last: while it exists, no other process removes the rest."""
    try:
        for name in [] if empty else sorted(os.listdir(folder), key=lambda name: name == _LOCK):
            os.unlink(folder / name)
        os.rmdir(folder)
    except OSError:
        pass
