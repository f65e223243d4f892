"""Lists the processes that hold a lock on a file or have it open for writing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..._util.text import one_line
from ...errors import InputError
from ...procfs.locks import Holder, Lock, LockKind, lock_lines, locks_of, parse_locks, writers_of
from ...procfs.procfs import REAL, ProcFS, list_pids, read_or_none
from .lock_file import LOCK_SUFFIX, lock_path, read_note

_HEADS = ("pid", "command", "lock", "bytes", "state", "since", "on")


@dataclass(frozen=True, slots=True)
class FileLock:
    """A process that holds a lock or waits for it.

    `pid` None: the holder is a process that this user may not inspect, or on another host. `end` None: to the end of
    the file. `inherited`: another process took it and this one has its descriptor. `since` is known for `locked` only.
    """

    file: str
    pid: int | None
    command: str
    kind: LockKind
    exclusive: bool
    start: int = 0
    end: int | None = None
    waiting: bool = False
    inherited: bool = False
    since: float | None = None

    def __str__(self) -> str:
        who = "an unknown process" if self.pid is None else f"process {self.pid}"
        who += f" ({self.command})" if self.command else ""
        verb = "waits for" if self.waiting else "inherited" if self.inherited else "holds"
        span = "" if self.end is None and not self.start else f" on bytes {_span(self)}"
        what = f"{'an exclusive' if self.exclusive else 'a shared'} {_kind(self)} lock"
        return f"{who} {verb} {what}{span}" + (f" since {_clock(self.since)}" if self.since else "")


@dataclass(frozen=True, slots=True)
class Locks:
    """The locks and writers of a file. It is true if there is one; `str()` formats a table.

    `unseen` counts other users' processes: they may have the file open for writing, which only they and root can see.
    """

    __module__ = "holdfast"

    path: str
    locks: tuple[FileLock, ...]
    writers: tuple[Holder, ...]
    unseen: int

    def __bool__(self) -> bool:
        return bool(self.locks or self.writers)

    def __iter__(self) -> Iterator[FileLock]:
        return iter(self.locks)

    def __len__(self) -> int:
        return len(self.locks)

    def __str__(self) -> str:
        lines = [self.path, *(_table([_HEADS, *map(_row, self.locks)]) if self.locks else ["  no lock"])]
        writers = ", ".join(f"{one.pid} ({one.command})" if one.command else str(one.pid) for one in self.writers)
        lines.append(f"  open for writing: {writers or 'by no visible process'}")
        if self.unseen:
            lines.append(f"  unknown: {self.unseen} processes of other users")
        return "\n".join(lines)


def locks(path: str | os.PathLike[str]) -> Locks:
    """Lists who holds a lock on this file (flock, lockf, OFD locks and `hold.locked`), and who has it open for writing.

    The file is not opened: closing it would release this process's own `lockf` locks. Linux and this host only.
    """
    return find_locks(path, REAL)


def find_locks(path: str | os.PathLike[str], procfs: ProcFS) -> Locks:
    name = os.fsdecode(path)
    try:
        os.stat(name)
    except OSError as error:
        raise InputError(f"{name}: cannot inspect its locks: {error.strerror}") from error
    found = list(_locks_on(name, procfs))
    beside = lock_path(name)
    if os.path.isfile(beside):
        found += _locks_on(beside, procfs)
    return Locks(name, tuple(found), tuple(_one_each(writers_of(name))), _count_unseen(procfs))


def _locks_on(path: str, procfs: ProcFS) -> Iterator[FileLock]:
    try:
        held, inode = locks_of(path, procfs), os.stat(path).st_ino
    except OSError:
        return  # removed meanwhile
    if held is None:
        raise InputError(f"{path}: cannot inspect its locks: /proc/locks cannot be read")
    for lock in dict.fromkeys(held):  # OFD locks have no pid in /proc/locks: each holder appears for each row
        since = _since(path, lock)
        for start, end in _spans(lock, inode, procfs):
            yield FileLock(
                path, lock.pid, one_line(lock.command), *lock[2:4], start, end, lock.waiting, lock.inherited, since
            )


def _since(path: str, lock: Lock) -> float | None:
    """Reads the time from the note of `locked`. Other files have no note, and closing one may release locks."""
    if lock.kind is not LockKind.OFD or not lock.exclusive or lock.waiting or not path.endswith(LOCK_SUFFIX):
        return None
    note = read_note(path)
    return note.since if note is not None and note.pid == lock.pid else None


def _spans(lock: Lock, inode: int, procfs: ProcFS) -> list[tuple[int, int | None]]:
    """Returns the byte ranges of a process's locks; flock has none."""
    if lock.kind not in (LockKind.POSIX, LockKind.OFD):
        return [(0, None)]
    found: dict[tuple[int, int | None], None] = {}
    for line in _lines_about(lock, procfs):
        for row in parse_locks(line):
            mine = row.pid == lock.pid or row.kind is LockKind.OFD
            if mine and row.inode == inode and row[:2] == (lock.kind, lock.exclusive) and row.waiting == lock.waiting:
                start, end = line.split()[-2:]
                found[int(start), None if end == "EOF" else int(end)] = None
    return list(found) or [(0, None)]


def _lines_about(lock: Lock, procfs: ProcFS) -> Iterator[str]:
    """Yields the rows of `/proc/locks`; for an OFD lock that is held, the rows of the holder's fdinfo."""
    if lock.kind is not LockKind.OFD or lock.waiting or lock.pid is None:
        yield from (read_or_none(procfs, "/proc/locks") or "").splitlines()
        return
    try:
        fds = procfs.listdir(f"/proc/{lock.pid}/fdinfo")
    except OSError:
        return
    for fd in fds:
        yield from lock_lines(procfs, lock.pid, fd)


def _one_each(holders: list[Holder]) -> list[Holder]:
    return list({one.pid: one._replace(command=one_line(one.command)) for one in holders}.values())


def _count_unseen(procfs: ProcFS) -> int:
    unseen = 0
    for pid in list_pids(procfs):
        try:
            procfs.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            unseen += 1
        except OSError:
            pass  # it ended
    return unseen


def _row(lock: FileLock) -> tuple[str, ...]:
    state = "waits" if lock.waiting else "inherited" if lock.inherited else "holds"
    pid = "unknown" if lock.pid is None else str(lock.pid)
    since = _clock(lock.since) if lock.since else "unknown"
    return pid, lock.command or "unknown", _name(lock), _span(lock), state, since, os.path.basename(lock.file)


def _name(lock: FileLock) -> str:
    return f"{_kind(lock)} {'exclusive' if lock.exclusive else 'shared'}"


def _kind(lock: FileLock) -> str:
    return {LockKind.POSIX: "POSIX", LockKind.OFD: "OFD"}.get(lock.kind, str(lock.kind))


def _span(lock: FileLock) -> str:
    if lock.end is None:
        return f"{lock.start:,} to the end" if lock.start else "all"
    return f"{lock.start:,} to {lock.end:,}"


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
