"""The one door to the kernel's account of processes.

Everything in this package that looks at a process takes a `ProcFS`, so that a fake one in memory can replay old
kernels, vanished processes and days of growth. Its methods raise OSError as the real calls do; the `*_or_none`
functions are for what may vanish, or be another user's, between two lines.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from .._native.look import compiled
from .netlink import UnixRow, read_unix_rows


class FileStat(Protocol):
    """What is used of an `os.stat_result`."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_ino(self) -> int: ...
    @property
    def st_nlink(self) -> int: ...
    @property
    def st_uid(self) -> int: ...
    @property
    def st_size(self) -> int: ...


class FilesystemStat(Protocol):
    """What is used of an `os.statvfs_result`."""

    @property
    def f_frsize(self) -> int: ...
    @property
    def f_blocks(self) -> int: ...
    @property
    def f_bfree(self) -> int: ...


class ProcFS(Protocol):
    """`/proc`, `/sys/fs/cgroup` and `/dev/shm`, by absolute paths."""

    def read_text(self, path: str) -> str: ...
    def listdir(self, path: str) -> list[str]: ...
    def readlink(self, path: str) -> str: ...
    def read_targets(self, folder: str, names: Sequence[str]) -> list[str]:
        """The target of each link; "" of those that are not there."""

    def read_modes(self, folder: str, names: Sequence[str]) -> list[int]:
        """The mode of each, of a link the link's own; 0 of those that are not there."""

    def stat(self, path: str, *, follow: bool = True) -> FileStat: ...
    def statvfs(self, path: str) -> FilesystemStat: ...
    def exists(self, path: str) -> bool: ...
    def rlimit(self, pid: int, which: int) -> tuple[int, int]:
        """Soft and hard, -1 for unlimited; `which` is one of resource.RLIMIT_*."""

    def own_pid(self) -> int | None:
        """This process as this `/proc` numbers it; None where this process is not in it."""

    def unix_rows(self) -> dict[int, UnixRow]:
        """The Unix sockets of this network namespace by inode, those that the kernel tells of."""


class RealProcFS:
    """The machine's own. Only `read_text` and `listdir` need a free descriptor."""

    def read_text(self, path: str) -> str:
        # Names of processes and files are bytes; a strange one must not end a scan.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_all(fd)
        finally:
            os.close(fd)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def readlink(self, path: str) -> str:
        return os.readlink(path)

    def read_targets(self, folder: str, names: Sequence[str]) -> list[str]:
        with _opened(folder) as (prefix, place):
            found = read_links(prefix, names, place)
            # The listing's own descriptor is closed by now; this one most likely has got its number.
            if place >= 0 and str(place) in names and _is_own(folder):
                found[names.index(str(place))] = ""
            return found

    def read_modes(self, folder: str, names: Sequence[str]) -> list[int]:
        with _opened(folder) as (prefix, place):
            return read_link_modes(prefix, names, place)

    def stat(self, path: str, *, follow: bool = True) -> FileStat:
        return os.stat(path, follow_symlinks=follow)

    def statvfs(self, path: str) -> FilesystemStat:
        return os.statvfs(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def rlimit(self, pid: int, which: int) -> tuple[int, int]:
        own = self.own_pid()
        if pid == own:
            return resource.prlimit(0, which)
        if own != os.getpid():  # to the system call this number is another process
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}")
        return resource.prlimit(pid, which)

    def own_pid(self) -> int | None:
        # Not getpid(): a /proc mounted from another pid namespace counts differently.
        try:
            return int(os.readlink("/proc/self"))
        except (OSError, ValueError):
            return None

    def unix_rows(self) -> dict[int, UnixRow]:
        return read_unix_rows()


REAL = RealProcFS()


def _is_own(folder: str) -> bool:
    try:
        return os.path.samefile(folder, "/proc/self/fd")
    except OSError:
        return False


@contextmanager
def _opened(folder: str) -> Iterator[tuple[str, int]]:
    """What to put before a name in the folder, and the folder, or -1: from an open one a link costs two thirds."""
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # gone, which each link will say, or no descriptor free
        yield folder + "/", -1
        return
    try:
        yield "", place
    finally:
        os.close(place)


def _read_links(prefix: str, names: Sequence[str], place: int) -> list[str]:
    found = []
    readlink, folder = os.readlink, None if place < 0 else place  # tens of thousands of times
    for name in names:
        try:
            found.append(readlink(prefix + name, dir_fd=folder))
        except OSError:
            found.append("")
    return found


def _read_link_modes(prefix: str, names: Sequence[str], place: int) -> list[int]:
    found = []
    lstat, folder = os.lstat, None if place < 0 else place
    for name in names:
        try:
            found.append(lstat(prefix + name, dir_fd=folder).st_mode)
        except OSError:
            found.append(0)
    return found


read_links = compiled.read_targets if compiled else _read_links
read_link_modes = compiled.read_modes if compiled else _read_link_modes


def read_all(fd: int) -> str:
    """A whole file of an open descriptor from its start, whatever was read of it before."""
    parts: list[bytes] = []
    offset = 0
    while part := os.pread(fd, 65536, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts).decode("utf-8", "replace")


def read_or_none(procfs: ProcFS, path: str) -> str | None:
    try:
        return procfs.read_text(path)
    except OSError:
        return None


def stat_or_none(procfs: ProcFS, path: str, *, follow: bool = True) -> FileStat | None:
    try:
        return procfs.stat(path, follow=follow)
    except OSError:
        return None


def readlink_or_none(procfs: ProcFS, path: str) -> str | None:
    try:
        return procfs.readlink(path)
    except OSError:
        return None


def number_or_none(procfs: ProcFS, path: str) -> int | None:
    """A file that holds one number: `4194304\\n`."""
    text = read_or_none(procfs, path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def list_pids(procfs: ProcFS) -> list[int]:
    """Every process this /proc shows, in order; none where it cannot be listed."""
    try:
        return sorted(int(name) for name in procfs.listdir("/proc") if name.isdigit())
    except OSError:
        return []
