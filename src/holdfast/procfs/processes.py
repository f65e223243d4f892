"""Reads a process's identity, its descendants and its size, and finds processes by name."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .descriptors import Kind, count, count_kinds, describe_all, list_fds
from .limits import count_threads
from .procfs import REAL, ProcFS, list_pids, read_or_none, stat_or_none

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Identity(NamedTuple):
    """Identifies a process for good: a pid is reused, a pid with its start time is not. None: could not be read."""

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
    """A process. None: could not be read."""

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
    """Parses `/proc/PID/stat`; the name in parentheses may itself hold spaces and parentheses.

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


def read_status(procfs: ProcFS, pid: int) -> dict[str, str]:
    """Reads the rows of `/proc/PID/status` by title: `Uid`, `NSpid`, `SigCgt`; empty if they cannot be read."""
    rows = (line.partition(":") for line in (read_or_none(procfs, f"/proc/{pid}/status") or "").splitlines())
    return {title: value.strip() for title, colon, value in rows if colon}


def read_cpu_s(procfs: ProcFS, pid: int) -> float:
    """Reads the CPU time that a process has used, user and system; 0 if it cannot be read."""
    return read_cpu_and_faults(procfs, pid)[0]


def read_cpu_and_faults(procfs: ProcFS, pid: int) -> tuple[float, int]:
    """Reads the CPU time of a process and the number of its page faults: how often it touched memory new to it."""
    words = (read_or_none(procfs, f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return ((int(words[11]) + int(words[12])) / _TICKS_PER_S, int(words[7])) if len(words) > 12 else (0.0, 0)


def read_process(procfs: ProcFS, pid: int) -> Process | None:
    """Reads what is visible of a process; None if there is no such process."""
    folder = stat_or_none(procfs, f"/proc/{pid}")
    if folder is None:
        return None
    seen = read_stat(procfs, pid)
    if seen is None:  # no descriptor is free to read it, or this user may not
        return Process(pid=pid, uid=folder.st_uid, threads=count_threads(procfs, pid))
    return Process(
        pid=pid,
        start_ticks=seen.start_ticks,
        ppid=seen.ppid,
        comm=seen.comm,
        cmdline=_read_command(procfs, pid),
        state=seen.state,
        uid=folder.st_uid,
        threads=seen.threads,
        rss_bytes=seen.rss_bytes,
        uptime_s=_uptime(procfs, seen.start_ticks),
    )


def _read_command(procfs: ProcFS, pid: int) -> str:
    return (read_or_none(procfs, f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()


def _uptime(procfs: ProcFS, start_ticks: int) -> float | None:
    """Computes the age from `/proc/uptime`, `5021.07 9120.11\\n`: both count from the boot of the machine."""
    words = (read_or_none(procfs, "/proc/uptime") or "").split()
    try:
        return max(0.0, float(words[0]) - start_ticks / _TICKS_PER_S)
    except (IndexError, ValueError):
        return None


def is_same(procfs: ProcFS, identity: Identity) -> bool | None:
    """Returns whether this pid is still that process; None if that cannot be read."""
    seen = read_stat(procfs, identity.pid)
    if seen is None:
        return None if stat_or_none(procfs, f"/proc/{identity.pid}") else False
    return None if identity.start_ticks is None else seen.start_ticks == identity.start_ticks


def read_parents(procfs: ProcFS) -> dict[int, int]:
    """Returns the parent of every visible process."""
    return {pid: seen.ppid for pid in list_pids(procfs) if (seen := read_stat(procfs, pid)) is not None}


def descendants(parents: Mapping[int, int], pid: int) -> list[int]:
    """Returns children and their descendants depth first, each after its parent."""
    children: dict[int, list[int]] = {}
    for child, parent in sorted(parents.items()):
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    seen = {pid}  # the parents were not read at one instant: with a reused pid they may form a cycle
    while waiting:
        one = waiting.pop()
        if one != pid:
            found.append(one)
        fresh = [child for child in children.get(one, ()) if child not in seen]
        seen.update(fresh)
        waiting.extend(reversed(fresh))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """Counts that are cheap enough to read every few seconds. None: unknown, or the process is gone."""

    fds: int | None
    rss_bytes: int | None
    threads: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSample:
    """The kinds of `sampled` descriptors that were sampled evenly from all `fd_count` of them."""

    fd_count: int
    sampled: int
    seen: dict[Kind, int]

    @property
    def estimate(self) -> dict[Kind, int]:
        """Estimates how many descriptors of each kind the process has."""
        if not self.sampled:
            return {}
        return {kind: round(times * self.fd_count / self.sampled) for kind, times in self.seen.items()}


def parse_statm(text: str) -> int | None:
    """Parses `3014 1520 803 1 0 790 0\\n`, whose second number is the resident size in pages, into bytes."""
    words = text.split()
    return int(words[1]) * _PAGE_BYTES if len(words) > 1 and words[1].isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The memory that a process has written and shares with nobody, and what it shares, after a fork for example."""

    private_bytes: int
    shared_bytes: int


def parse_smaps_rollup(text: str) -> Footprint | None:
    """Parses the rows `Private_Dirty:     112 kB` of `/proc/PID/smaps_rollup`.

    Mapped files that this process alone reads are private and clean: they are cache, not memory of the process.
    """
    rows = (line.split() for line in text.splitlines())
    kib = {row[0]: int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB" and row[1].isdigit()}
    if "Private_Dirty:" not in kib:
        return None
    private = kib["Private_Dirty:"] + kib.get("SwapPss:", 0)
    return Footprint(
        private_bytes=1024 * private,
        shared_bytes=1024 * (kib.get("Shared_Clean:", 0) + kib.get("Shared_Dirty:", 0)),
    )


def read_footprint(procfs: ProcFS, pid: int) -> Footprint | None:
    """Walks the page tables, which takes about 20 ms for each GB: too much for every sample."""
    return parse_smaps_rollup(read_or_none(procfs, f"/proc/{pid}/smaps_rollup") or "")


def read_vitals(procfs: ProcFS, pid: int) -> Vitals:
    """Reads counts that are cheap enough for sampling: two stats and one small file.

    The pid may have been reused since the last call: check with `is_same` now and then.
    """
    return Vitals(
        fds=count(procfs, pid),
        rss_bytes=parse_statm(read_or_none(procfs, f"/proc/{pid}/statm") or ""),
        threads=count_threads(procfs, pid),
    )


def sample_kinds(procfs: ProcFS, pid: int, n: int = 300, chance: random.Random | None = None) -> KindSample | None:
    """Samples the kinds of `n` descriptors, or of all if there are fewer; None if this user may not inspect them.

    One descriptor is drawn from each of `n` equal ranges: those opened together have adjacent numbers, and a simple
    random sample would miss entire ranges.
    """
    if n < 1:
        raise ValueError(f"expected a sample of at least one descriptor, got {n}")
    numbers = list_fds(procfs, pid)
    if numbers is None:
        return None
    chance = chance or random.Random()
    total = len(numbers)
    if total > n:
        edges = [total * at // n for at in range(n + 1)]
        numbers = [numbers[chance.randrange(edges[at], edges[at + 1])] for at in range(n)]
    found = describe_all(procfs, pid, numbers)
    fds = count(procfs, pid)
    return KindSample(fd_count=total if fds is None else fds, sampled=len(found), seen=count_kinds(found))


MANY_FDS = 64


# Commands that start another one and wait for it.
_WRAPPER = re.compile(
    "chrt|dumb-init|env|ionice|ltrace|nice|nohup|numactl|setsid|stdbuf|strace|sudo|taskset|time|timeout|tini|unshare|xvfb-run"
)
_SHELL = re.compile("(a|ba|da|k|z)?sh")
_TRACES = re.compile(r"\bholdfast trace (?!.*--attach)")


def is_shell_command(command: str) -> bool:
    """Whether it is `bash -c '…'`; a shell that runs a file is the program itself."""
    words = command.split(" ", 2)
    is_shell = _SHELL.fullmatch(words[0].rpartition("/")[2]) is not None
    return is_shell and len(words) > 1 and words[1][:1] == "-" and words[1].endswith("c")


def is_wrapper(command: str) -> bool:
    """Whether a command line only starts another program: `timeout 60 …`, `sudo …`, `bash -c …`, `holdfast trace …`."""
    program = command.partition(" ")[0].rpartition("/")[2]
    return _WRAPPER.fullmatch(program) is not None or is_shell_command(command) or bool(_TRACES.search(command))


def find_by_name(name: str, procfs: ProcFS = REAL) -> list[int]:
    """Finds processes whose command line or name contains `name`, except this one and its ancestors.

    A process with an ancestor among those found is left out: it is scanned as part of that one's tree. Of a wrapper,
    it is the program that it runs.
    """
    seen = {pid: stat for pid in list_pids(procfs) if (stat := read_stat(procfs, pid)) is not None}
    parents = {pid: stat.ppid for pid, stat in seen.items()}
    own = line_of(parents, procfs.own_pid())
    commands = {pid: _read_command(procfs, pid) for pid in seen if pid not in own}
    found = {pid for pid, command in commands.items() if name in command or name in seen[pid].comm}
    children: dict[int, list[int]] = {}
    for pid in commands:
        children.setdefault(parents[pid], []).append(pid)
    chosen = []
    waiting = [pid for pid in found if not found & set(line_of(parents, parents.get(pid)))]
    while waiting:
        pid = waiting.pop()
        below = children.get(pid, [])
        if not is_wrapper(commands[pid]):
            chosen.append(pid)
        elif named := [child for child in below if child in found]:
            waiting += named
        elif is_shell_command(commands[pid]):
            chosen.append(pid)
        else:
            waiting += below
    return sorted(chosen)


def find_busy(procfs: ProcFS = REAL, uid: int | None = None) -> list[int]:
    """Finds this user's processes that have children or many descriptors, the one with the most descriptors first."""
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
    # Kernel threads have no descriptors.
    busy = [pid for pid in fds if fds[pid] and (pid in with_children or fds[pid] > MANY_FDS)]
    return sorted(busy, key=lambda pid: (-fds[pid], pid))


def roots_of(pids: list[int], procfs: ProcFS = REAL) -> list[int]:
    """Returns the processes that are not descendants of another one in the list, in the same order."""
    parents = read_parents(procfs)
    among = set(pids)
    return [pid for pid in dict.fromkeys(pids) if not among & set(line_of(parents, parents.get(pid)))]


def line_of(parents: Mapping[int, int], pid: int | None) -> list[int]:
    """Returns a process and its ancestors, nearest first."""
    line: list[int] = []
    while pid and pid not in line:
        line.append(pid)
        pid = parents.get(pid)
    return line


_STATES = {
    "T": "stopped by a signal (SIGCONT resumes it)",
    "t": "stopped by a debugger",
    "D": "waiting for a disk or a network mount",
    "R": "running",
    "S": "waiting",
    "Z": "ended",
}


def is_stopped(pid: int) -> bool:
    return _state(pid) in ("T", "t")


def describe_state(pid: int) -> str:
    state = _state(pid)
    return _STATES.get(state, f"in state {state}") if state else "gone"


def _state(pid: int) -> str:
    stat = read_stat(REAL, pid)
    return stat.state if stat else ""
