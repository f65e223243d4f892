"""Asking poll whether anybody is left at the other end of pipes, of this process and of others."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import select
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from .._native.look import compiled

_PIDFD_GETFD = 438  # the same number on every architecture
_GETPIPE_SZ = 1032
_AT_ONCE = 4096
# How many ends of another process are borrowed at a time. As long as that lasts, they are not closed when it closes
# them; a few are enough to share the cost of a call.
_BORROWED = 64
_WAYS = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}
_FULL = (errno.EMFILE, errno.ENFILE)
_libc = ctypes.CDLL(None, use_errno=True)


class Answer(NamedTuple):
    """`access` is `r`, `w` or `rw`."""

    access: str
    dead: bool


# A read end without writers hangs up, a write end without readers is an error; an `rw` end is its own far end.
_DEAD = {select.POLLHUP: Answer("r", True), select.POLLERR: Answer("w", True)}
_ALIVE = {way: Answer(access, False) for way, access in _WAYS.items()}
# By the numbers of native/look/ask.c: 1 reads, 2 writes, 4 dead.
_BY_NUMBER = {
    **{number: Answer(access, False) for number, access in ((1, "r"), (2, "w"), (3, "rw"))},
    5: Answer("r", True),
    6: Answer("w", True),
}


def poll_own(fds: Sequence[int]) -> dict[int, Answer]:
    """Ends of this process; needs no descriptor. An fd that is no pipe any more is left out."""
    answers: dict[int, Answer] = {}
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # poll refuses more descriptors than the soft limit, which may have been lowered since they were opened.
    step = _AT_ONCE if soft < 0 else max(1, min(_AT_ONCE, soft))
    for start in range(0, len(fds), step):
        answers.update(ask(fds[start : start + step]))
    return answers


def _ask(fds: Collection[int]) -> dict[int, Answer]:
    poller = select.poll()
    for fd in fds:
        poller.register(fd, 0)
    events = dict(poller.poll(0))
    answers = {}
    for fd in fds:
        try:
            fcntl.fcntl(fd, _GETPIPE_SZ)  # fails where it is another thing by now
            answers[fd] = _DEAD.get(events.get(fd, 0)) or _ALIVE[fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE]
        except (OSError, KeyError):
            continue
    return answers


def _ask_compiled(fds: Collection[int]) -> dict[int, Answer]:
    return _by_fd(fds, compiled.ask(list(fds)))


def _by_fd(fds: Iterable[int], numbers: bytes) -> dict[int, Answer]:
    return {fd: _BY_NUMBER[number] for fd, number in zip(fds, numbers, strict=True) if number}


def poll_other(pid: int, fds: Sequence[int]) -> dict[int, Answer]:
    """Ends of another process, borrowed for a moment; empty where that is not allowed or no descriptor is free."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return {}
    try:
        return ask_other(pidfd, fds)
    finally:
        os.close(pidfd)


def _ask_other_compiled(pidfd: int, fds: Sequence[int]) -> dict[int, Answer]:
    return _by_fd(fds, compiled.ask_other(pidfd, list(fds), _BORROWED))


def _ask_other(pidfd: int, fds: Sequence[int]) -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    waiting = list(reversed(fds))
    while waiting:
        borrowed: dict[int, int] = {}
        try:
            if not _borrow(pidfd, waiting, borrowed):
                break
            found = _ask(borrowed)
        finally:
            _give_back(borrowed)
        answers.update((borrowed[fd], answer) for fd, answer in found.items())
    return answers


def _borrow(pidfd: int, waiting: list[int], borrowed: dict[int, int]) -> bool:
    """Takes from the end of `waiting`: our number -> theirs. False: no more can be had."""
    while waiting and len(borrowed) < _BORROWED:
        fd = int(_libc.syscall(_PIDFD_GETFD, pidfd, waiting[-1], 0))
        if fd >= 0:
            borrowed[fd] = waiting.pop()
            continue
        error = ctypes.get_errno()
        if error in _FULL:
            return bool(borrowed)  # as many as there is room for; the next ones in their place
        if error != errno.EBADF:
            return False  # no right to it, or it has ended
        waiting.pop()  # closed meanwhile
    return True


def _give_back(borrowed: Collection[int]) -> None:
    """The kernel gave out the lowest free numbers: mostly they lie in one piece, which is closed by one call."""
    if borrowed and max(borrowed) - min(borrowed) + 1 == len(borrowed):
        os.closerange(min(borrowed), max(borrowed) + 1)
        return
    for fd in borrowed:
        os.close(fd)


ask = _ask_compiled if compiled else _ask
ask_other = _ask_other_compiled if compiled else _ask_other
