"""Reads `/proc`, and lists Unix sockets over netlink, which is faster than `/proc/net/unix` and also names each peer.

All code in this package that inspects a process takes a `ProcFS`, so that tests can replay old kernels, vanished
processes and days of growth from memory. Its methods raise OSError as the real calls do. The `*_or_none` functions are
for what may vanish between two lines, or belong to another user.
"""

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
# The layout of nearly every message: a row, its peer, its shutdown flags. One unpack each, as there may be thousands.
_COMMON = struct.Struct("=IHHIIBBBBI8sHHIHHB3x")

_new_tuple = tuple.__new__
_BOTH_WAYS = 3
_WAIT_S = 1.0
_BUFFER_BYTES = 1 << 18


class UnixRow(NamedTuple):
    """A Unix socket. `peer` is the peer's inode: None without a peer, 0 if no descriptor refers to the peer."""

    inode: int
    type: int
    state: int
    peer: int | None
    shutdown: int
    path: str = ""

    @property
    def far(self) -> int | None:
        """Returns the peer's inode, 0 if the peer was closed, or None if there is no peer or its state is unknown.

        The peer of a connection that is not accepted yet has no inode either, but only a closed one is shut both ways.
        """
        if self.peer == 0 and self.shutdown != _BOTH_WAYS and self.type != socket.SOCK_DGRAM:
            return None
        return self.peer


def read_unix_rows() -> dict[int, UnixRow]:
    """Returns every Unix socket of this network namespace by inode.

    Empty if netlink is not usable: no descriptor is free, a container forbids it, or the kernel was built without it.
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
    """Parses one packet into rows, and whether it was the last one. Raises OSError for an error from the kernel."""
    rows: list[UnixRow] = []
    at, size = 0, len(data)
    while (at := _parse_common(data, at, rows)) + _HEADER.size <= size:
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
    """Appends messages of the common layout to `rows`; returns the offset of the first message of another layout."""
    while at + _COMMON.size <= len(data):
        length, kind, _, _, _, _, type_, state, _, inode, _, _, first, peer, _, second, shut = _COMMON.unpack_from(
            data, at
        )
        if (length, kind, first, second) != (_COMMON.size, _DIAG_BY_FAMILY, _PEER, _SHUTDOWN):
            break
        rows.append(_new_tuple(UnixRow, (inode, type_, state, peer, shut, "")))
        at += length
    return at


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
    """Formats a name as `/proc/net/unix` does: an abstract name begins with `@`, which stands for a zero byte."""
    text = name[1:] if name[:1] == b"\0" else name.rstrip(b"\0")
    return ("@" if name[:1] == b"\0" else "") + text.replace(b"\0", b"@").decode("utf-8", "replace")


def _aligned(length: int) -> int:
    return (length + 3) & ~3


class FileStat(Protocol):
    """The fields of an `os.stat_result` that are used."""

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
    """The fields of an `os.statvfs_result` that are used."""

    @property
    def f_frsize(self) -> int: ...
    @property
    def f_blocks(self) -> int: ...
    @property
    def f_bfree(self) -> int: ...


class ProcFS(Protocol):
    """Gives access to `/proc`, `/sys/fs/cgroup` and `/dev/shm` by absolute paths."""

    def read_text(self, path: str) -> str: ...
    def listdir(self, path: str) -> list[str]: ...
    def readlink(self, path: str) -> str: ...
    def read_targets(self, folder: str, names: Sequence[str]) -> list[str]:
        """Returns the target of each link, "" for a missing one."""

    def read_modes(self, folder: str, names: Sequence[str]) -> list[int]:
        """Returns the mode of each entry without following links, 0 for a missing one."""

    def stat(self, path: str, *, follow: bool = True) -> FileStat: ...
    def statvfs(self, path: str) -> FilesystemStat: ...
    def exists(self, path: str) -> bool: ...
    def rlimit(self, pid: int, which: int) -> tuple[int, int]:
        """Returns the soft and the hard limit, -1 for unlimited; `which` is one of resource.RLIMIT_*."""

    def own_pid(self) -> int | None:
        """Returns the pid of this process in this `/proc`; None if it is not listed there."""

    def unix_rows(self) -> dict[int, UnixRow]:
        """Returns the Unix sockets of this network namespace by inode, as far as the kernel reports them."""


class RealProcFS:
    """Reads the machine's own `/proc`. Only `read_text` and `listdir` need a free descriptor."""

    def read_text(self, path: str) -> str:
        # Names of processes and files are bytes; one that is not UTF-8 must not end a scan.
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
            found = _read_links(prefix, names, place)
            # The descriptor that listed the folder is closed by now, and this one most likely reuses its number.
            if place >= 0 and str(place) in names and _is_own(folder):
                found[names.index(str(place))] = ""
            return found

    def read_modes(self, folder: str, names: Sequence[str]) -> list[int]:
        with _opened(folder) as (prefix, place):
            return _read_link_modes(prefix, names, place)

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
        if own != os.getpid():  # another pid namespace: prlimit(2) would take this number for another process
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}")
        return resource.prlimit(pid, which)

    def own_pid(self) -> int | None:
        # Not getpid(): a /proc mounted from another pid namespace has other numbers.
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
    """Yields the prefix for names in a folder, and its descriptor or -1: with one, a link costs a third less."""
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # the process is gone, so that each link fails as well, or no descriptor is free
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


def read_all(fd: int) -> str:
    """Reads all of an open file from its start, whatever its position is."""
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
    """Reads a file that holds one number: `4194304\\n`."""
    text = read_or_none(procfs, path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def list_pids(procfs: ProcFS) -> list[int]:
    """Returns the pids in this /proc, sorted; an empty list if it cannot be listed."""
    try:
        return sorted(int(name) for name in procfs.listdir("/proc") if name.isdigit())
    except OSError:
        return []
