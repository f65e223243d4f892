"""The guard's log, and what a worker writes into it before it ends at once: stacks, descriptors and their owners.

Everything here works with no free descriptor: the log is open, faulthandler writes to it directly, and the descriptor
table is read with readlink.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator

from ..._util.fds import OwnFd, move_up, raise_nofile
from ..._util.text import counted, one_line, printable
from ..doctor.fd_profile import suspect_fds
from ..fd_owners.owners import owners_summary
from .own_process import OwnProcess

HARD_EXIT = 70
_OWNERS_S = 3.0
# After that the process ends with exit code 1, wherever its dump is stuck.
_MAX_DUMP_S = 30.0
_SHOWN = 8
_ending = threading.Lock()


class GuardLog:
    """Lines on a descriptor that was opened at the start: a file that is appended to, or a copy of stderr.

    A full disk, a closed pipe and a pipe that nobody empties must not hold up the worker: what cannot be written now
    is dropped.
    """

    def __init__(self, path: str | os.PathLike[str] | None, prefix: str) -> None:
        self.path = "" if path is None else os.path.abspath(os.fspath(path))
        self.prefix = prefix
        self._is_closed = False
        self._stderr = None if path is not None else _identity(2)
        self._own = self._open()

    def _open(self) -> OwnFd:
        # With a high number: faulthandler writes to it, and cannot see whose it is.
        if not self.path:
            return OwnFd(move_up(_copy_stderr()), is_shared=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        return OwnFd(move_up(os.open(self.path, flags, 0o644)))

    @property
    def fd(self) -> int:
        """Its number. If the program closed all descriptors, it is opened again; -1 if that fails."""
        if (fd := self._own.number) >= 0 or self._is_closed:
            return fd
        if self.path or (self._stderr is not None and _identity(2) == self._stderr):
            with contextlib.suppress(OSError):
                self._own = self._open()
        return self._own.number

    def write(self, text: str) -> None:
        """Writes one line."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self.write_raw(f"{stamp} holdfast guard {self.prefix}: {printable(one_line(text))}\n")

    def write_raw(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError, ValueError):
            if (fd := self.fd) < 0:
                return
            poller = select.poll()  # needs no descriptor; threads cannot share one
            poller.register(fd, select.POLLOUT)
            for at in range(0, len(data), select.PIPE_BUF):
                # A pipe that is ready has room for this many bytes; stderr is shared, and must stay blocking.
                if not poller.poll(0):
                    return
                os.write(fd, data[at : at + select.PIPE_BUF])

    def close(self) -> None:
        self._is_closed = True
        self._own.close()


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _copy_stderr() -> int:
    if sys.__stderr__ is not None:  # otherwise 2 was closed at the start, and may be a data file now
        with contextlib.suppress(OSError):
            return os.dup(2)
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def end_at_once(log: GuardLog, own: OwnProcess, why: str, code: int, *, owners: bool) -> None:
    """Raises the soft limit, writes the dump and ends the process, whatever fails on the way."""
    if not _ending.acquire(blocking=False):  # another thread found the same
        time.sleep(2 * _MAX_DUMP_S)
    try:
        before, after = raise_nofile()
        _end_anyway(own)
        log.write(f"ends at once with exit code {code}: {why}")
        if after != before:
            log.write(f"raised its soft limit of descriptors from {before:,} to {after:,}")
        dump(log, own, owners=owners)
    finally:
        os._exit(code)


def _end_anyway(own: OwnProcess) -> None:
    """Ends the process if the dump itself gets stuck: on a pipe that nobody empties, or in a garbage collection.

    A thread in C, which needs no GIL. A signal would not do: the program may handle it, and PID 1 ignores it.
    """
    with contextlib.suppress(RuntimeError, OSError, ValueError):  # no further thread is allowed
        # Not to the log: its message must not get stuck, too.
        faulthandler.dump_traceback_later(_MAX_DUMP_S, exit=True, file=own.read_only_fd)


def dump(log: GuardLog, own: OwnProcess, *, owners: bool = True) -> None:
    """Writes the stacks of all threads, the descriptors by kind and, if asked, the referrer chains that hold them."""
    log.write("stacks of all threads:")
    _try(log, "the stacks", lambda: faulthandler.dump_traceback(log.fd, all_threads=True))
    _try(log, "the descriptors", lambda: _write_lines(log, describe_fds(own)))
    if owners:
        _try(log, "the owners", lambda: _write_lines(log, describe_owners(own)))


def _try(log: GuardLog, what: str, work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the rest of the dump and the exit must come, whatever fails
        log.write(f"{what} could not be written: {type(error).__name__}: {error}")


def _write_lines(log: GuardLog, lines: Iterator[str]) -> None:
    for line in lines:
        log.write(line)


def describe_fds(own: OwnProcess) -> Iterator[str]:
    """Yields the table by kind, dead pipes, and the paths that are open most often."""
    seen, profile = own.profile()
    kinds = ", ".join(f"{kind} {times:,}" for kind, times in seen.kinds.items())
    yield f"{counted(seen.fd_count or 0, 'descriptor')}: {kinds}"
    if profile.dead_pipes or profile.self_pairs:
        yield (
            f"{profile.hup:,} read ends without a writer, {profile.err:,} write ends without a reader, "
            f"{counted(profile.self_pairs, 'pipe')} with both ends in this process"
        )
    for group in seen.path_groups[:_SHOWN]:
        yield f"{len(group.fds):,} × {group.path}"


def describe_owners(own: OwnProcess) -> Iterator[str]:
    seen, _ = own.profile()
    held = set(own.fds_held)
    fds = [fd for fd in suspect_fds(seen) if fd not in held and fd > 2]
    for group in owners_summary(fds, within=_OWNERS_S)[:_SHOWN]:
        yield f"held by {group}"
