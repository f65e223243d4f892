"""More descriptors, and some kept back for the moment when there are none."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager


def raise_nofile(want: int | None = None) -> tuple[int, int]:
    """Raises the soft limit of open descriptors to `want`, or as far as the hard one lets it.

    Gives back what it was and what it is, -1 for unlimited. Never lowers it. Needs no privilege and no descriptor;
    children inherit it.
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
        # Some systems name a hard limit that they do not grant: what there is stays.
        return soft, soft
    return soft, goal


def _exceeds(one: int, other: int) -> bool:
    if other == resource.RLIM_INFINITY:
        return False
    return one == resource.RLIM_INFINITY or one > other


class Reserve:
    """Keeps `n` descriptors on /dev/null, to be given back one at a time when no other is free.

    `with reserve.spend(): …` frees one for the time of the block. Another thread may snatch it away: spend two then.

    There is no lock, because one held at a fork would stay held in the child: each step is a single operation on a
    list. In a forked child the reserve is the child's own and can be spent there as well.
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
        """How many are kept now."""
        return len(self._fds)

    @property
    def fds(self) -> tuple[int, ...]:
        """Their numbers, for those who count descriptors and leave these out."""
        return tuple(self._fds)

    @contextmanager
    def spend(self) -> Iterator[bool]:
        """One more free descriptor within the block, taken back at its end if it is free then. False: none was left."""
        spent = self._give()
        try:
            yield spent
        finally:
            if spent:
                self._take()

    def refill(self) -> bool:
        """Takes as many as are lacking and free; whether the reserve is whole again."""
        while len(self._fds) < self.n:
            if not self._take():
                return False
        return True

    def close(self) -> None:
        """Safe to call twice."""
        self._closed = True
        while self._give():
            pass

    def _give(self) -> bool:
        while True:
            try:
                fd = self._fds.pop()
            except IndexError:
                return False
            # Somebody who closes all descriptors (a daemon does) takes ours too; its number is then a stranger's.
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
        # Another thread may have closed the reserve, or have filled it up, since it was looked at.
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
    """Makes an open descriptor one of /dev/null: its number stays taken, and what is written to it is dropped."""
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
    """Returns a new descriptor of stdout and points descriptor 1 to stderr: what libraries print must not get between
    the messages that this process sends on stdout."""
    out = os.dup(1)
    os.dup2(2, 1)
    return out
