"""Finds the processes that hold a lock on a file, wait for one, or have the file open for writing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from .procfs import REAL, ProcFS, list_pids, read_or_none, stat_or_none

_SHOWN = 60


class LockKind(StrEnum):
    FLOCK = "flock"
    POSIX = "posix"  # lockf, fcntl(F_SETLK): owned by a process, released when it closes any descriptor of the file
    OFD = "ofd"  # fcntl(F_OFD_SETLK): owned by an open file description, like flock
    LEASE = "lease"


_KINDS = {"FLOCK": LockKind.FLOCK, "POSIX": LockKind.POSIX, "OFDLCK": LockKind.OFD, "LEASE": LockKind.LEASE}


class LockRow(NamedTuple):
    """A row of `/proc/locks`. `pid` is -1 for an OFD lock and 0 for a process that is not visible in this /proc."""

    kind: LockKind
    exclusive: bool
    pid: int
    device: tuple[int, int]
    inode: int
    waiting: bool = False


class Lock(NamedTuple):
    """A process that holds a lock or waits for it. `pid` None: no process that this user may inspect holds it.

    `inherited`: another process took the lock and this one has a copy of the descriptor, usually from a fork. The lock
    is released when both have closed it.
    """

    pid: int | None
    command: str
    kind: LockKind
    exclusive: bool
    waiting: bool = False
    inherited: bool = False


def parse_locks(text: str) -> list[LockRow]:
    """Parses `/proc/locks`, or the `lock:` rows of `/proc/PID/fdinfo/FD`. A row with an arrow waits for the one above.

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
        return None  # an incomplete line, or a kind of lock that a later kernel adds


def locks_of(path: str | os.PathLike[str], procfs: ProcFS = REAL) -> list[Lock] | None:
    """Lists the processes that hold a lock on this file, then those that wait. None: `/proc/locks` cannot be read.

    Needs up to three free descriptors. Raises OSError if there is no such file.
    """
    status = os.stat(path)
    text = read_or_none(procfs, "/proc/locks")
    if text is None:
        return None
    device = os.major(status.st_dev), os.minor(status.st_dev)
    rows = [row for row in parse_locks(text) if row.inode == status.st_ino]
    if rows and not any(row.device == device for row in rows):
        # btrfs and overlayfs report another device to stat() than to /proc/locks.
        mount = find_mount(procfs, os.path.realpath(path))
        device = (-1, -1) if mount is None else mount.device
    rows = [row for row in rows if row.device == device]
    return [*_holding(procfs, [row for row in rows if not row.waiting]), *_waiting(procfs, rows)]


def _holding(procfs: ProcFS, rows: list[LockRow]) -> Iterator[Lock]:
    """Yields holders. `/proc/locks` names who took a lock; open descriptors, copied by fork, show who has it now."""
    if not rows:
        return
    having: dict[tuple[LockKind, bool, int], list[int]] = {}
    for pid in list_pids(procfs):
        for row in _rows_of(procfs, pid, rows[0]):
            pids = having.setdefault((row.kind, row.exclusive, row.pid), [])
            if pid not in pids:
                pids.append(pid)
    reported = set()
    for row in rows:
        key = (row.kind, row.exclusive, row.pid)
        if key in reported:
            continue  # another byte range, or another open file: `having` covers all of those
        reported.add(key)
        alive = row.pid > 0 and stat_or_none(procfs, f"/proc/{row.pid}") is not None
        pids = having.get(key, [])
        if alive and row.pid not in pids and not pids:
            pids = [row.pid]  # another user's process, whose descriptors this one may not list
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
    """Yields the locks on that file for which a process has a descriptor, without following links to dead mounts."""
    folder = f"/proc/{pid}/fd"
    try:
        names = procfs.listdir(folder)
    except OSError:
        return
    for name, target in zip(names, procfs.read_targets(folder, names), strict=True):
        if target.startswith("/"):
            for row in parse_locks("\n".join(lock_lines(procfs, pid, name))):
                if (row.device, row.inode) == (like.device, like.inode):
                    yield row


def lock_lines(procfs: ProcFS, pid: int, fd: str) -> list[str]:
    """Returns the `lock:` rows of a descriptor's fdinfo."""
    text = read_or_none(procfs, f"/proc/{pid}/fdinfo/{fd}") or ""
    return [line for line in text.splitlines() if line.startswith("lock:")]


class Mount(NamedTuple):
    """A file system as `/proc/self/mountinfo` lists it."""

    point: str
    device: tuple[int, int]
    kind: str


def find_mount(procfs: ProcFS, path: str) -> Mount | None:
    """Finds the mount that a path is on; None if the list cannot be read.

    ```
    27 1 254:0 / / rw,relatime - ext4 /dev/root rw
    31 27 0:29 /vol /data rw,relatime shared:7 - btrfs /dev/vdb rw
    ```
    """
    found: Mount | None = None
    for line in (read_or_none(procfs, "/proc/self/mountinfo") or "").splitlines():
        words = line.split()
        try:
            major, minor = map(int, words[2].split(":"))
            point = words[4].encode().decode("unicode_escape")
            kind = words[words.index("-") + 1]
        except (IndexError, ValueError):
            continue
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (found is None or len(point) >= len(found.point)):
            found = Mount(point, (major, minor), kind)
    return found


def command_of(procfs: ProcFS, pid: int) -> str:
    """Returns the command line, shortened: `python3 train.py`; "" where it cannot be read."""
    text = (read_or_none(procfs, f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    text = text or (read_or_none(procfs, f"/proc/{pid}/comm") or "").strip()
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class Holder(NamedTuple):
    pid: int
    fd: int
    command: str


def writers_of(
    path: str | os.PathLike[str] | bytes, procfs: ProcFS = REAL, pids: Iterable[int] | None = None
) -> list[Holder]:
    """Lists the descriptors of this file that are open for writing, in all processes or in those of `pids`.

    Processes that this user may not inspect are left out. The list is empty where there is no /proc.
    """
    try:
        status = os.stat(path)
    except OSError:
        return []
    wanted = (status.st_dev, status.st_ino)
    return [
        Holder(pid, fd, command_of(procfs, pid))
        for pid, fd, identity in open_files(procfs, pids)
        if identity == wanted and _is_writable(read_or_none(procfs, f"/proc/{pid}/fdinfo/{fd}") or "")
    ]


def open_files(procfs: ProcFS = REAL, pids: Iterable[int] | None = None) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yields pid, descriptor, and (device, inode) of everything open in these processes, by default in all."""
    for pid in list_pids(procfs) if pids is None else pids:
        try:
            names = procfs.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue  # another user's process, or one that has ended
        for name in names:
            status = stat_or_none(procfs, f"/proc/{pid}/fd/{name}")
            if status is not None:
                yield pid, int(name), (status.st_dev, status.st_ino)


def _is_writable(fdinfo: str) -> bool:
    """Parses `pos:\\t0\\nflags:\\t0100001\\n…`, here True: the lowest two bits of the flags are the access mode."""
    for line in fdinfo.splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
