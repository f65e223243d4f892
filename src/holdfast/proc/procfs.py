"""The one door to the kernel's account of processes.

Everything in this package that looks at a process takes a `ProcFS`, so that a fake one in memory can replay old
kernels, vanished processes and days of growth. Its methods raise OSError as the real calls do; the `*_or_none`
functions are for what may vanish, or be another user's, between two lines.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from typing import Protocol


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
    def read_links(self, folder: str, names: Sequence[str], with_mode: str) -> Iterator[tuple[str, str, int]]:
        """Name, target and, of targets that begin with `with_mode`, the link's own mode (else 0); vanished ones not."""

    def stat(self, path: str, *, follow: bool = True) -> FileStat: ...
    def statvfs(self, path: str) -> FilesystemStat: ...
    def exists(self, path: str) -> bool: ...
    def rlimit(self, pid: int, which: int) -> tuple[int, int]:
        """Soft and hard, -1 for unlimited; `which` is one of resource.RLIMIT_*."""

    def own_pid(self) -> int | None:
        """This process as this `/proc` numbers it; None where this process is not in it."""


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

    def read_links(self, folder: str, names: Sequence[str], with_mode: str) -> Iterator[tuple[str, str, int]]:
        # From an open folder a link costs two thirds of what it costs by its whole path.
        try:
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # gone, which each link will say, or no descriptor free
            yield from _read_links(folder + "/", names, with_mode, None)
            return
        try:
            # The listing's own descriptor is closed by now; this one most likely has got its number.
            others = [name for name in names if name != str(place)] if _is_own(folder) else names
            yield from _read_links("", others, with_mode, place)
        finally:
            os.close(place)

    def stat(self, path: str, *, follow: bool = True) -> FileStat:
        return os.stat(path, follow_symlinks=follow)

    def statvfs(self, path: str) -> FilesystemStat:
        return os.statvfs(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def rlimit(self, pid: int, which: int) -> tuple[int, int]:
        return resource.prlimit(pid, which)

    def own_pid(self) -> int | None:
        # Not getpid(): a /proc mounted from another pid namespace counts differently.
        try:
            return int(os.readlink("/proc/self"))
        except (OSError, ValueError):
            return None


REAL = RealProcFS()


def _is_own(folder: str) -> bool:
    try:
        return os.path.samefile(folder, "/proc/self/fd")
    except OSError:
        return False


def _read_links(prefix: str, names: Sequence[str], with_mode: str, place: int | None) -> Iterator[tuple[str, str, int]]:
    for name in names:
        try:
            target = os.readlink(prefix + name, dir_fd=place)
            wanted = target.startswith(with_mode)
            mode = os.stat(prefix + name, dir_fd=place, follow_symlinks=False).st_mode if wanted else 0
        except OSError:
            continue
        yield name, target, mode


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
