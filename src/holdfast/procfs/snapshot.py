"""Takes a snapshot of a process and its descendants, and converts it for JSON.

In the JSON form None is unknown. Infinity, which JSON does not have, is None beside `"unlimited": true`.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple

from ..errors import InputError
from .descriptors import Descriptor, Kind, PathGroup, count, count_kinds, group_paths, scan
from .limits import Limit, finite, process_limits, threads_by_user, tightest, used_limits
from .peers import PeerState, PipeEnd, SocketEnd, Tables, find_pipe_ends, name_sockets
from .processes import Process, descendants, is_same, read_parents, read_process
from .procfs import REAL, ProcFS

# The JSON form of a path lists at most this many descriptor numbers.
_MAX_FDS = 100


def limit_as_dict(limit: Limit) -> dict[str, Any]:
    return {
        "name": limit.name,
        "used": limit.used,
        "soft": finite(limit.soft),
        "hard": finite(limit.hard),
        "headroom": finite(limit.headroom),
        "ratio": limit.ratio,
        "unlimited": limit.soft == math.inf,
    }


def _by_name(kinds: dict[Any, int]) -> dict[str, int]:
    return {str(kind): times for kind, times in kinds.items()}


def _count_states(ends: Iterable[PipeEnd | SocketEnd]) -> dict[str, int]:
    counted = Counter(end.peer_state for end in ends)
    return {str(peer_state): counted[peer_state] for peer_state in PeerState}


def _descriptor(one: Descriptor, end: PipeEnd | SocketEnd | None) -> dict[str, Any]:
    plain: dict[str, Any] = {"fd": one.fd, "kind": str(one.kind), "target": one.target}
    if one.inode is not None:
        plain["inode"] = one.inode
    if one.socket is not None:
        plain["socket"] = one.socket._asdict()
    if end is not None:
        plain |= {"peer_state": str(end.peer_state), "peers": list(end.peers)}
        if isinstance(end, PipeEnd):
            plain["access"] = end.access
    return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSnapshot:
    """A process. `descriptors` is None if this user may not inspect them; `fd_count` may still be known.

    `ends` are its pipes, `socket_ends` its connected Unix sockets. `children` is None if they were not searched for.
    """

    process: Process
    fd_count: int | None
    descriptors: tuple[Descriptor, ...] | None
    ends: tuple[PipeEnd, ...]
    limits: tuple[Limit, ...]
    socket_ends: tuple[SocketEnd, ...] = ()
    children: int | None = None

    @property
    def kinds(self) -> dict[Kind, int]:
        return count_kinds(self.descriptors or ())

    @property
    def path_groups(self) -> list[PathGroup]:
        return group_paths(self.descriptors or ())

    def ends_of(self, peer_state: PeerState) -> list[PipeEnd]:
        return [end for end in self.ends if end[4] is peer_state]  # access by name costs twice as much

    def as_dict(self, *, descriptors: bool = False) -> dict[str, Any]:
        """For JSON; with every single descriptor if asked for."""
        plain = {
            **asdict(self.process),
            "children": self.children,
            "fd_count": self.fd_count,
            "kinds": None if self.descriptors is None else _by_name(self.kinds),
            "path_groups": [
                {"path": one.path, "kind": str(one.kind), "count": len(one.fds), "fds": list(one.fds[:_MAX_FDS])}
                for one in self.path_groups
            ],
            "pipe_ends": _count_states(self.ends),
            "socket_ends": _count_states(self.socket_ends),
            "limits": [limit_as_dict(limit) for limit in self.limits],
        }
        if descriptors:
            ends: dict[int, PipeEnd | SocketEnd] = {end.fd: end for end in self.ends}
            ends.update((end.fd, end) for end in self.socket_ends)
            table = self.descriptors
            plain["descriptors"] = None if table is None else [_descriptor(one, ends.get(one.fd)) for one in table]
        return plain

    def __str__(self) -> str:
        process = self.process
        name = process.cmdline or process.comm or "?"
        kinds = " · ".join(f"{kind} {times:,}" for kind, times in self.kinds.items())
        return f"{process.pid} {name}: {_count(self.fd_count)} descriptors" + (f" ({kinds})" if kinds else "")

    def __repr__(self) -> str:
        return f"<ProcessSnapshot {self.process.pid} {self.process.comm}: {_count(self.fd_count)} descriptors>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A process tree: the root process first, then its descendants, each after its parent.

    `shared` are the limits that all of them share. `whole_tree` is False if the children could not be listed.
    """

    __module__ = "holdfast"

    processes: tuple[ProcessSnapshot, ...]
    shared: tuple[Limit, ...]
    whole_tree: bool

    @property
    def root(self) -> ProcessSnapshot:
        return self.processes[0]

    @property
    def fd_count(self) -> int | None:
        """Returns the sum over all processes; None if one of them could not be counted."""
        counts = [proc.fd_count for proc in self.processes]
        return None if None in counts else sum(filter(None, counts))

    @property
    def kinds(self) -> dict[Kind, int]:
        return count_kinds(chain.from_iterable(proc.descriptors or () for proc in self.processes))

    @property
    def tightest(self) -> Limit | None:
        """Returns the limit with the highest used fraction, of all processes and shared ones."""
        return tightest([*self.shared, *(limit for proc in self.processes for limit in proc.limits)])

    def as_dict(self, *, descriptors: bool = False) -> dict[str, Any]:
        """For JSON; with every single descriptor if asked for."""
        tightest = self.tightest
        return {
            "pid": self.root.process.pid,
            "fd_count": self.fd_count,
            "kinds": _by_name(self.kinds),
            "whole_tree": self.whole_tree,
            "tightest": None if tightest is None else limit_as_dict(tightest),
            "shared": [limit_as_dict(limit) for limit in self.shared],
            "processes": [proc.as_dict(descriptors=descriptors) for proc in self.processes],
        }

    def __str__(self) -> str:
        more = len(self.processes) - 1
        below = f"; {_count(self.fd_count)} with {more} below it" if more else ""
        least = self.tightest
        used = f"; tightest: {least.name} {100 * (least.ratio or 0.0):.1f} %" if least else ""
        return f"{self.root}{below}{used}"

    def __repr__(self) -> str:
        proc = "processes" if len(self.processes) > 1 else "process"
        return f"<Snapshot of {self.root!r}, {len(self.processes)} {proc}, {_count(self.fd_count)} descriptors>"


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


class AllProcesses(NamedTuple):
    """What a snapshot reads of every process of the machine; snapshots that are taken together share it."""

    parents: Mapping[int, int]
    users: Mapping[int, int]


def read_all_processes(procfs: ProcFS = REAL) -> AllProcesses:
    return AllProcesses(read_parents(procfs), threads_by_user(procfs))


def take_snapshot(
    pid: int | None = None, tree: bool = True, procfs: ProcFS = REAL, *, others: AllProcesses | None = None
) -> Snapshot:
    """Scans a process, by default this one, and its descendants. Raises InputError if there is no such process.

    With no descriptor free it still reports this process's descriptors, pipes and limits, but not its children.
    """
    root = pid if pid is not None else procfs.own_pid()
    if root is None:
        raise InputError("this process is not visible in /proc: pass the pid of one that is")
    with _without_gc():
        return _take(procfs, root, tree, others)


@contextmanager
def _without_gc() -> Iterator[None]:
    """Pauses garbage collection, which takes a fifth of the time: a scan makes 100,000 tuples, none of them garbage."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _take(procfs: ProcFS, root: int, tree: bool, others: AllProcesses | None) -> Snapshot:
    parents = {} if not tree else read_parents(procfs) if others is None else others.parents
    seen: dict[int, Process] = {}
    tables: Tables = {}
    for one in [root, *descendants(parents, root)]:
        process = read_process(procfs, one)
        table = scan(procfs, one)
        # A pid reused during the scan would show one process's name with another one's descriptors.
        if process is not None and is_same(procfs, process.identity) is not False:
            seen[one], tables[one] = process, table
    if root not in seen:
        raise InputError(f"there is no process {root}")
    sockets, pipes = name_sockets(procfs, tables), find_pipe_ends(procfs, tables)
    users = threads_by_user(procfs) if others is None else others.users
    complete = not tree or root in parents
    children = Counter(parents.values()) if tree and complete else None
    processes = tuple(
        _process_snapshot(
            procfs,
            process,
            tables[one],
            users,
            ends=tuple(pipes.get(one, ())),
            socket_ends=tuple(sockets.get(one, ())),
            children=None if children is None else children[one],
        )
        for one, process in seen.items()
    )
    return Snapshot(processes=processes, shared=tuple(used_limits(procfs, root, tables)), whole_tree=complete)


def _process_snapshot(
    procfs: ProcFS, process: Process, table: Sequence[Descriptor] | None, users: Mapping[int, int], **more: Any
) -> ProcessSnapshot:
    fds = count(procfs, process.pid) if table is None else len(table)
    return ProcessSnapshot(
        process=process,
        fd_count=fds,
        descriptors=None if table is None else tuple(table),
        limits=process_limits(procfs, process.pid, fds, None if process.uid is None else users.get(process.uid)),
        **more,
    )


def snapshot(pid: int | None = None, tree: bool = True) -> Snapshot:
    """Returns the current state of a process and of its descendants.

    It holds descriptors by kind with their paths and peers, limits and how much of each is used, size, threads and age.
    With no descriptor free it still reports this process.

    Args:
        pid: The process; by default this one.
        tree: False: without its descendants.

    Raises:
        InputError: There is no such process.
    """
    return take_snapshot(pid, tree)
