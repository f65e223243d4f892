"""The far ends of everything that has one, over all processes looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .descriptors import Descriptor, Kind
from .pipes import PipeEnd, pair_pipes, read_access
from .poll import Answer, poll_other, poll_own
from .procfs import ProcFS, readlink_or_none
from .sockets import read_sockets
from .unix import SocketEnd, pair_sockets

_new_tuple = tuple.__new__
# What was seen of each process; None: it may not be looked into.
Tables = dict[int, list[Descriptor] | None]


def name_sockets(procfs: ProcFS, tables: Tables) -> dict[int, list[SocketEnd]]:
    """Puts what the kernel's tables say of them into the sockets, and pairs the Unix ones.

    The tables are those of a network namespace: read once for all processes in it.
    """
    spaces: dict[str, list[tuple[list[Descriptor], int, int]]] = {}
    readers: dict[str, int] = {}
    for pid, table in tables.items():
        if table and (places := _socket_places(table)):
            space = readlink_or_none(procfs, f"/proc/{pid}/ns/net") or str(pid)
            readers[space] = pid
            spaces.setdefault(space, []).extend((table, at, inode) for at, inode in places)
    unix = procfs.unix_rows() if spaces else {}
    for space, sockets in spaces.items():
        known = read_sockets(procfs, readers[space], {inode for _, _, inode in sockets}, unix)
        for table, at, inode in sockets:
            if inode in known:
                was = table[at]
                table[at] = _new_tuple(Descriptor, (was.fd, was.kind, was.target, inode, known[inode]))
    return pair_sockets(_seen(tables), unix) if spaces else {}


def _socket_places(table: Sequence[Descriptor]) -> list[tuple[int, int]]:
    socket = Kind.SOCKET
    return [(at, inode or 0) for at, (_, kind, _, inode, _) in enumerate(table) if kind is socket]


def find_pipe_ends(procfs: ProcFS, tables: Tables) -> dict[int, list[PipeEnd]]:
    own = procfs.own_pid()

    def access(pid: int, fds: Sequence[int]) -> Mapping[int, str]:
        return read_access(procfs, pid, fds) if fds else {}

    def poll(pid: int, fds: Sequence[int]) -> Mapping[int, Answer]:
        if pid == own:
            return poll_own(fds)
        # In a fake /proc, or in one of another pid namespace, this pid is not that process to the system calls.
        return poll_other(pid, fds) if own == os.getpid() else {}

    return pair_pipes(_seen(tables), access, poll)


def _seen(tables: Tables) -> dict[int, list[Descriptor]]:
    return {pid: table for pid, table in tables.items() if table is not None}
