"""Lets one process or thread at a time run a block of code: `with hold.locked("run.h5", timeout=60): …`."""

from __future__ import annotations

import errno
import os
import threading
import time
import warnings
import weakref
from typing import Self

from ..._util import atomic
from ..._util.process import call_after_fork
from ..._util.text import time_argument
from ...errors import ForkedWriterError, InputError, LockTimeoutError, WriteError, WriterBusyError
from .holders import locks
from .lock_file import clear_note, filesystem_of, lock_path, open_lock_file, read_note, write_note

_MIN_PAUSE_S = 0.001
_MAX_PAUSE_S = 0.05

_taken: weakref.WeakValueDictionary[tuple[int, str], Locked] = weakref.WeakValueDictionary()  # by thread, lock file


def locked(path: str | os.PathLike[str], shared: bool = False, timeout: str | float | None = None) -> Locked:
    """Returns a lock for `path`, for use with `with`: exclusive, or one of any number of shared ones.

    The lock is on `PATH.lock`; `path` need not exist, and may be replaced. The lock is advisory: it excludes only other
    callers of `locked`.

    Args:
        path: The file to protect.
        shared: Any number of shared locks may be held at a time, but none beside an exclusive one.
        timeout: How long to wait, in seconds or as a text such as "10min"; None waits forever, 0 tries once.

    Raises:
        LockTimeoutError: It is held by another process, which the error names.
    """
    timeout_s = None if timeout is None else time_argument(timeout, "timeout")
    return Locked(path, shared=shared, timeout_s=timeout_s)


class Locked:
    """A lock that `with` takes; it may be used again afterwards. The lock ends with its process.

    The lock is not reentrant: a second `with` in the same thread would wait for itself and raises. Threads exclude
    each other. A forked child does not hold the lock: leaving the block there does nothing, `check` raises.
    """

    def __init__(self, path: str | os.PathLike[str], *, shared: bool = False, timeout_s: float | None = None) -> None:
        self._fd = -1
        self.path = os.fsdecode(path)
        self.shared = shared
        self._timeout_s = timeout_s
        self._lock_path = lock_path(path)
        self._owner = 0  # the process
        self._key = (0, "")
        self._taking = threading.Lock()

    @property
    def held(self) -> bool:
        """Returns whether this process holds the lock now."""
        return self._fd >= 0 and self._owner == os.getpid()

    def check(self) -> None:
        """Raises unless this process holds the lock and others still see it: call it before a critical step."""
        if self._owner not in (0, os.getpid()):
            raise ForkedWriterError(
                f"the lock on {self.path} is process {self._owner}'s; process {os.getpid()} was forked from it and "
                "does not hold it. Take the lock again in the child"
            )
        if self._fd < 0:
            raise WriteError(f"the lock on {self.path} is not held: use it inside its `with` block")
        if not atomic.is_still(self._lock_path, self._fd):
            raise WriteError(f"{self._lock_path} was removed or replaced: others no longer see the lock")

    def __repr__(self) -> str:
        return f"<Locked {self.path!r}: {'held' if self.held else 'not held'}>"

    def __enter__(self) -> Self:
        key = threading.get_ident(), self._lock_path
        if key in _taken or not self._taking.acquire(blocking=False):
            raise WriterBusyError(
                f"{self.path} is already locked by this {_thread_or_object(key)}: it would wait for itself"
            )
        try:
            self._owner, self._key = os.getpid(), key
            call_after_fork(self)  # before there is anything to inherit
            self._take()
            _taken[key] = self
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _take(self) -> None:
        until = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        pause_s = _MIN_PAUSE_S
        while not self._try():
            left_s = _MAX_PAUSE_S if until is None else until - time.monotonic()
            if left_s <= 0:
                raise self._timeout_error()
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _try(self) -> bool:
        if self._fd < 0:
            self._fd = open_lock_file(self._lock_path, shared=self.shared)
        try:
            if not atomic.try_lock(self._fd, shared=self.shared):
                if not atomic.is_still(self._lock_path, self._fd):
                    self._close()  # a lock on the old file no longer matters
                return False
        except OSError as error:
            raise self._unsupported(str(error.strerror)) from error
        if not atomic.is_still(self._lock_path, self._fd):
            self._close()
            return False
        self._verify_exclusion()
        if not self.shared:
            write_note(self._fd)
        return True

    def _verify_exclusion(self) -> None:
        """Verifies that a second open file cannot take the lock: some file systems grant it to everybody."""
        may_write = os.access(self._lock_path, os.W_OK)
        other = open_lock_file(self._lock_path, shared=not (self.shared and may_write))
        try:
            if atomic.try_lock(other, shared=not self.shared) and atomic.is_still(self._lock_path, self._fd):
                raise self._unsupported("it granted one lock twice at a time")
        except OSError as error:
            if error.errno != errno.EBADF:  # an exclusive lock cannot be tried on a file that is open for reading only
                raise self._unsupported(str(error.strerror)) from error
        finally:
            os.close(other)

    def _unsupported(self, reason: str) -> WriteError:
        where = filesystem_of(self._lock_path)
        place = f" ({where})" if where else ""
        return WriteError(
            f"cannot lock {self.path}: locks do not work on this file system{place}: {reason}. "
            "Move the shared files to another file system, or let one process do the writing"
        )

    def _timeout_error(self) -> LockTimeoutError:
        waited = f"{self.path}: no {'shared' if self.shared else 'exclusive'} lock within {self._timeout_s:g} s"
        try:
            found = [lock for lock in locks(self._lock_path) if not lock.waiting]
        except InputError:
            found = []
        if found and any(lock.pid is not None for lock in found):
            text = "; ".join(str(lock) for lock in found)
            return LockTimeoutError(f"{waited}: {text}", tuple(lock.pid for lock in found if lock.pid is not None))
        note = read_note(self._lock_path)
        holder = f"{note}, according to its lock file" if note else "a process that is not visible from here"
        return LockTimeoutError(f"{waited}: held by {holder}")

    def _release(self) -> None:
        if self._owner != os.getpid():
            self._close()  # a child whose fork hook did not run; unlocking would release the parent's lock
            return
        self._unregister()
        try:
            if self._fd >= 0:
                self._unlock()
        finally:
            self._close()
            self._owner = 0
            self._taking.release()

    def _unlock(self) -> None:
        """Unlocks: closing alone would leave the lock with a child that C code forked without Python's hooks."""
        if not self.shared:
            clear_note(self._fd)
        try:
            atomic.unlock(self._fd)
        except OSError:
            pass  # the file system is gone; closing the descriptor releases the lock as well

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def after_fork_in_child(self) -> None:
        """Closes the descriptor: a child that outlives a killed parent must not keep its lock."""
        self._close()
        self._taking = threading.Lock()
        self._unregister()

    def _unregister(self) -> None:
        if _taken.get(self._key) is self:
            del _taken[self._key]

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            warnings.warn(f"the lock on {self.path} was taken and never released", ResourceWarning, 2)
            self._release()


def _thread_or_object(key: tuple[int, str]) -> str:
    return "thread" if key in _taken else "object"
