"""One process's descriptors: how many, and what each of them is."""

from __future__ import annotations

import errno
import resource
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple

from .._native.c_modules import fdscan
from .procfs import ProcFS, readlink_or_none, stat_or_none
from .sockets import SocketInfo

# How far descriptor numbers are tried one by one at most.
PROBE_TO = 1 << 20
# From how many descriptors on it pays to do without a listing.
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
_PIPE = Kind.PIPE  # finding a member of an enum by its name is slow
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
# In the order of native/fdscan/rows.c, which asks kind_of for all others.
_COMPILED_KINDS = (
    Kind.PIPE,
    Kind.SOCKET,
    Kind.FILE,
    Kind.DELETED,
    Kind.SHM,
    Kind.MEMFD,
    Kind.DEVICE,
    Kind.OTHER,
)
_WITH_PATH = frozenset({Kind.FILE, Kind.DELETED, Kind.SHM, Kind.MEMFD, Kind.DEVICE})


class Descriptor(NamedTuple):
    """A tuple and not a dataclass: tens of thousands are made in one look, at a third of the cost.

    `inode` is that of pipes and sockets. The target is never opened or followed: it may lie on a dead network mount.
    """

    fd: int
    kind: Kind
    target: str
    inode: int | None = None
    socket: SocketInfo | None = None

    @property
    def deleted(self) -> bool:
        return self.target.endswith(" (deleted)")


_kind_of_row = itemgetter(1)  # a name costs twice as much


@dataclass(frozen=True, slots=True, kw_only=True)
class PathGroup:
    """One path that a process has open more than once."""

    path: str
    kind: Kind
    fds: tuple[int, ...]


def kind_of(target: str) -> tuple[Kind, int | None]:
    """The text of a `/proc/PID/fd/N` link -> its kind, and the inode where the text holds it.

    `pipe:[8123]`, `socket:[99]`, `anon_inode:[eventfd]`, `anon_inode:inotify`, `/memfd:x (deleted)`, `/dev/shm/a`, …
    A file whose own name ends in ` (deleted)` cannot be told from a deleted one by this text.
    """
    if target[:6] == "pipe:[":  # the commonest first: there may be thousands
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
    """How many descriptors a process has; None if that cannot be seen.

    Since Linux 6.2 the size of the folder says it, for other users' processes too and without a descriptor. Before, the
    size is 0 and the folder is listed.
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
    # The listing itself is a descriptor of the process that lists.
    return max(0, len(names) - (pid == procfs.own_pid()))


def scan(procfs: ProcFS, pid: int) -> list[Descriptor] | None:
    """All descriptors of a process in the order of their numbers; None if they may not be seen or it is gone.

    Where no descriptor is free for listing them, the numbers are tried one by one: readlink needs none.
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
    return None if fds and not found else found  # they may be counted, but not looked at


def _dense(procfs: ProcFS, pid: int) -> int:
    """How many there are if they most likely are the numbers from 0 on, else 0.

    The kernel gives out the lowest free number: a table that grew has no gaps, and listing it would cost as much again
    as a fifth of reading it.
    """
    size = _size(procfs, pid)
    some = (size - 1, size // 2, size // 4)
    there = size >= _DENSE_FROM and all(readlink_or_none(procfs, f"/proc/{pid}/fd/{fd}") is not None for fd in some)
    return size if there else 0


def list_fds(procfs: ProcFS, pid: int) -> list[int] | None:
    """The numbers alone, in order; None if they may not be seen. Without a free descriptor, all that are possible."""
    try:
        return sorted(int(name) for name in procfs.listdir(f"/proc/{pid}/fd"))
    except OSError as error:
        bounds = _bounds(procfs, pid) if _is_full(error) else None
        return None if bounds is None else list(range(bounds[0]))


def describe_all(procfs: ProcFS, pid: int, fds: Sequence[int]) -> list[Descriptor]:
    """Those of these descriptors that are there."""
    return make_rows(fds, procfs.read_targets(f"/proc/{pid}/fd", list(map(str, fds))))


def _make_rows(fds: Sequence[int], targets: Sequence[str]) -> list[Descriptor]:
    found = []
    for fd, target in zip(fds, targets, strict=True):
        if target:
            kind, inode = kind_of(target)
            # What Descriptor(…) comes to, without the call in between.
            found.append(_new_tuple(Descriptor, (fd, kind, target, inode, None)))
    return found


def _make_rows_compiled(fds: Sequence[int], targets: Sequence[str]) -> list[Descriptor]:
    return fdscan.describe(fds, targets, Descriptor, _COMPILED_KINDS, kind_of)


make_rows = _make_rows_compiled if fdscan else _make_rows


def describe(procfs: ProcFS, pid: int, fd: int) -> Descriptor | None:
    """One descriptor; None if it is not there (any more)."""
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
        # Numbers above the soft limit exist where it was lowered later; only the kernel's count can say so.
        if number >= soft and number % 1024 == soft % 1024 and _size(procfs, pid) <= len(found):
            break
        one = describe(procfs, pid, number)
        if one is not None:
            found.append(one)
    return found


def _bounds(procfs: ProcFS, pid: int) -> tuple[int, int] | None:
    """None where the process is gone or may not be looked into: every number would be tried in vain."""
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
    """The most frequent kind first."""
    return dict(Counter(map(_kind_of_row, descriptors)).most_common())


def group_paths(descriptors: Iterable[Descriptor]) -> list[PathGroup]:
    """Paths open more than once, the most often opened first."""
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
