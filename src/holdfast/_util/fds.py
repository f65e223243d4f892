"""Raises the descriptor limit, keeps descriptors in reserve for when none is free, and redirects standard ones."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager


def raise_nofile(want: int | None = None) -> tuple[int, int]:
    """Raises the soft limit of open descriptors to `want`, but at most to the hard limit, and never lowers it.

    Returns the old and the new soft limit, -1 for unlimited. It needs no privilege and no free descriptor. Children
    inherit the limit.
    """
    if want is not None and want < 1:
        raise ValueError(f"expected at least one descriptor, got {want}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = hard if want is None or _exceeds(want, hard) else want
    if not _exceeds(goal, soft):
        return soft, soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
    except (OSError, ValueError):
        # Some systems report a hard limit that they do not grant.
        return soft, soft
    return soft, goal


def _exceeds(one: int, other: int) -> bool:
    if other == resource.RLIM_INFINITY:
        return False
    return one == resource.RLIM_INFINITY or one > other


class Reserve:
    """Keeps `n` descriptors of /dev/null open, to be closed one at a time when no other is free.

    `with reserve.spend(): …` frees one for the time of the block. If another thread takes it first, spend two.

    There is no lock, because one held at a fork would stay held in the child: each step is a single operation on a
    list. A forked child has its own copy of the reserve and can spend it as well.
    """

    def __init__(self, n: int = 4) -> None:
        if n < 1:
            raise ValueError(f"expected a reserve of at least one descriptor, got {n}")
        self.n = n
        self._fds: list[int] = []
        self._closed = False
        try:
            for _ in range(n):
                self._fds.append(_open_null())
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Returns how many are open now."""
        return len(self._fds)

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors themselves, for code that counts open descriptors and leaves these out."""
        return tuple(self._fds)

    @contextmanager
    def spend(self) -> Iterator[bool]:
        """Frees a descriptor within the block, and refills the reserve after it if one is free. Yields False if the
        reserve was empty."""
        spent = self._give()
        try:
            yield spent
        finally:
            if spent:
                self._take()

    def refill(self) -> bool:
        """Opens the missing descriptors, as far as some are free. Returns whether the reserve is full again."""
        while len(self._fds) < self.n:
            if not self._take():
                return False
        return True

    def close(self) -> None:
        """Closes all of them. It may be called twice."""
        self._closed = True
        while self._give():
            pass

    def _give(self) -> bool:
        while True:
            try:
                fd = self._fds.pop()
            except IndexError:
                return False
            # Code that closes all descriptors, as a daemon does, closes ours too; another file may have its number now.
            if _is_null(fd):
                os.close(fd)
                return True

    def _take(self) -> bool:
        if self._closed:
            return False
        try:
            self._fds.append(_open_null())
        except OSError:
            return False
        # Another thread may have closed or filled the reserve since the check.
        if self._closed or len(self._fds) > self.n:
            self._give()
        return not self._closed

    def __enter__(self) -> Reserve:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_null() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _is_null(fd: int) -> bool:
    try:
        found = os.fstat(fd)
        return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev
    except OSError:
        return False


def point_to_null(fd: int, *, inheritable: bool = False) -> None:
    """Makes an open descriptor refer to /dev/null: its number stays in use, and writes to it are discarded."""
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        os.close(fd)  # no other descriptor is free
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    if null != fd:
        os.dup2(null, fd)
        os.close(null)
    os.set_inheritable(fd, inheritable)


def take_stdout() -> int:
    """Returns a new descriptor of stdout and points descriptor 1 to stderr, so that what libraries print does not mix
    with the messages that this process sends on stdout."""
    out = os.dup(1)
    os.dup2(2, 1)
    return out
