"""Counts and describes the descriptors of one process."""

from __future__ import annotations

import errno
import resource
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple

from .procfs import REAL, ProcFS, readlink_or_none, stat_or_none
from .sockets import SocketInfo

# The highest descriptor number that is tried when the numbers cannot be listed.
PROBE_TO = 1 << 20
# From this many descriptors on, skipping the listing saves time.
_DENSE_FROM = 512


class Kind(StrEnum):
    PIPE = "pipe"
    SOCKET = "socket"
    FILE = "file"
    DELETED = "deleted"
    SHM = "shm"
    MEMFD = "memfd"
    EVENTFD = "eventfd"
    EVENTPOLL = "eventpoll"
    TIMERFD = "timerfd"
    SIGNALFD = "signalfd"
    INOTIFY = "inotify"
    PIDFD = "pidfd"
    DEVICE = "device"
    IO_URING = "io_uring"
    OTHER = "other"


_new_tuple = tuple.__new__
_PIPE = Kind.PIPE  # looking up an enum member is slow
_ANONYMOUS = {
    "eventfd": Kind.EVENTFD,
    "eventpoll": Kind.EVENTPOLL,
    "timerfd": Kind.TIMERFD,
    "signalfd": Kind.SIGNALFD,
    "inotify": Kind.INOTIFY,
    "pidfd": Kind.PIDFD,
    "io_uring": Kind.IO_URING,
}
_NUMBERED = {"socket": Kind.SOCKET, "pidfd": Kind.PIDFD}
_WITH_PATH = frozenset({Kind.FILE, Kind.DELETED, Kind.SHM, Kind.MEMFD, Kind.DEVICE})


class Descriptor(NamedTuple):
    """An open descriptor. It is a tuple, as a scan makes tens of thousands and a dataclass costs three times as much.

    Pipes and sockets have an `inode`. The target is never opened or followed: it may be on a dead network mount.
    """

    fd: int
    kind: Kind
    target: str
    inode: int | None = None
    socket: SocketInfo | None = None

    @property
    def deleted(self) -> bool:
        return self.target.endswith(" (deleted)")


_kind_of_row = itemgetter(1)  # access by name costs twice as much


@dataclass(frozen=True, slots=True, kw_only=True)
class PathGroup:
    """A path that a process has open more than once."""

    path: str
    kind: Kind
    fds: tuple[int, ...]


def kind_of(target: str) -> tuple[Kind, int | None]:
    """Parses the target of a `/proc/PID/fd/N` link into its kind, and the inode if the target contains it.

    `pipe:[8123]`, `socket:[99]`, `anon_inode:[eventfd]`, `anon_inode:inotify`, `/memfd:x (deleted)`, `/dev/shm/a`, …
    A file whose own name ends in ` (deleted)` is classified as deleted: the target is the same.
    """
    if target[:6] == "pipe:[":  # the most common kind first: there may be thousands
        try:
            return _PIPE, int(target[6:-1])
        except ValueError:
            return Kind.OTHER, None
    if target.startswith("/"):
        return _kind_of_path(target), None
    head, _, rest = target.partition(":")
    rest = rest.strip("[]")
    if head == "anon_inode":
        return _ANONYMOUS.get(rest, Kind.OTHER), None
    if head in _NUMBERED and rest.isdigit():
        return _NUMBERED[head], int(rest)
    return (Kind.FILE if target.startswith("(unreachable)/") else Kind.OTHER), None


def _kind_of_path(path: str) -> Kind:
    if path.startswith("/dev/"):
        return Kind.SHM if path.startswith("/dev/shm/") else Kind.DEVICE
    if path.startswith("/memfd:"):
        return Kind.MEMFD
    if path.startswith("/dmabuf:"):
        return Kind.OTHER
    return Kind.DELETED if path.endswith(" (deleted)") else Kind.FILE


def count(procfs: ProcFS, pid: int) -> int | None:
    """Counts a process's descriptors; None if they are not visible.

    Since Linux 6.2 the size of the folder is the count, for other users' processes too and without a free descriptor.
    In older kernels the size is 0 and the folder is listed.
    """
    folder = f"/proc/{pid}/fd"
    known = stat_or_none(procfs, folder)
    if known is None:
        return None
    if known.st_size:
        return known.st_size
    try:
        names = procfs.listdir(folder)
    except OSError as error:
        found = _probe(procfs, pid) if _is_full(error) else None
        return None if found is None else len(found)
    # Listing the folder takes a descriptor, which this process then sees among its own.
    return max(0, len(names) - (pid == procfs.own_pid()))


def count_own() -> int:
    """Counts this process's descriptors; 0 if they are not visible."""
    pid = REAL.own_pid()
    return 0 if pid is None else count(REAL, pid) or 0


def scan(procfs: ProcFS, pid: int) -> list[Descriptor] | None:
    """Returns all descriptors of a process by number; None if this user may not inspect it or it is gone.

    If no descriptor is free for listing them, the numbers are tried one by one: readlink needs none.
    """
    tried = _dense(procfs, pid)
    found = describe_all(procfs, pid, range(tried))
    if tried and len(found) == tried:
        return found
    try:
        fds = sorted(map(int, procfs.listdir(f"/proc/{pid}/fd")))
    except OSError as error:
        return _probe(procfs, pid) if _is_full(error) else None
    found += describe_all(procfs, pid, [fd for fd in fds if fd >= tried])
    return None if fds and not found else found  # this user may list them, but not read their targets


def _dense(procfs: ProcFS, pid: int) -> int:
    """Returns the number of descriptors if they most likely are 0, 1, 2, … without gaps, else 0.

    The kernel assigns the lowest free number: a table that only grew has no gaps. Listing it would make the scan a
    fifth slower.
    """
    size = _size(procfs, pid)
    some = (size - 1, size // 2, size // 4)
    there = size >= _DENSE_FROM and all(readlink_or_none(procfs, f"/proc/{pid}/fd/{fd}") is not None for fd in some)
    return size if there else 0


def list_fds(procfs: ProcFS, pid: int) -> list[int] | None:
    """Lists descriptor numbers, sorted; None if not visible. Without a free descriptor: all possible numbers."""
    try:
        return sorted(int(name) for name in procfs.listdir(f"/proc/{pid}/fd"))
    except OSError as error:
        bounds = _bounds(procfs, pid) if _is_full(error) else None
        return None if bounds is None else list(range(bounds[0]))


def describe_all(procfs: ProcFS, pid: int, fds: Sequence[int]) -> list[Descriptor]:
    """Describes those of these descriptors that are open."""
    return _make_rows(fds, procfs.read_targets(f"/proc/{pid}/fd", list(map(str, fds))))


def _make_rows(fds: Sequence[int], targets: Sequence[str]) -> list[Descriptor]:
    found = []
    for fd, target in zip(fds, targets, strict=True):
        if target:
            kind, inode = kind_of(target)
            # The same as Descriptor(…), without the cost of the call.
            found.append(_new_tuple(Descriptor, (fd, kind, target, inode, None)))
    return found


def describe(procfs: ProcFS, pid: int, fd: int) -> Descriptor | None:
    """Describes one descriptor; None if it is not open."""
    target = readlink_or_none(procfs, f"/proc/{pid}/fd/{fd}")
    if target is None:
        return None
    kind, inode = kind_of(target)
    return Descriptor(fd, kind, target, inode)


def _probe(procfs: ProcFS, pid: int) -> list[Descriptor] | None:
    bounds = _bounds(procfs, pid)
    if bounds is None:
        return None
    soft, hard = bounds
    found: list[Descriptor] = []
    for number in range(hard):
        # Numbers above the soft limit exist if it was lowered later; only the kernel's count shows that.
        if number >= soft and number % 1024 == soft % 1024 and _size(procfs, pid) <= len(found):
            break
        one = describe(procfs, pid, number)
        if one is not None:
            found.append(one)
    return found


def _bounds(procfs: ProcFS, pid: int) -> tuple[int, int] | None:
    """Returns the soft and hard limit on numbers; None if trying them is useless: process gone, or not permitted."""
    try:
        soft, hard = procfs.rlimit(pid, resource.RLIMIT_NOFILE)
        procfs.readlink(f"/proc/{pid}/fd/0")
    except FileNotFoundError:
        return (_bounded(soft), _bounded(hard)) if stat_or_none(procfs, f"/proc/{pid}/fd") else None
    except OSError:
        return None
    return _bounded(soft), _bounded(hard)


def _bounded(limit: int) -> int:
    return PROBE_TO if limit < 0 else min(limit, PROBE_TO)


def _size(procfs: ProcFS, pid: int) -> int:
    known = stat_or_none(procfs, f"/proc/{pid}/fd")
    return known.st_size if known else 0


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.EMFILE, errno.ENFILE)


def count_kinds(descriptors: Iterable[Descriptor]) -> dict[Kind, int]:
    """Counts descriptors by kind, the most frequent first."""
    return dict(Counter(map(_kind_of_row, descriptors)).most_common())


def group_paths(descriptors: Iterable[Descriptor]) -> list[PathGroup]:
    """Returns the paths that are open more than once, the most frequent first."""
    groups: dict[str, list[Descriptor]] = {}
    for one in descriptors:
        if one.kind in _WITH_PATH:
            groups.setdefault(one.target, []).append(one)
    many = [
        PathGroup(path=path, kind=members[0].kind, fds=tuple(member.fd for member in members))
        for path, members in groups.items()
        if len(members) > 1
    ]
    return sorted(many, key=lambda group: (-len(group.fds), group.path))
