"""Everything a process can run out of: how much there is, how much is used.

What cannot be read (another user's, hidden in a container, absent from this kernel) is None, never an error.
"""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass

from .cgroups import memory_limit, pids_limit
from .limit import Limit
from .procfs import ProcFS, list_pids, number_or_none, read_or_none, stat_or_none

_ROWS = {"Max open files": "nofile", "Max processes": "nproc"}
_ASKED = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A soft and a hard limit; `math.inf` is unlimited."""

    soft: float
    hard: float


def parse_limits(text: str) -> dict[str, Bounds]:
    """The rows of `/proc/PID/limits` that matter here.

    ```
    Limit                     Soft Limit           Hard Limit           Units
    Max processes             63204                unlimited            processes
    Max open files            1024                 524288               files
    ```
    """
    found = {}
    for line in text.splitlines():
        for title, name in _ROWS.items():
            words = line.removeprefix(title).split()
            if line.startswith(title) and len(words) >= 2:
                found[name] = Bounds(soft=_number(words[0]), hard=_number(words[1]))
    return found


def _number(word: str) -> float:
    return int(word) if word.isdigit() else math.inf


def parse_file_nr(text: str) -> tuple[int, int, int] | None:
    """`1504\\t0\\t9223372036854775807\\n`: allocated, of these free, at most."""
    words = text.split()
    if len(words) != 3 or not all(word.isdigit() for word in words):
        return None
    return int(words[0]), int(words[1]), int(words[2])


def parse_loadavg_threads(text: str) -> int | None:
    """`0.20 0.18 0.12 1/80 11206\\n` -> 80: threads on the whole machine."""
    words = text.split()
    total = words[3].partition("/")[2] if len(words) > 3 else ""
    return int(total) if total.isdigit() else None


def process_limits(procfs: ProcFS, pid: int, fds: int | None, user_threads: int | None) -> tuple[Limit, Limit]:
    """nofile and nproc, which each process has its own of. nproc is used by all of the user's threads together."""
    rows = parse_limits(read_or_none(procfs, f"/proc/{pid}/limits") or "")
    for name, which in _ASKED.items():
        if name not in rows and (asked := _ask(procfs, pid, which)):
            rows[name] = asked
    return _limit("nofile", fds, rows.get("nofile")), _limit("nproc", user_threads, rows.get("nproc"))


def _ask(procfs: ProcFS, pid: int, which: int) -> Bounds | None:
    """By system call, which needs no descriptor but a right to the process."""
    try:
        soft, hard = procfs.rlimit(pid, which)
    except (OSError, ValueError):
        return None
    return Bounds(soft=math.inf if soft < 0 else soft, hard=math.inf if hard < 0 else hard)


def _limit(name: str, used: int | None, bounds: Bounds | None) -> Limit:
    if bounds is None:
        return Limit(name=name, used=used)
    return Limit(name=name, used=used, soft=bounds.soft, hard=bounds.hard)


def threads_by_user(procfs: ProcFS) -> dict[int, int]:
    """Threads of each uid that this /proc shows; a container shows only its own, so there may be more."""
    found: dict[int, int] = {}
    for pid in list_pids(procfs):
        process = stat_or_none(procfs, f"/proc/{pid}")
        if process is not None:
            found[process.st_uid] = found.get(process.st_uid, 0) + (count_threads(procfs, pid) or 0)
    return found


def count_threads(procfs: ProcFS, pid: int) -> int | None:
    """By the links of the folder of threads: no descriptor, and other users' processes too."""
    task = stat_or_none(procfs, f"/proc/{pid}/task")
    return None if task is None else max(0, task.st_nlink - 2)


def shared_limits(procfs: ProcFS, pid: int) -> list[Limit]:
    """What a process shares with others: the machine's tables, its control group, `/dev/shm`.

    The kernel does not tell how many pipe pages, inotify instances and watches a user has: `used` is None there.
    """
    file_nr = parse_file_nr(read_or_none(procfs, "/proc/sys/fs/file-nr") or "")
    used, most = (file_nr[0] - file_nr[1], file_nr[2]) if file_nr else (None, None)
    threads = parse_loadavg_threads(read_or_none(procfs, "/proc/loadavg") or "")
    return [
        Limit(name="file_max", used=used, soft=most, hard=most),
        _sysctl(procfs, "nr_open", "fs/nr_open"),
        _sysctl(procfs, "threads_max", "kernel/threads-max", threads),
        _sysctl(procfs, "pid_max", "kernel/pid_max", threads),
        pids_limit(procfs, pid),
        memory_limit(procfs, pid),
        _pipe_pages(procfs),
        _sysctl(procfs, "inotify_instances", "fs/inotify/max_user_instances"),
        _sysctl(procfs, "inotify_watches", "fs/inotify/max_user_watches"),
        shm_limit(procfs),
    ]


def _sysctl(procfs: ProcFS, name: str, path: str, used: int | None = None) -> Limit:
    value = number_or_none(procfs, f"/proc/sys/{path}")
    return Limit(name=name, used=used, soft=value, hard=value)


def _pipe_pages(procfs: ProcFS) -> Limit:
    """Past the soft one new pipes shrink to two pages; past the hard one there are none. 0 is no limit."""
    soft, hard = (number_or_none(procfs, f"/proc/sys/fs/pipe-user-pages-{which}") for which in ("soft", "hard"))
    return Limit(name="pipe_user_pages", soft=math.inf if soft == 0 else soft, hard=math.inf if hard == 0 else hard)


def shm_limit(procfs: ProcFS) -> Limit:
    try:
        disk = procfs.statvfs("/dev/shm")
    except OSError:
        return Limit(name="dev_shm_bytes")
    size = disk.f_blocks * disk.f_frsize
    return Limit(name="dev_shm_bytes", used=size - disk.f_bfree * disk.f_frsize, soft=size, hard=size)
