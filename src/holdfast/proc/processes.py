"""Who a process is, who its children are, and how big it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .limits import count_threads
from .procfs import ProcFS, list_pids, read_or_none, stat_or_none

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Identity(NamedTuple):
    """A pid is given out again; with the moment of the start it is one process for good. None: could not be read."""

    pid: int
    start_ticks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    comm: str
    state: str
    ppid: int
    threads: int
    start_ticks: int
    rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """None is unknown: it could not be read."""

    pid: int
    start_ticks: int | None = None
    ppid: int | None = None
    comm: str = ""
    cmdline: str = ""
    state: str = ""
    uid: int | None = None
    threads: int | None = None
    rss_bytes: int | None = None
    uptime_s: float | None = None

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.start_ticks)


def parse_stat(text: str) -> Stat | None:
    """`/proc/PID/stat`; the name in parentheses may itself hold spaces and parentheses.

    ```
    4711 (data (w) 1) S 4700 4711 4700 0 -1 4194304 90 0 0 0 1 2 0 0 20 0 3 0 88321 12345344 1520 …
    ```
    """
    start, end = text.find("("), text.rfind(")")
    words = text[end + 1 :].split()
    if start < 0 or len(words) < 22:
        return None
    try:
        return Stat(
            comm=text[start + 1 : end],
            state=words[0],
            ppid=int(words[1]),
            threads=int(words[17]),
            start_ticks=int(words[19]),
            rss_bytes=int(words[21]) * _PAGE_BYTES,
        )
    except ValueError:
        return None


def read_stat(procfs: ProcFS, pid: int) -> Stat | None:
    return parse_stat(read_or_none(procfs, f"/proc/{pid}/stat") or "")


def read_process(procfs: ProcFS, pid: int) -> Process | None:
    """What can be seen of a process; None if there is none of this pid."""
    folder = stat_or_none(procfs, f"/proc/{pid}")
    if folder is None:
        return None
    seen = read_stat(procfs, pid)
    if seen is None:  # no descriptor free to read it with, or not to be seen by this user
        return Process(pid=pid, uid=folder.st_uid, threads=count_threads(procfs, pid))
    return Process(
        pid=pid,
        start_ticks=seen.start_ticks,
        ppid=seen.ppid,
        comm=seen.comm,
        cmdline=(read_or_none(procfs, f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip(),
        state=seen.state,
        uid=folder.st_uid,
        threads=seen.threads,
        rss_bytes=seen.rss_bytes,
        uptime_s=_uptime(procfs, seen.start_ticks),
    )


def _uptime(procfs: ProcFS, start_ticks: int) -> float | None:
    """From `/proc/uptime`, `5021.07 9120.11\\n`, which is counted from the same moment as the start."""
    words = (read_or_none(procfs, "/proc/uptime") or "").split()
    try:
        return max(0.0, float(words[0]) - start_ticks / _TICKS_PER_S)
    except (IndexError, ValueError):
        return None


def is_same(procfs: ProcFS, identity: Identity) -> bool | None:
    """Whether this pid is still that process; None if that cannot be read."""
    seen = read_stat(procfs, identity.pid)
    if seen is None:
        return None if stat_or_none(procfs, f"/proc/{identity.pid}") else False
    return None if identity.start_ticks is None else seen.start_ticks == identity.start_ticks


def read_parents(procfs: ProcFS) -> dict[int, int]:
    """The parent of every process that can be seen."""
    return {pid: seen.ppid for pid in list_pids(procfs) if (seen := read_stat(procfs, pid)) is not None}


def descendants(parents: Mapping[int, int], pid: int) -> list[int]:
    """Children and theirs, each after its parent, in the order of a drawn tree."""
    children: dict[int, list[int]] = {}
    for child, parent in sorted(parents.items()):
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    seen = {pid}  # the parents were read one after the other: with a pid given out again they may form a ring
    while waiting:
        one = waiting.pop()
        if one != pid:
            found.append(one)
        fresh = [child for child in children.get(one, ()) if child not in seen]
        seen.update(fresh)
        waiting.extend(reversed(fresh))
    return found
