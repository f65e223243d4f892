"""The far ends of everything that has one, over all processes looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .descriptors import Descriptor, Kind
from .pipes import PipeEnd, pair_pipes, read_access
from .poll import Answer, poll_other, poll_own
from .procfs import ProcFS, readlink_or_none
from .sockets import SocketInfo, read_sockets
from .unix import SocketEnd, pair_sockets

_new_tuple = tuple.__new__
# What was seen of each process; None: it may not be looked into.
Tables = dict[int, list[Descriptor] | None]
# Of the sockets in a table: where each is, and its inode.
Places = list[tuple[int, int]]


def name_sockets(procfs: ProcFS, tables: Tables) -> dict[int, list[SocketEnd]]:
    """Puts what the kernel's tables say of them into the sockets, and pairs the Unix ones.

    The tables are those of a network namespace: read once for all processes in it.
    """
    places = {pid: found for pid, table in tables.items() if table and (found := _socket_places(table))}
    spaces: dict[str, list[int]] = {}
    for pid in places:
        spaces.setdefault(readlink_or_none(procfs, f"/proc/{pid}/ns/net") or str(pid), []).append(pid)
    unix = procfs.unix_rows() if spaces else {}
    sockets: dict[int, list[Descriptor]] = {}
    for pids in spaces.values():
        wanted = {inode for pid in pids for _, inode in places[pid]}
        known = read_sockets(procfs, pids[-1], wanted, unix)
        for pid in pids:
            sockets[pid] = _put(known, tables[pid] or [], places[pid])
    return pair_sockets(sockets, unix)


def _socket_places(table: Sequence[Descriptor]) -> Places:
    socket = Kind.SOCKET
    return [(at, one.inode or 0) for at, one in enumerate(table) if one.kind is socket]


def _put(known: Mapping[int, SocketInfo], table: list[Descriptor], places: Places) -> list[Descriptor]:
    """The sockets at these places, each as it is in the table now."""
    found = []
    for at, inode in places:
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
        # In a fake /proc, or in one of another pid namespace, this pid is not that process to the system calls.
        return poll_other(pid, fds) if own == os.getpid() else {}

    return pair_pipes(_seen(tables), access, poll)


def _seen(tables: Tables) -> dict[int, list[Descriptor]]:
    return {pid: table for pid, table in tables.items() if table is not None}
