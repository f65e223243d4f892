"""Who is at the other end of a connected Unix socket: this process itself, another one, or nobody any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from .descriptors import Descriptor, Kind
from .fate import Fate
from .netlink import UnixRow
from .sockets import SocketInfo

_SOCKET = Kind.SOCKET  # finding a member of an enum by its name is slow
_SELF, _ALIVE, _DEAD, _UNKNOWN = Fate
_new_tuple = tuple.__new__


class SocketEnd(NamedTuple):
    """`peers` are the other processes with the far end; none, and alive: a process that was not looked at has it.

    `peer_inode` is 0 where the far end was closed, None where the kernel does not tell.
    """

    pid: int
    fd: int
    inode: int
    peer_inode: int | None
    fate: Fate
    peers: tuple[int, ...] = ()


def pair_sockets(tables: Mapping[int, Iterable[Descriptor]], rows: Mapping[int, UnixRow]) -> dict[int, list[SocketEnd]]:
    """Every Unix socket of these processes that is, or was, connected; by pid, in the order of their fds."""
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
    return {pid: _judge(pid, ends, rows, first, shared) for pid, ends in sockets.items()}


def _judge(
    pid: int,
    ends: Iterable[tuple[int, int, SocketInfo | None]],
    rows: Mapping[int, UnixRow],
    first: Mapping[int, int],
    shared: Mapping[int, AbstractSet[int]],
) -> list[SocketEnd]:
    """`first`: a process with the socket of an inode; `shared`: all of them, where they are more. Few are."""
    found = []
    for fd, inode, info in ends:
        if info is None or info.state != "CONNECTED" or info.family != "unix":
            continue
        far = rows[inode].far if inode in rows else None
        peers: tuple[int, ...] = ()
        fate = _UNKNOWN if far is None else _DEAD
        if far:
            there = first.get(far)
            fate = _SELF if there == pid else _ALIVE
            if far in shared:
                fate, peers = _ALIVE, tuple(sorted(shared[far] - {pid}))
            elif there is not None and there != pid:
                peers = (there,)
        found.append(_new_tuple(SocketEnd, (pid, fd, inode, far, fate, peers)))
    return found
