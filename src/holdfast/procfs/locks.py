"""Which processes hold a lock on a file, and which wait for one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from .procfs import REAL, ProcFS, list_pids, read_or_none, stat_or_none

_SHOWN = 60


class LockKind(StrEnum):
    FLOCK = "flock"
    POSIX = "posix"  # lockf, fcntl(F_SETLK): of a process, gone as soon as it closes any descriptor of the file
    OFD = "ofd"  # fcntl(F_OFD_SETLK): of an open file, as flock
    LEASE = "lease"


_KINDS = {"FLOCK": LockKind.FLOCK, "POSIX": LockKind.POSIX, "OFDLCK": LockKind.OFD, "LEASE": LockKind.LEASE}


class LockRow(NamedTuple):
    """One row of `/proc/locks`. `pid` is -1 for an open file's lock and 0 for a process this /proc does not show."""

    kind: LockKind
    exclusive: bool
    pid: int
    device: tuple[int, int]
    inode: int
    waiting: bool = False


class Lock(NamedTuple):
    """One process with a lock, or waiting for it. `pid` None: it is held, but by none that this user may look into.

    `inherited`: another process took the lock, and this one got the descriptor from it (over a fork, mostly): the lock
    stays until both have closed it.
    """

    pid: int | None
    command: str
    kind: LockKind
    exclusive: bool
    waiting: bool = False
    inherited: bool = False


def parse_locks(text: str) -> list[LockRow]:
    """`/proc/locks`, or the `lock:` rows of a `/proc/PID/fdinfo/FD`; a row with an arrow waits for the one above.

    ```
    1: FLOCK  ADVISORY  WRITE 2450 fe:00:2146545 0 EOF
    1: -> FLOCK  ADVISORY  WRITE 2451 fe:00:2146545 0 EOF
    2: POSIX  ADVISORY  READ  5433 08:01:7864448 128 128
    3: OFDLCK ADVISORY  READ  -1 08:06:7864612 0 EOF
    ```
    """
    found = []
    for line in text.splitlines():
        words = line.removeprefix("lock:").split()[1:]
        waiting = words[:1] == ["->"]
        row = _parse_row(words[waiting:], waiting)
        if row is not None:
            found.append(row)
    return found


def _parse_row(words: list[str], waiting: bool) -> LockRow | None:
    try:
        major, minor, inode = words[4].split(":")
        return LockRow(
            kind=_KINDS[words[0]],
            exclusive=words[2] in ("WRITE", "RW"),
            pid=int(words[3]),
            device=(int(major, 16), int(minor, 16)),
            inode=int(inode),
            waiting=waiting,
        )
    except (IndexError, KeyError, ValueError):
        return None  # a torn line, or a kind of lock of a kernel to come


def locks_of(path: str | os.PathLike[str], procfs: ProcFS = REAL) -> list[Lock] | None:
    """Who holds a lock on this file now, holders first, then those who wait. None: that cannot be seen.

    Needs descriptors: three at most at a time. OSError: there is no such file.
    """
    want = os.stat(path)
    text = read_or_none(procfs, "/proc/locks")
    if text is None:
        return None
    devices = {(os.major(want.st_dev), os.minor(want.st_dev))}
    rows = [row for row in parse_locks(text) if row.inode == want.st_ino]
    if rows and not any(row.device in devices for row in rows):
        # btrfs and overlays tell stat() another device than they tell the table of locks.
        devices = _devices_of_mount(procfs, os.path.realpath(path))
    rows = [row for row in rows if row.device in devices]
    return [*_holding(procfs, [row for row in rows if not row.waiting]), *_waiting(procfs, rows)]


def _holding(procfs: ProcFS, rows: list[LockRow]) -> Iterator[Lock]:
    """The table names who took the lock; descriptors tell who has it: they are copied by fork, and sent."""
    if not rows:
        return
    having: dict[tuple[LockKind, bool, int], list[int]] = {}
    for pid in list_pids(procfs):
        for row in _rows_of(procfs, pid, rows[0]):
            pids = having.setdefault((row.kind, row.exclusive, row.pid), [])
            if pid not in pids:
                pids.append(pid)
    told = set()
    for row in rows:
        key = (row.kind, row.exclusive, row.pid)
        if key in told:
            continue  # another range of the same process's, or another open file's: all of those are in `having`
        told.add(key)
        alive = row.pid > 0 and stat_or_none(procfs, f"/proc/{row.pid}") is not None
        pids = having.get(key, [])
        if alive and row.pid not in pids and not pids:
            pids = [row.pid]  # another user's: its descriptors may not be seen
        for pid in sorted(pids, key=lambda pid: pid != row.pid):
            taker = pid == row.pid or row.kind is LockKind.OFD
            yield Lock(pid, command_of(procfs, pid), row.kind, row.exclusive, inherited=not taker)
        if not pids:
            yield Lock(None, "", row.kind, row.exclusive)


def _waiting(procfs: ProcFS, rows: Iterable[LockRow]) -> Iterator[Lock]:
    for row in rows:
        if row.waiting:
            known = row.pid if row.pid > 0 else None
            command = "" if known is None else command_of(procfs, known)
            yield Lock(known, command, row.kind, row.exclusive, waiting=True)


def _rows_of(procfs: ProcFS, pid: int, like: LockRow) -> Iterator[LockRow]:
    """The locks on that file that this process has a descriptor of. Nothing is followed: it may be on a dead mount."""
    folder = f"/proc/{pid}/fd"
    try:
        names = procfs.listdir(folder)
    except OSError:
        return
    for name, target in zip(names, procfs.read_targets(folder, names), strict=True):
        if target.startswith("/"):
            for row in parse_locks(_lock_lines(read_or_none(procfs, f"/proc/{pid}/fdinfo/{name}") or "")):
                if (row.device, row.inode) == (like.device, like.inode):
                    yield row


def _lock_lines(fdinfo: str) -> str:
    return "\n".join(line for line in fdinfo.splitlines() if line.startswith("lock:"))


def _devices_of_mount(procfs: ProcFS, path: str) -> set[tuple[int, int]]:
    """The device of the file system a path is on, by `/proc/self/mountinfo`.

    ```
    27 1 254:0 / / rw,relatime - ext4 /dev/root rw
    31 27 0:29 /vol /data rw,relatime shared:7 - btrfs /dev/vdb rw
    ```
    """
    best, found = "", set()
    for line in (read_or_none(procfs, "/proc/self/mountinfo") or "").splitlines():
        words = line.split()
        try:
            major, minor = map(int, words[2].split(":"))
            point = words[4].encode().decode("unicode_escape")
        except (IndexError, ValueError):
            continue
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, found = point, {(major, minor)}
    return found


def command_of(procfs: ProcFS, pid: int) -> str:
    """`python3 train.py`, short; "" where it may not be read."""
    text = (read_or_none(procfs, f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    text = text or (read_or_none(procfs, f"/proc/{pid}/comm") or "").strip()
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


# Which processes hold a file open for writing.


class Holder(NamedTuple):
    pid: int
    fd: int
    command: str


def writers_of(path: str | os.PathLike[str]) -> list[Holder]:
    """Every process (that this user may look at) with a descriptor of this file open for writing. Linux; else none."""
    try:
        want = os.stat(path)
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    found = []
    for pid in pids:
        for fd in _descriptors(pid):
            try:
                got = os.stat(f"/proc/{pid}/fd/{fd}")
                if (got.st_dev, got.st_ino) == (want.st_dev, want.st_ino) and _writes(
                    _read(f"/proc/{pid}/fdinfo/{fd}")
                ):
                    found.append(Holder(pid, fd, _command(_read(f"/proc/{pid}/cmdline"))))
            except OSError:
                continue  # closed, or its process ended, since it was listed
    return found


def _descriptors(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _writes(fdinfo: str) -> bool:
    """`pos:\\t0\\nflags:\\t0100001\\n…` -> True: the lowest two octal bits are the access mode."""
    for line in fdinfo.splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _command(cmdline: str) -> str:
    """`python3\\0train.py\\0` -> `python3 train.py`, short."""
    text = " ".join(cmdline.split("\0")).strip()
    return text if len(text) <= 60 else text[:59] + "…"
