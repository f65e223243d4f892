"""One look at a process and its descendants: everything this package can say, joined."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import InputError
from .descriptors import Descriptor, Kind, PathGroup, count, count_kinds, group_paths, scan
from .limit import Limit, tightest
from .limits import process_limits, shared_limits, threads_by_user
from .pipes import Fate, PipeEnd, pair_pipes, poll_other, poll_own
from .processes import Process, descendants, is_same, read_parents, read_process
from .procfs import REAL, ProcFS, read_or_none, readlink_or_none
from .sockets import SocketInfo, read_sockets

# A new pipe has room for 16 pages, unless somebody asked for more or the user has had his share.
_PIPE_PAGES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLook:
    """One process. `descriptors` is None where they may not be seen; `fd_count` may be known all the same."""

    process: Process
    fd_count: int | None
    descriptors: tuple[Descriptor, ...] | None
    ends: tuple[PipeEnd, ...]
    limits: tuple[Limit, ...]

    @property
    def kinds(self) -> dict[Kind, int]:
        return count_kinds(self.descriptors or ())

    @property
    def path_groups(self) -> list[PathGroup]:
        return group_paths(self.descriptors or ())

    def ends_of(self, fate: Fate) -> list[PipeEnd]:
        return [end for end in self.ends if end.fate is fate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The root process first, then its descendants, each after its parent.

    `shared` are the limits that all of them draw on. `whole_tree` is False where the children could not be looked for.
    """

    processes: tuple[ProcessLook, ...]
    shared: tuple[Limit, ...]
    whole_tree: bool

    @property
    def root(self) -> ProcessLook:
        return self.processes[0]

    @property
    def kinds(self) -> dict[Kind, int]:
        return count_kinds(one for look in self.processes for one in look.descriptors or ())

    @property
    def tightest(self) -> Limit | None:
        """Of everything that can run out, for any of them, what is used most."""
        return tightest([*self.shared, *(limit for look in self.processes for limit in look.limits)])


def take_snapshot(pid: int | None = None, tree: bool = True, procfs: ProcFS = REAL) -> Snapshot:
    """Looks at a process, by default this one, and its descendants. InputError: there is no such process.

    With no descriptor free it still tells of this process's descriptors, pipes and limits; its children cannot be found
    then. A `HeldProcFS` made earlier also keeps its start, size and uptime readable.
    """
    own = procfs.own_pid()
    root = pid if pid is not None else own
    if root is None:
        raise InputError("this process is not to be seen in /proc; wanted the pid of one that is")
    pids, whole = _pids(procfs, root, tree)
    tables: dict[int, list[Descriptor] | None] = {}
    seen: dict[int, Process] = {}
    for one in pids:
        process = read_process(procfs, one)
        table = scan(procfs, one)
        # A pid given out again during the scan would show one process's name over another one's descriptors.
        if process is not None and is_same(procfs, process.identity) is not False:
            seen[one], tables[one] = process, table
    if root not in seen:
        raise InputError(f"there is no process {root}")
    _name_sockets(procfs, tables)
    ends = _pair(tables, own)
    users = threads_by_user(procfs)
    looks = tuple(_look(procfs, process, tables[one], ends.get(one, ()), users) for one, process in seen.items())
    return Snapshot(processes=looks, shared=tuple(_shared(procfs, root, tables)), whole_tree=whole)


def _pids(procfs: ProcFS, root: int, tree: bool) -> tuple[list[int], bool]:
    if not tree:
        return [root], True
    parents = read_parents(procfs)
    return [root, *descendants(parents, root)], root in parents


def _name_sockets(procfs: ProcFS, tables: dict[int, list[Descriptor] | None]) -> None:
    """The tables of sockets are those of a network namespace: read once for all processes in it."""
    known: dict[str, Mapping[int, SocketInfo]] = {}
    for pid, table in tables.items():
        if not table or not any(one.kind is Kind.SOCKET for one in table):
            continue
        space = readlink_or_none(procfs, f"/proc/{pid}/ns/net") or str(pid)
        if space not in known:
            known[space] = read_sockets(procfs, pid)
        tables[pid] = [
            one._replace(socket=known[space].get(one.inode or 0)) if one.kind is Kind.SOCKET else one for one in table
        ]


def _pair(tables: Mapping[int, Sequence[Descriptor] | None], own: int | None) -> dict[int, tuple[PipeEnd, ...]]:
    def poll(pid: int, ends: Sequence[Descriptor]) -> Mapping[int, bool]:
        if pid == own:
            return poll_own(ends)
        # In a fake /proc, or in one of another pid namespace, this pid is not that process to the system calls.
        return poll_other(pid, ends) if own == os.getpid() else {}

    found: dict[int, list[PipeEnd]] = {}
    for end in pair_pipes({pid: table for pid, table in tables.items() if table is not None}, poll):
        found.setdefault(end.pid, []).append(end)
    return {pid: tuple(ends) for pid, ends in found.items()}


def _look(
    procfs: ProcFS,
    process: Process,
    table: Sequence[Descriptor] | None,
    ends: tuple[PipeEnd, ...],
    users: Mapping[int, int],
) -> ProcessLook:
    fds = count(procfs, process.pid) if table is None else len(table)
    return ProcessLook(
        process=process,
        fd_count=fds,
        descriptors=None if table is None else tuple(table),
        ends=ends,
        limits=process_limits(procfs, process.pid, fds, None if process.uid is None else users.get(process.uid)),
    )


def _shared(procfs: ProcFS, root: int, tables: Mapping[int, Sequence[Descriptor] | None]) -> list[Limit]:
    """What the kernel does not count for anyone is counted here: these processes use at least that much."""
    own = {
        "pipe_user_pages": _PIPE_PAGES * len({one.inode for one in _of(tables, Kind.PIPE)}),
        "inotify_instances": len(_of(tables, Kind.INOTIFY)),
        "inotify_watches": _watches(procfs, tables),
    }
    return [
        replace(limit, used=own[limit.name]) if limit.name in own else limit for limit in shared_limits(procfs, root)
    ]


def _of(tables: Mapping[int, Sequence[Descriptor] | None], kind: Kind) -> list[Descriptor]:
    return [one for table in tables.values() for one in table or () if one.kind is kind]


def _watches(procfs: ProcFS, tables: Mapping[int, Sequence[Descriptor] | None]) -> int | None:
    """fdinfo of an inotify descriptor has a row `inotify wd:1 ino:…` for every watch."""
    rows = 0
    for pid, table in tables.items():
        for one in table or ():
            if one.kind is Kind.INOTIFY:
                text = read_or_none(procfs, f"/proc/{pid}/fdinfo/{one.fd}")
                if text is None:
                    return None
                rows += sum(line.startswith("inotify wd:") for line in text.splitlines())
    return rows
