"""A pool of open files within a budget of descriptors.

`with pool.use(path) as handle` opens the file if it is not open, and closes the least recently used one when the budget
is used up. A handle in use is never closed: a caller that needs another one waits.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Generic, Literal, Protocol, TypeVar

from ...._util.process import call_after_fork
from ....errors import HoldfastError, InputError
from ....procfs.descriptors import count
from ....procfs.procfs import REAL

_MAX_FILES = 1024  # more open files make nothing faster
_UNKNOWN_USED = 32
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_MAX_CAUSES = 64


def find_budget(open_files: int | str) -> int:
    """Returns a number unchanged; "auto" is half of what is free now, because the program opens files of its own."""
    if open_files == "auto":
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return _MAX_FILES
        used = count(REAL, os.getpid())
        return max(1, min(_MAX_FILES, (soft - (_UNKNOWN_USED if used is None else used)) // 2))
    if isinstance(open_files, bool) or not isinstance(open_files, int) or open_files < 1:
        raise ValueError(f'expected "auto" or at least one open file, got {open_files!r}')
    return open_files


def is_emfile(error: BaseException) -> bool:
    """Whether an error is, or was caused by, a lack of free descriptors."""
    return any(
        isinstance(one, OSError) and (one.errno in _NO_DESCRIPTOR or "errno = 24," in str(one))  # libhdf5's own text
        for one in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and the errors that it carries or was raised from."""
    found = [error]
    while found and len(found) < _MAX_CAUSES:
        one = found.pop()
        yield one
        inner = (*one.args, one.__cause__, None if one.__suppress_context__ else one.__context__)
        found += [other for other in inner if isinstance(other, BaseException)]


def explain_emfile(error: BaseException) -> str:
    """Explains a lack of free descriptors with this process's limits, in one line."""
    if any(isinstance(one, OSError) and one.errno == errno.ENFILE for one in _causes(error)):
        return "Too many open files on the whole machine (ENFILE, errno 23): see fs.file-max"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = count(REAL, os.getpid())
    return (
        f"Too many open files (EMFILE, errno 24): this process ({os.getpid()}) has {'all' if used is None else used} "
        f"of {soft} descriptors; its hard limit is {hard}. `holdfast doctor {os.getpid()}` shows what holds them"
    )


class Closable(Protocol):
    def close(self) -> None: ...


H = TypeVar("H", bound=Closable)


class OpenFile:
    """One descriptor, for pread."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


@dataclass(slots=True, eq=False)
class OpenEntry(Generic[H]):
    handle: H | None = None  # None while it is being opened
    users: list[int] = field(default_factory=list)  # the thread of each use


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """`open` is now, `maximum` the peak; `given_back` counts files closed because no descriptor was free."""

    budget: int
    open: int
    maximum: int
    opened: int
    given_back: int


class FilePool(Generic[H]):
    """Handles of one descriptor each, made by `opener`. Threads may share it.

    open_files: the most that are open at once; "auto" is half of what this process has free now
    wait_s:     how long to wait for a free place before it is an error
    size_of, max_bytes: idle files are closed so that no more than these bytes are open, if those in use are fewer

    A forked child begins with an empty pool: it closes what it inherited, also handles in use. The parent's stay open.
    """

    def __init__(
        self,
        opener: Callable[..., H],
        open_files: int | Literal["auto"] = "auto",
        *,
        wait_s: float = 60,
        size_of: Callable[[str], int] | None = None,
        max_bytes: int = 0,
    ) -> None:
        self.budget = find_budget(open_files)
        self._opener = opener
        self._size_of, self._max_bytes = size_of, max_bytes
        self._wait_s = wait_s
        self._entries: OrderedDict[str, OpenEntry[H]] = OrderedDict()  # least recently used first
        self._make_lock()
        self._max = self._opened = self._given_back = 0
        self._closed = False

    @contextmanager
    def use(self, path: str | os.PathLike[str]) -> Iterator[H]:
        """Yields the handle of a path, open at least until the end of the block."""
        entry, handle = self.take(os.fspath(path))
        try:
            yield handle
        finally:
            self.release(entry)

    def stats(self) -> PoolStats:
        with self._lock:
            return PoolStats(
                budget=self.budget,
                open=len(self._entries),
                maximum=self._max,
                opened=self._opened,
                given_back=self._given_back,
            )

    def close(self, *, in_use: bool = False) -> None:
        """Closes all handles that are not in use, and the others when they are released. Safe to call twice.

        in_use: closes these at once. Their users are gone, and were interrupted before they could release them.
        """
        with self._lock:
            self._closed = True
            while self._evict(in_use):
                pass
            self._changed.notify_all()

    def __enter__(self) -> FilePool[H]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def after_fork_in_child(self) -> None:
        """Replaces the lock, which another thread of the parent may have held, and closes what was inherited."""
        entries, self._entries = self._entries, OrderedDict()
        self._make_lock()
        for entry in entries.values():
            if entry.handle is not None:
                entry.handle.close()

    def _make_lock(self) -> None:
        # Taken directly, never through the Condition: a signal while entering one can leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def take(self, name: str, *given: Any) -> tuple[OpenEntry[H], H]:
        """Returns the handle of a path, open until it is released. `given`: more arguments for the opener."""
        until, thread = monotonic() + self._wait_s, threading.get_ident()
        with self._lock:
            while True:
                if self._closed:
                    raise ValueError("the pool of open files was closed")
                entry = self._entries.get(name)
                if entry is not None and entry.handle is not None:
                    entry.users.append(thread)
                    self._entries.move_to_end(name)
                    return entry, entry.handle
                if entry is None and (len(self._entries) < self.budget or self._evict()):
                    break
                self._wait(until, name, thread)
            while self._size_of and sum(map(self._size_of, (name, *self._entries))) > self._max_bytes:
                if not self._evict():
                    break
            entry = self._entries[name] = OpenEntry(users=[thread])
            self._max = max(self._max, len(self._entries))
            call_after_fork(self)  # again for each file: the registration is used up by a fork
        # Outside of the lock: a slow file system must not block the other threads.
        handle = self._open(name, given, entry, until)
        with self._lock:
            entry.handle = handle
            self._opened += 1
            self._changed.notify_all()
        return entry, handle

    def _open(self, name: str, given: tuple[Any, ...], entry: OpenEntry[H], until: float) -> H:
        try:
            while True:
                try:
                    return self._opener(name, *given)
                except (OSError, HoldfastError) as error:
                    if is_emfile(error):
                        self._give_back(name, error, until, entry)
                    elif isinstance(error, HoldfastError):
                        raise
                    else:
                        raise InputError(f"{name}: cannot be opened: {error.strerror or error}") from error
        except BaseException:
            with self._lock:
                self._forget(entry)
                self._changed.notify_all()
            raise

    def _give_back(self, name: str, error: Exception, until: float, mine: OpenEntry[H]) -> None:
        """Closes a file of this pool, or waits for one, because the process has no free descriptor."""
        with self._lock:
            if self._evict():
                self._given_back += 1
            elif not self._await_others(until, mine.users[0]):
                raise InputError(f"{name}: cannot be opened: {explain_emfile(error)}") from error

    def _wait(self, until: float, name: str, thread: int) -> None:
        if not self._await_others(until, thread):
            busy = ", ".join(list(self._entries)[:4]) + (", …" if self.budget > 4 else "")
            raise InputError(f"{name}: cannot be opened: all {self.budget} files that may be open are in use: {busy}")

    def _await_others(self, until: float, thread: int) -> bool:
        """Waits for a release. Returns False on a timeout, or if this thread itself has all handles in use."""
        if all(user == thread for entry in self._entries.values() for user in entry.users):
            return False
        return self._changed.wait(max(0.0, until - monotonic()))

    def _evict(self, in_use: bool = False) -> bool:
        """Closes the least recently used handle that is not in use, or with `in_use` any. False: there is none."""
        for name, entry in self._entries.items():
            if (in_use or not entry.users) and entry.handle is not None:
                del self._entries[name]
                entry.handle.close()
                return True
        return False

    def release(self, entry: OpenEntry[H]) -> None:
        with self._lock:
            entry.users.remove(threading.get_ident())
            if self._closed and not entry.users and self._forget(entry) and entry.handle is not None:
                entry.handle.close()
            self._changed.notify_all()

    def _forget(self, entry: OpenEntry[H]) -> bool:
        """Removes an entry. False in a forked child, which has removed its parent's entries."""
        for name, one in self._entries.items():
            if one is entry:
                del self._entries[name]
                return True
        return False
