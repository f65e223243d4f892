"""Who is at the other end of a pipe: this process itself, another one, or nobody any more.

Ends are paired by inode over the processes looked at. Of an end without a partner there the kernel is asked by poll:
the far end may be held by a process outside, or be on its way through a socket. Only poll can say that it is dead.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from enum import StrEnum
from typing import NamedTuple

from .descriptors import Descriptor, Kind

_PIDFD_GETFD = 438  # the same number on every architecture
_AT_ONCE = 4096
_NOBODY: frozenset[int] = frozenset()
_libc = ctypes.CDLL(None, use_errno=True)

# What a process's ends without a partner answer: fd -> whether it is dead; an fd left out is unknown.
Poller = Callable[[int, Sequence[Descriptor]], Mapping[int, bool]]


class Fate(StrEnum):
    SELF = "self"  # both ends here, and in no other process that was looked at
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class PipeEnd(NamedTuple):
    """`peers` are the other processes with the far end; none, and alive: a process that was not looked at has it."""

    pid: int
    fd: int
    inode: int
    access: str
    fate: Fate
    peers: tuple[int, ...] = ()


def pair_pipes(tables: Mapping[int, Iterable[Descriptor]], poll: Poller | None = None) -> list[PipeEnd]:
    """Every pipe end of these processes, by pid and fd."""
    pipes = {pid: [one for one in table if one.kind is Kind.PIPE] for pid, table in tables.items()}
    holders: dict[tuple[int | None, str], set[int]] = {}
    for pid, ends in pipes.items():
        for end in ends:
            for way in end.access:
                holders.setdefault((end.inode, way), set()).add(pid)
    found = []
    for pid, ends in pipes.items():
        far = {end.fd: _far_holders(holders, end) for end in ends}
        alone = [end for end in ends if end.access and not far[end.fd]]
        dead = poll(pid, alone) if poll and alone else {}
        for end in ends:
            fate = _fate(pid, far[end.fd], dead.get(end.fd)) if end.access else Fate.UNKNOWN
            peers = tuple(sorted(far[end.fd] - {pid})) if fate is Fate.ALIVE else ()
            found.append(PipeEnd(pid, end.fd, end.inode or 0, end.access, fate, peers))
    return found


def _far_holders(holders: Mapping[tuple[int | None, str], AbstractSet[int]], end: Descriptor) -> AbstractSet[int]:
    if end.access == "rw":
        return holders[end.inode, "r"] | holders[end.inode, "w"]
    return holders.get((end.inode, "w" if end.access == "r" else "r"), _NOBODY)


def _fate(pid: int, far: AbstractSet[int], dead: bool | None) -> Fate:
    if far:
        return Fate.SELF if far == {pid} else Fate.ALIVE
    if dead is None:
        return Fate.UNKNOWN
    return Fate.DEAD if dead else Fate.ALIVE


def poll_own(ends: Sequence[Descriptor]) -> dict[int, bool]:
    """Ends of this process: a read end without writers hangs up, a write end without readers is an error.

    Needs no descriptor. An fd that is another thing by now is left out.
    """
    answers: dict[int, bool] = {}
    still = [end.fd for end in ends if _inode_of_pipe(end.fd) == end.inode]
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # poll refuses more descriptors than the soft limit, which may have been lowered since they were opened.
    step = _AT_ONCE if soft < 0 else max(1, min(_AT_ONCE, soft))
    for start in range(0, len(still), step):
        part = still[start : start + step]
        poller = select.poll()
        for fd in part:
            poller.register(fd, 0)
        events = dict(poller.poll(0))
        for fd in part:
            event = events.get(fd, 0)
            if not event & select.POLLNVAL:
                answers[fd] = bool(event & (select.POLLHUP | select.POLLERR))
    return answers


def _inode_of_pipe(fd: int) -> int | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_ino if stat.S_ISFIFO(found.st_mode) else None


def poll_other(pid: int, ends: Sequence[Descriptor]) -> dict[int, bool]:
    """Ends of another process, each borrowed for a moment; empty where that is not allowed or no descriptor is free."""
    answers: dict[int, bool] = {}
    with ExitStack() as stack:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return answers
        stack.callback(os.close, pidfd)
        for end in ends:
            borrowed = int(_libc.syscall(_PIDFD_GETFD, pidfd, end.fd, 0))
            if borrowed < 0:
                continue  # closed meanwhile, or no right to look
            try:
                answer = poll_own([end._replace(fd=borrowed)])
            finally:
                os.close(borrowed)
            if borrowed in answer:
                answers[end.fd] = answer[borrowed]
    return answers
