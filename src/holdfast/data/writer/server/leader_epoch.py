"""Leader epoch: a fencing token. Only the server with the highest epoch may write the journal.

A server takes an epoch by creating `EPOCH-n`, which only one can. It holds a lock on the file while it lives, and the
file names its process. The next server unlinks older files *before* it reads the journal; the older server checks that
its file still has a name *after* it has written and *before* it acknowledges. So everything it acknowledged was
written before its successor read the journal.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from ...._util.atomic import make_folder, sync_folder
from ...._util.failpoints import failpoint
from ....errors import WriteError, WriterBusyError
from ..directory import parse_claim
from ..workspace import Workspace
from .segment import parse_segment

_NAME = re.compile(r"EPOCH-(\d+)")
_MARKS = re.compile(r"marks-(\d+)\.json")
_TASK = re.compile(r"server-(\d+)-\d+")
_TRIES = 100
_TAKEOVER_WAIT_S = 3.0
_TICK_S = 0.02


class LeaderEpoch:
    """This server's epoch. `check` raises once another server has taken over."""

    def __init__(self, folder: Path, *, take_over: bool = False) -> None:
        self._journal = folder / "journal"
        make_folder(self._journal)
        self.fd = -1
        workspace = Workspace(folder / "tmp", "EPOCH")
        try:
            draft = workspace.path("epoch")
            self.fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self.fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
            self.number = self._take(folder, draft, take_over)
        except BaseException:
            self.close()
            raise
        finally:
            workspace.close()
        sync_folder(self._journal)
        failpoint("server-epoch-taken")
        older = [number for number in self._numbers() if number < self.number]
        last = _open(self._path(max(older))) if older else -1
        for number in older:
            self._path(number).unlink(missing_ok=True)
        if last >= 0:
            _wait_for_end(last)

    def _take(self, folder: Path, draft: Path, take_over: bool) -> int:
        for _ in range(_TRIES):
            there = self._numbers()
            if there and not take_over:
                self._check_not_running(max(there))
            number = 1 + max([*there, *_older(folder)], default=0)
            try:
                os.link(draft, self._path(number))
            except FileExistsError:
                continue  # another server starts at the same time
            return number
        raise WriteError(f"{folder}: {_TRIES} other servers started at the same time")

    def _check_not_running(self, number: int) -> None:
        try:
            fd = os.open(self._path(number), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"{self._journal.parent} is already served by {_describe_owner(fd)}"
            raise WriterBusyError(f"{text}; stop it, or take over (take_over=True, --take-over)") from None
        finally:
            os.close(fd)

    def check(self) -> None:
        if os.fstat(self.fd).st_nlink:
            return
        later = [number for number in self._numbers() if number > self.number]
        if later:
            who = _read_owner(self._path(max(later)))
            text = f"{self._journal.parent}: {who} has taken over (epoch {max(later)}); nothing acknowledged is lost"
            raise WriterBusyError(text)
        raise WriteError(f"{self._journal.parent}: the directory was removed while it was served")

    def _numbers(self) -> list[int]:
        return sorted(int(found[1]) for name in _listed(self._journal) if (found := _NAME.fullmatch(name)))

    def _path(self, number: int) -> Path:
        return self._journal / f"EPOCH-{number}"

    def close(self) -> None:
        """Releases the lock. The file stays: no later server may use the same number."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def _wait_for_end(fd: int) -> None:
    """Waits for an older server, which notices within a second that it is fenced off, and exits. A suspended one does
    not; then only its epoch keeps it from acknowledging anything."""
    deadline = time.monotonic() + _TAKEOVER_WAIT_S
    try:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(_TICK_S)
    finally:
        os.close(fd)


def _older(folder: Path) -> list[int]:
    """Returns the epochs in other file names: they stay taken even if somebody removed their EPOCH files."""
    found = [segment[0] for name in _listed(folder / "journal") if (segment := parse_segment(name))]
    found += [int(marks[1]) for name in _listed(folder / "journal") if (marks := _MARKS.fullmatch(name))]
    tasks = [parse_claim(name) for name in _listed(folder / "parts")]
    return found + [int(task[1]) for one in tasks if one and (task := _TASK.fullmatch(one))]


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _read_owner(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "another server"
    try:
        return _describe_owner(fd)
    finally:
        os.close(fd)


def _describe_owner(fd: int) -> str:
    try:
        content: Any = json.loads(os.pread(fd, 4096, 0))
        return f"process {int(content['pid'])} on {content['host']}"
    except (ValueError, LookupError, TypeError):
        return "another process"
