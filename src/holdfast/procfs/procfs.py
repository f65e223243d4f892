"""Unix sockets, asked of the kernel itself: `/proc/net/unix` does not say who is at their other end, and is slower."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from .._native.c_modules import fdscan

_SOCK_DIAG = 4
_DIAG_BY_FAMILY = 20
_ERROR, _DONE = 2, 3
_REQUEST_DUMP = 0x1 | 0x300
_SHOW_NAME, _SHOW_PEER = 0x1, 0x4
_EVERY_STATE = 0xFFFFFFFF
_NO_COOKIE = b"\xff" * 8

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ASK = struct.Struct("=BBHIII8s")  # family, protocol, -, states, inode, what to show, cookie
_ROW = struct.Struct("=BBBBI8s")  # family, type, state, -, inode, cookie
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_NAME, _PEER, _SHUTDOWN = 0, 2, 6
# What nearly every message is like: a row, its peer, how it was shut down. Taken apart at once: there may be thousands.
_COMMON = struct.Struct("=IHHIIBBBBI8sHHIHHB3x")

_new_tuple = tuple.__new__
_BOTH_WAYS = 3
_WAIT_S = 1.0
_BUFFER_BYTES = 1 << 18


class UnixRow(NamedTuple):
    """`peer` is the far end's inode: None without one, 0 where it has no descriptor (not yet, or not any more)."""

    inode: int
    type: int
    state: int
    peer: int | None
    shutdown: int
    path: str = ""

    @property
    def far(self) -> int | None:
        """The far end's inode, 0 where it was closed; None where there is none, or this cannot be told.

        A connection that nobody has accepted yet has a far end without inode, too: only a closed one is shut both ways.
        """
        if self.peer == 0 and self.shutdown != _BOTH_WAYS and self.type != socket.SOCK_DGRAM:
            return None
        return self.peer


def read_unix_rows() -> dict[int, UnixRow]:
    """Every Unix socket of this network namespace by its inode.

    Empty where the kernel cannot be asked: no descriptor is free, a container forbids it, or it was built without.
    """
    if sys.platform != "linux":
        return {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.settimeout(_WAIT_S)
            kernel.send(_question())
            return {row[0]: row for part in _answers(kernel) for row in part}
    except OSError:
        return {}


def _question() -> bytes:
    ask = _ASK.pack(socket.AF_UNIX, 0, 0, _EVERY_STATE, 0, _SHOW_NAME | _SHOW_PEER, _NO_COOKIE)
    return _HEADER.pack(_HEADER.size + len(ask), _DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + ask


def _answers(kernel: socket.socket) -> Iterator[list[UnixRow]]:
    last = False
    while not last:
        rows, last = parse_rows(kernel.recv(_BUFFER_BYTES))
        yield rows


def parse_rows(data: bytes) -> tuple[list[UnixRow], bool]:
    """The messages of one packet, and whether they were the last. An error from the kernel is an OSError."""
    rows: list[UnixRow] = []
    at, size = 0, len(data)
    while (at := parse_common(data, at, rows)) + _HEADER.size <= size:
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if kind == _DONE or length < _HEADER.size:
            return rows, True
        if kind == _ERROR:
            (number,) = struct.unpack_from("=i", data, at + _HEADER.size)
            raise OSError(-number, os.strerror(-number))
        rows.append(_parse_row(data, at + _HEADER.size, min(at + length, size)))
        at += _aligned(length)
    return rows, not data


def _parse_common(data: bytes, at: int, rows: list[UnixRow]) -> int:
    """Adds the messages from here on that are like nearly all; where the first one that is not begins."""
    while at + _COMMON.size <= len(data):
        length, kind, _, _, _, _, type_, state, _, inode, _, _, first, peer, _, second, shut = _COMMON.unpack_from(
            data, at
        )
        if (length, kind, first, second) != (_COMMON.size, _DIAG_BY_FAMILY, _PEER, _SHUTDOWN):
            break
        rows.append(_new_tuple(UnixRow, (inode, type_, state, peer, shut, "")))
        at += length
    return at


def _parse_common_compiled(data: bytes, at: int, rows: list[UnixRow]) -> int:
    return fdscan.parse_unix(data, at, UnixRow, rows)


parse_common = _parse_common_compiled if fdscan else _parse_common


def _parse_row(data: bytes, at: int, end: int) -> UnixRow:
    _, type_, state, _, inode, _ = _ROW.unpack_from(data, at)
    peer, shutdown, path = None, 0, ""
    at += _ROW.size
    while at + _ATTRIBUTE.size <= end:
        length, name = _ATTRIBUTE.unpack_from(data, at)
        start = at + _ATTRIBUTE.size
        if name == _NAME:
            path = _text_of(data[start : at + length])
        elif name == _PEER:
            (peer,) = struct.unpack_from("=I", data, start)
        elif name == _SHUTDOWN:
            shutdown = data[start]
        at += max(_aligned(length), _ATTRIBUTE.size)
    return UnixRow(inode, type_, state, peer, shutdown, path)


def _text_of(name: bytes) -> str:
    """As `/proc/net/unix` writes it: a name that is no path begins with `@`, which stands for a zero byte."""
    text = name[1:] if name[:1] == b"\0" else name.rstrip(b"\0")
    return ("@" if name[:1] == b"\0" else "") + text.replace(b"\0", b"@").decode("utf-8", "replace")


def _aligned(length: int) -> int:
    return (length + 3) & ~3


# The one door to the kernel's account of processes.
#
# Everything in this package that looks at a process takes a `ProcFS`, so that a fake one in memory can replay old
# kernels, vanished processes and days of growth. Its methods raise OSError as the real calls do; the `*_or_none`
# functions are for what may vanish, or be another user's, between two lines.


class FileStat(Protocol):
    """What is used of an `os.stat_result`."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_dev(self) -> int: ...
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


read_links = fdscan.read_targets if fdscan else _read_links
read_link_modes = fdscan.read_modes if fdscan else _read_link_modes


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
