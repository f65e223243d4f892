"""Which processes are meant: by a part of their name, or by being of interest."""

from __future__ import annotations

import os

from ..proc.descriptors import count
from ..proc.processes import read_parents, read_process
from ..proc.procfs import REAL, ProcFS, list_pids, stat_or_none

MANY_FDS = 64


def find_by_name(name: str, procfs: ProcFS = REAL) -> list[int]:
    """Processes whose command line or name holds `name`; not this one, nor those that started it with the same words.

    A process found whose parent was found too is left out: it is looked at as part of that one's tree.
    """
    parents = read_parents(procfs)
    own = _line_of(parents, procfs.own_pid())
    found = set()
    for pid in list_pids(procfs):
        process = None if pid in own else read_process(procfs, pid)
        if process is not None and (name in process.cmdline or name in process.comm):
            found.add(pid)
    return sorted(pid for pid in found if not found & set(_line_of(parents, parents.get(pid))))


def find_busy(procfs: ProcFS = REAL, uid: int | None = None) -> list[int]:
    """This user's processes that have children or many descriptors, the one with most descriptors first."""
    uid = os.geteuid() if uid is None else uid
    parents = read_parents(procfs)
    with_children = set(parents.values())
    own = procfs.own_pid()
    fds: dict[int, int] = {}
    for pid in parents:
        folder = stat_or_none(procfs, f"/proc/{pid}")
        if pid == own or folder is None or folder.st_uid != uid:
            continue
        fds[pid] = count(procfs, pid) or 0
    # The kernel's own threads have no descriptors.
    busy = [pid for pid in fds if fds[pid] and (pid in with_children or fds[pid] > MANY_FDS)]
    return sorted(busy, key=lambda pid: (-fds[pid], pid))


def roots_of(pids: list[int], procfs: ProcFS = REAL) -> list[int]:
    """Those that are not below another one of them, in their order."""
    parents = read_parents(procfs)
    among = set(pids)
    return [pid for pid in dict.fromkeys(pids) if not among & set(_line_of(parents, parents.get(pid)))]


def _line_of(parents: dict[int, int], pid: int | None) -> list[int]:
    """A process, its parent, and so on up."""
    line: list[int] = []
    while pid and pid not in line:
        line.append(pid)
        pid = parents.get(pid)
    return line
