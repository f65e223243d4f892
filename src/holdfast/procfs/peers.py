"""Finds the peer of each pipe end and Unix socket: this process itself, another one, or none any more.

Pipe ends are paired by inode over the scanned processes. An end without a partner among them is polled: a process
outside may hold its peer, or the peer may be in flight through a socket. Only poll can show that the peer is closed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import select
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import NamedTuple

from .descriptors import Descriptor, Kind
from .procfs import ProcFS, UnixRow, readlink_or_none
from .sockets import SocketInfo, read_sockets


class PeerState(StrEnum):
    SELF = "self"  # this process has both ends, and no other scanned process has one
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


_READ_WRITE = stat.S_IRUSR | stat.S_IWUSR
_ACCESS = {0: "", stat.S_IRUSR: "r", stat.S_IWUSR: "w", _READ_WRITE: "rw"}
_PIPE = Kind.PIPE  # looking up an enum member is slow
_SELF, _ALIVE, _DEAD, _UNKNOWN = PeerState
_new_tuple = tuple.__new__


class Answer(NamedTuple):
    """The result of polling a pipe end. `access` is `r`, `w` or `rw`."""

    access: str
    dead: bool


# The access of a process's pipe ends (fd -> r, w, rw), and the result of polling them. A missing fd is unknown.
Access = Callable[[int, Sequence[int]], Mapping[int, str]]
Poller = Callable[[int, Sequence[int]], Mapping[int, Answer]]
Pipes = Sequence[tuple[int, int]]  # fd and inode
Holders = Mapping[str, Mapping[int, set[int]]]  # by access and inode: the processes that have that end


class PipeEnd(NamedTuple):
    """A pipe end. `peers` are the other processes with the peer; none while alive: a process not scanned has it.

    `access` is `r`, `w`, `rw`, or "" if unknown.
    """

    pid: int
    fd: int
    inode: int
    access: str
    peer_state: PeerState
    peers: tuple[int, ...] = ()


def read_access(procfs: ProcFS, pid: int, fds: Sequence[int]) -> dict[int, str]:
    """Reads the access from the permissions of the links, which saves an open and a read of fdinfo for each."""
    modes = procfs.read_modes(f"/proc/{pid}/fd", list(map(str, fds)))
    return {fd: _ACCESS[mode & _READ_WRITE] for fd, mode in zip(fds, modes, strict=True) if mode}


def pair_pipes(
    tables: Mapping[int, Iterable[Descriptor]], access: Access, poll: Poller | None = None
) -> dict[int, list[PipeEnd]]:
    """Returns every pipe end of these processes by pid, in the order of their fds.

    Poll reports the access as well: `access` is called first only for ends that may have a partner.
    """
    pipes = {
        pid: [(fd, inode or 0) for fd, kind, _, inode, _ in table if kind is _PIPE] for pid, table in tables.items()
    }
    times = Counter([inode for ends in pipes.values() for _, inode in ends])
    known = {pid: access(pid, [fd for fd, inode in ends if times[inode] > 1]) for pid, ends in pipes.items()}
    holders = _find_holders(pipes, known)
    found = {}
    for pid, ends in pipes.items():
        far = _far_holders(ends, known[pid], holders)
        alone = [fd for fd, _ in ends if fd not in far]
        answers = poll(pid, alone) if poll and alone else {}
        more = access(pid, [fd for fd in alone if fd not in answers and fd not in known[pid]])
        found[pid] = _classify(pid, ends, far, answers, {**known[pid], **more})
    return found


def _find_holders(pipes: Mapping[int, Pipes], known: Mapping[int, Mapping[int, str]]) -> Holders:
    holders: dict[str, dict[int, set[int]]] = {"r": {}, "w": {}}
    for pid, ends in pipes.items():
        ways = known[pid]
        for fd, inode in ends:
            for way in ways.get(fd, ""):
                if inode in (there := holders[way]):
                    there[inode].add(pid)
                else:
                    there[inode] = {pid}
    return holders


def _far_holders(ends: Pipes, known: Mapping[int, str], holders: Holders) -> dict[int, set[int]]:
    """Returns the processes that have the peer of each end; an end whose peer has no known holder is left out."""
    far_of = {"r": holders["w"], "w": holders["r"]}
    found = {}
    for fd, inode in ends:
        way = known.get(fd)
        if way == "rw":
            found[fd] = holders["r"][inode] | holders["w"][inode]
        elif way and inode in far_of[way]:
            found[fd] = far_of[way][inode]
    return found


def _classify(
    pid: int,
    ends: Pipes,
    far: Mapping[int, set[int]],
    answers: Mapping[int, Answer],
    ways: Mapping[int, str],
) -> list[PipeEnd]:
    here = {pid}
    found = []
    for fd, inode in ends:
        peers: tuple[int, ...] = ()
        if fd in answers:
            way, dead = answers[fd]
            peer_state = _DEAD if dead else _SELF if way == "rw" else _ALIVE  # an `rw` end is its own peer
        elif fd in far:
            way, peer_state = ways[fd], _SELF
            if far[fd] != here:
                peer_state, peers = _ALIVE, tuple(sorted(far[fd] - here))
        else:
            way = ways.get(fd, "")
            peer_state = _SELF if way == "rw" else _UNKNOWN
        found.append(_new_tuple(PipeEnd, (pid, fd, inode, way, peer_state, peers)))
    return found


_PIDFD_GETFD = 438  # the same number on every architecture
_GETPIPE_SZ = 1032
_AT_ONCE = 4096
# How many ends of another process are duplicated at a time. While a duplicate exists, the end stays open although its
# process closes it; a few are enough to share the cost of a call.
_BORROWED = 64
_WAYS = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}
_FULL = (errno.EMFILE, errno.ENFILE)
_libc = ctypes.CDLL(None, use_errno=True)


# poll reports POLLHUP for a read end without writers, POLLERR for a write end without readers.
_POLL_DEAD = {select.POLLHUP: Answer("r", True), select.POLLERR: Answer("w", True)}
_POLL_ALIVE = {way: Answer(access, False) for way, access in _WAYS.items()}


def poll_own(fds: Sequence[int]) -> dict[int, Answer]:
    """Polls pipe ends of this process, without a free descriptor. An fd that is no longer a pipe is left out."""
    answers: dict[int, Answer] = {}
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # poll fails with more descriptors than the soft limit, which may have been lowered since they were opened.
    step = _AT_ONCE if soft < 0 else max(1, min(_AT_ONCE, soft))
    for start in range(0, len(fds), step):
        answers.update(_ask(fds[start : start + step]))
    return answers


def _ask(fds: Collection[int]) -> dict[int, Answer]:
    poller = select.poll()
    for fd in fds:
        poller.register(fd, 0)
    events = dict(poller.poll(0))
    answers = {}
    for fd in fds:
        try:
            fcntl.fcntl(fd, _GETPIPE_SZ)  # fails if the number is no longer a pipe
            answers[fd] = (
                _POLL_DEAD.get(events.get(fd, 0)) or _POLL_ALIVE[fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE]
            )
        except (OSError, KeyError):
            continue
    return answers


def poll_other(pid: int, fds: Sequence[int]) -> dict[int, Answer]:
    """Polls duplicates of another process's pipe ends; empty if that is not permitted or no descriptor is free."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return {}
    try:
        return _ask_other(pidfd, fds)
    finally:
        os.close(pidfd)


def _ask_other(pidfd: int, fds: Sequence[int]) -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    waiting = list(reversed(fds))
    while waiting:
        borrowed: dict[int, int] = {}
        try:
            if not _borrow(pidfd, waiting, borrowed):
                break
            found = _ask(borrowed)
        finally:
            _return(borrowed)
        answers.update((borrowed[fd], answer) for fd, answer in found.items())
    return answers


def _borrow(pidfd: int, waiting: list[int], borrowed: dict[int, int]) -> bool:
    """Duplicates fds from the end of `waiting` into `borrowed`: our number -> theirs. False: no more are possible."""
    while waiting and len(borrowed) < _BORROWED:
        fd = int(_libc.syscall(_PIDFD_GETFD, pidfd, waiting[-1], 0))
        if fd >= 0:
            borrowed[fd] = waiting.pop()
            continue
        error = ctypes.get_errno()
        if error in _FULL:
            return bool(borrowed)  # no more descriptors are free; the next call reuses these
        if error != errno.EBADF:
            return False  # not permitted, or the process has ended
        waiting.pop()  # closed meanwhile
    return True


def _return(borrowed: Collection[int]) -> None:
    """Closes the duplicates, usually in one call: the kernel assigns the lowest free numbers, mostly a single range."""
    if borrowed and max(borrowed) - min(borrowed) + 1 == len(borrowed):
        os.closerange(min(borrowed), max(borrowed) + 1)
        return
    for fd in borrowed:
        os.close(fd)


_SOCKET = Kind.SOCKET
_UNIX_SELF, _UNIX_ALIVE, _UNIX_DEAD, _UNIX_UNKNOWN = PeerState


class SocketEnd(NamedTuple):
    """A connected Unix socket. `peers` are the other processes with the peer; none while alive: one not scanned has it.

    `peer_inode` is 0 if the peer was closed, None if the kernel does not report it.
    """

    pid: int
    fd: int
    inode: int
    peer_inode: int | None
    peer_state: PeerState
    peers: tuple[int, ...] = ()


def pair_sockets(tables: Mapping[int, Iterable[Descriptor]], rows: Mapping[int, UnixRow]) -> dict[int, list[SocketEnd]]:
    """Returns every Unix socket of these processes that is, or was, connected, by pid and in the order of fds."""
    sockets = {
        pid: [(fd, inode or 0, info) for fd, kind, _, inode, info in table if kind is _SOCKET]
        for pid, table in tables.items()
    }
    first: dict[int, int] = {}
    shared: dict[int, set[int]] = {}
    for pid, ends in sockets.items():
        for _, inode, _ in ends:
            if (there := first.setdefault(inode, pid)) != pid:
                shared.setdefault(inode, {there}).add(pid)
    return {pid: _classify_unix(pid, ends, rows, first, shared) for pid, ends in sockets.items()}


def _classify_unix(
    pid: int,
    ends: Iterable[tuple[int, int, SocketInfo | None]],
    rows: Mapping[int, UnixRow],
    first: Mapping[int, int],
    shared: Mapping[int, AbstractSet[int]],
) -> list[SocketEnd]:
    """Classifies the sockets of a process. `first`: one process per inode; `shared`: all of them if several have it."""
    found = []
    for fd, inode, info in ends:
        if info is None or info.state != "CONNECTED" or info.family != "unix":
            continue
        far = rows[inode].far if inode in rows else None
        peers: tuple[int, ...] = ()
        peer_state = _UNIX_UNKNOWN if far is None else _UNIX_DEAD
        if far:
            there = first.get(far)
            peer_state = _UNIX_SELF if there == pid else _UNIX_ALIVE
            if far in shared:
                peer_state, peers = _UNIX_ALIVE, tuple(sorted(shared[far] - {pid}))
            elif there is not None and there != pid:
                peers = (there,)
        found.append(_new_tuple(SocketEnd, (pid, fd, inode, far, peer_state, peers)))
    return found


# The descriptors of each process; None: this user may not inspect it.
Tables = dict[int, list[Descriptor] | None]
# The index in the table and the inode of each socket.
SocketPositions = list[tuple[int, int]]


def name_sockets(procfs: ProcFS, tables: Tables) -> dict[int, list[SocketEnd]]:
    """Adds addresses and states to the sockets in `tables`, and pairs the Unix ones.

    The kernel's socket tables belong to a network namespace and are read once for all processes in it.
    """
    positions = {pid: found for pid, table in tables.items() if table and (found := _socket_positions(table))}
    spaces: dict[str, list[int]] = {}
    for pid in positions:
        spaces.setdefault(readlink_or_none(procfs, f"/proc/{pid}/ns/net") or str(pid), []).append(pid)
    unix = procfs.unix_rows() if spaces else {}
    sockets: dict[int, list[Descriptor]] = {}
    for pids in spaces.values():
        wanted = {inode for pid in pids for _, inode in positions[pid]}
        known = read_sockets(procfs, pids[-1], wanted, unix)
        for pid in pids:
            sockets[pid] = _put(known, tables[pid] or [], positions[pid])
    return pair_sockets(sockets, unix)


def _socket_positions(table: Sequence[Descriptor]) -> SocketPositions:
    socket = Kind.SOCKET
    return [(at, one.inode or 0) for at, one in enumerate(table) if one.kind is socket]


def _put(known: Mapping[int, SocketInfo], table: list[Descriptor], positions: SocketPositions) -> list[Descriptor]:
    """Adds the known information to the sockets at these positions, and returns them."""
    found = []
    for at, inode in positions:
        one = table[at]
        if inode in known:
            one = table[at] = _new_tuple(Descriptor, (one.fd, one.kind, one.target, inode, known[inode]))
        found.append(one)
    return found


def find_pipe_ends(procfs: ProcFS, tables: Tables) -> dict[int, list[PipeEnd]]:
    own = procfs.own_pid()

    def access(pid: int, fds: Sequence[int]) -> Mapping[int, str]:
        return read_access(procfs, pid, fds) if fds else {}

    def poll(pid: int, fds: Sequence[int]) -> Mapping[int, Answer]:
        if pid == own:
            return poll_own(fds)
        # In a fake /proc, or that of another pid namespace, a system call would take this pid for another process.
        return poll_other(pid, fds) if own == os.getpid() else {}

    return pair_pipes(_seen(tables), access, poll)


def _seen(tables: Tables) -> dict[int, list[Descriptor]]:
    return {pid: table for pid, table in tables.items() if table is not None}
