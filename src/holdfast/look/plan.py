"""What this machine, this user and this control group give to a run that starts now."""

from __future__ import annotations

import math
import os
from dataclasses import replace

from ..diagnose.plan import Room
from ..proc.cgroups import parse_cgroup
from ..proc.limit import Limit
from ..proc.limits import process_limits, shared_limits, threads_by_user
from ..proc.procfs import REAL, ProcFS, read_or_none

_GROUPS = "/sys/fs/cgroup"
_TASKS = ("threads_max", "pid_max", "cgroup_pids")


def read_room(procfs: ProcFS = REAL, *, uid: int | None = None, cores: float | None = None) -> Room:
    """For a child of this process, which inherits its limits."""
    uid = os.geteuid() if uid is None else uid
    own = procfs.own_pid() or os.getpid()
    nofile, nproc = process_limits(procfs, own, 0, threads_by_user(procfs).get(uid))
    shared = {limit.name: limit for limit in shared_limits(procfs, own)}
    # The kernel does not hold root to the limit of its processes.
    per_user = () if uid == 0 else (nproc,)
    return Room(
        nofile=nofile,
        file_max=shared["file_max"],
        pipe_pages=shared["pipe_user_pages"],
        shm=shared["dev_shm_bytes"],
        tasks=(*per_user, *(shared[name] for name in _TASKS)),
        memory=(_without_cache(procfs, own, shared["cgroup_memory"]), _available(procfs)),
        cores=_cores(procfs, own) if cores is None else cores,
        privileged=uid == 0,
    )


def parse_meminfo(text: str) -> int | None:
    """`MemAvailable:   12345678 kB` -> bytes."""
    return _row(text, "MemAvailable:", 1024)


def parse_cpu_max(text: str) -> float:
    """`150000 100000\\n` -> 1.5 cores; `max 100000` -> no limit."""
    words = text.split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    return math.inf


def _row(text: str, title: str, unit_bytes: int = 1) -> int | None:
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == title and words[1].isdigit():
            return int(words[1]) * unit_bytes
    return None


def _available(procfs: ProcFS) -> Limit:
    free = parse_meminfo(read_or_none(procfs, "/proc/meminfo") or "")
    return Limit(name="memory_available", used=None if free is None else 0, soft=free, hard=free)


def _without_cache(procfs: ProcFS, pid: int, limit: Limit) -> Limit:
    """A group's usage counts files it has read; the kernel lets those go when memory is asked for."""
    if limit.used is None:
        return limit
    cache = _row(_read_group(procfs, pid, "memory.stat"), "inactive_file") or 0
    return replace(limit, used=max(0, limit.used - cache))


def _cores(procfs: ProcFS, pid: int) -> float:
    return min(len(os.sched_getaffinity(0)), parse_cpu_max(_read_group(procfs, pid, "cpu.max")))


def _read_group(procfs: ProcFS, pid: int, name: str) -> str:
    """In a container the group's own path is often not there, but its files are at the mount."""
    path = parse_cgroup(read_or_none(procfs, f"/proc/{pid}/cgroup") or "").get("", "/").strip("/")
    return read_or_none(procfs, f"{_GROUPS}/{path}/{name}") or read_or_none(procfs, f"{_GROUPS}/{name}") or ""
