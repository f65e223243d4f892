"""Raises the descriptor limit, keeps descriptors in reserve, redirects standard ones, opens others' files safely."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager

_HIGH = 512


def raise_nofile(want: int | None = None) -> tuple[int, int]:
    """Raises the soft limit of open descriptors, and never lowers it. Children inherit the limit.

    It needs no privilege and no free descriptor.

    Args:
        want: The new limit, but at most the hard limit, which is the default.

    Returns:
        The old and the new soft limit, -1 for unlimited.
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


class OwnFd:
    """A descriptor that we keep open, and recognise before each use.

    Code that closes all descriptors, as a daemon does, closes ours, too, and a file of the program may have its number
    then. It is ours while it refers to the same inode with the same flags; in a forked child as well.
    """

    __slots__ = ("_fd", "_file", "_flags")

    def __init__(self, fd: int, *, is_shared: bool = False) -> None:
        """`is_shared`: it is a copy of another one, so that somebody else may change its flags."""
        self._fd = fd
        self._flags = os.O_ACCMODE if is_shared else -1
        self._file = self._identify(fd)

    @property
    def number(self) -> int:
        """Its number, or -1 if it was closed, here or by others."""
        fd = self._fd
        if fd >= 0 and self._identify(fd) != self._file:
            fd = self._fd = -1
        return fd

    def close(self) -> bool:
        """Closes it if it is still ours, and returns whether it was."""
        fd, self._fd = self.number, -1
        if fd < 0:
            return False
        os.close(fd)
        return True

    def _identify(self, fd: int) -> tuple[int, int, int] | None:
        try:
            found = os.fstat(fd)
            return found.st_dev, found.st_ino, fcntl.fcntl(fd, fcntl.F_GETFL) & self._flags
        except OSError:
            return None


def move_up(fd: int) -> int:
    """Gives a descriptor a high number, for C code that uses the number without a look at what it is: a program that
    has closed all of them does not reach it soon. Returns the new number, or the old one if there is none above."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    least = _HIGH if soft == resource.RLIM_INFINITY else min(_HIGH, soft * 3 // 4)
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    except OSError:
        return fd
    os.close(fd)
    return moved


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
        self._fds: list[OwnFd] = []
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
        return tuple(one.number for one in self._fds)

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
                one = self._fds.pop()
            except IndexError:
                return False
            if one.close():
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


def _open_null() -> OwnFd:
    # Flags that nobody else opens it with: the program has descriptors of /dev/null, too.
    return OwnFd(os.open(os.devnull, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC))


def open_regular(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    *,
    uid: int | None = None,
    dir_fd: int | None = None,
    follow: bool = False,
) -> int:
    """Opens a regular file in a place where another user may have put anything. It never waits, not even for a pipe.

    A symbolic link is an error unless `follow`. With `uid`, so is a file of another user, and, for writing, one with a
    second name: a hard link can lead to a file of anybody.
    """
    links = 0 if follow else os.O_NOFOLLOW
    fd = os.open(path, flags | links | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=dir_fd)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "expected a regular file", os.fspath(path))
        is_shared = flags & os.O_ACCMODE != os.O_RDONLY and found.st_nlink > 1
        if uid is not None and (found.st_uid != uid or is_shared):
            raise PermissionError(errno.EPERM, f"expected a file of user {uid} with one name", os.fspath(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


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
