"""Reads the limits of a process, its user, its control group and the machine, and how much of each is used.

What cannot be read (another user's, hidden in a container, absent from this kernel) is None, never an error.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .._util.text import format_bytes
from .descriptors import Kind
from .peers import Tables
from .procfs import ProcFS, list_pids, number_or_none, read_or_none, stat_or_none

# A new pipe buffer has 16 pages, unless its user is over pipe-user-pages-soft.
PIPE_PAGES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """`soft` is enforced, `hard` is how far `soft` can be raised. None is unknown, `math.inf` unlimited."""

    name: str
    used: int | None = None
    soft: float | None = None
    hard: float | None = None

    @property
    def headroom(self) -> float | None:
        """How many more are allowed."""
        if self.used is None or self.soft is None:
            return None
        return max(0, self.soft - self.used)

    @property
    def ratio(self) -> float | None:
        """The used fraction: 0 of an infinite limit, 1 of a limit of 0."""
        return used_part(self.used, self.soft)


def tightest(limits: Iterable[Limit]) -> Limit | None:
    """Returns the limit with the highest known ratio."""
    known = [limit for limit in limits if limit.ratio is not None]
    return max(known, key=lambda limit: limit.ratio or 0.0, default=None)


_MOUNT = "/sys/fs/cgroup"
# Version 1 writes "no limit" as the largest multiple of the page size below 2**63.
_V1_UNLIMITED = 1 << 62


def parse_cgroup(text: str) -> dict[str, str]:
    """Parses `/proc/PID/cgroup` into paths by controller; the controller of version 2 has the empty name.

    ```
    12:pids:/system.slice/worker.service
    5:cpu,cpuacct:/
    0::/system.slice/worker.service
    ```
    """
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and path.startswith("/"):
            found.update(dict.fromkeys(controllers.split(","), path))
    return found


def pids_limit(procfs: ProcFS, pid: int) -> Limit:
    return _cgroup_limit(procfs, pid, "pids", ("pids.current", "pids.max"), ("pids.current", "pids.max"))


def memory_limit(procfs: ProcFS, pid: int) -> Limit:
    old = ("memory.usage_in_bytes", "memory.limit_in_bytes")
    return _cgroup_limit(procfs, pid, "memory", ("memory.current", "memory.max"), old)


def _cgroup_limit(procfs: ProcFS, pid: int, name: str, v2: tuple[str, str], v1: tuple[str, str]) -> Limit:
    """Returns the tightest limit among the group and its ancestors: all of them apply."""
    title = f"cgroup_{name}"
    paths = parse_cgroup(read_or_none(procfs, f"/proc/{pid}/cgroup") or "")
    found: list[Limit] = []
    for controller, mount, files in (
        ("", _MOUNT, v2),
        ("", f"{_MOUNT}/unified", v2),
        (name, f"{_MOUNT}/{name}", v1),
    ):
        if controller in paths:
            found += _read_all(procfs, title, mount, paths[controller], files)
    return tightest(found) or next(iter(found), Limit(name=title))


def _read_all(procfs: ProcFS, title: str, mount: str, path: str, files: tuple[str, str]) -> Iterator[Limit]:
    for folder in _upwards(mount, path):
        used, maximum = (_cgroup_number(read_or_none(procfs, f"{folder}/{file}")) for file in files)
        if maximum is not None:
            yield Limit(name=title, used=None if used is None else int(used), soft=maximum, hard=maximum)


def _upwards(mount: str, path: str) -> Iterator[str]:
    """Yields the group's folder and its ancestors up to the mount, often the only visible one in a container."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # the group is outside of this namespace, so its folder is not visible
        parts = []
    for length in range(len(parts), -1, -1):
        yield "/".join([mount, *parts[:length]])


def _cgroup_number(text: str | None) -> float | None:
    """Parses `max` or a number."""
    word = (text or "").strip()
    if word == "max":
        return math.inf
    if not word.isdigit():
        return None
    return math.inf if int(word) >= _V1_UNLIMITED else int(word)


def read_cgroup_file(procfs: ProcFS, pid: int, name: str) -> str:
    """Reads a file of the process's version 2 group; in a container the group's files are often only at the mount."""
    path = parse_cgroup(read_or_none(procfs, f"/proc/{pid}/cgroup") or "").get("", "/").strip("/")
    return read_or_none(procfs, f"{_MOUNT}/{path}/{name}") or read_or_none(procfs, f"{_MOUNT}/{name}") or ""


def without_cache(procfs: ProcFS, pid: int, limit: Limit) -> Limit:
    """Subtracts the page cache from a group's usage: the kernel frees it when memory is requested."""
    if limit.used is None:
        return limit
    cache = number_after(read_cgroup_file(procfs, pid, "memory.stat"), "inactive_file") or 0
    return replace(limit, used=max(0, limit.used - cache))


def count_oom_kills(procfs: ProcFS, pid: int) -> int | None:
    """Returns how many processes of the control group the kernel has killed for lack of memory."""
    v1 = parse_cgroup(read_or_none(procfs, f"/proc/{pid}/cgroup") or "").get("memory", "/").strip("/")
    old = f"{_MOUNT}/memory/{v1}/memory.oom_control"
    return number_after(read_cgroup_file(procfs, pid, "memory.events") or read_or_none(procfs, old) or "", "oom_kill")


def number_after(text: str, title: str) -> int | None:
    """Returns the number in the row with this title: 3 for `oom_kill 3\\n` and "oom_kill"."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == title and words[1].isdigit():
            return int(words[1])
    return None


def machine_memory(procfs: ProcFS) -> Limit:
    """Returns the memory of the machine, without what the kernel frees when memory is requested."""
    kib = number_after(read_or_none(procfs, "/proc/meminfo") or "", "MemTotal:")
    free = available_memory(procfs)
    if kib is None or free is None:
        return Limit(name="memory_available")
    return Limit(name="memory_available", used=max(0, 1024 * kib - free), soft=1024 * kib, hard=1024 * kib)


def available_memory(procfs: ProcFS) -> int | None:
    """Reads `MemAvailable:   12345678 kB` of `/proc/meminfo`, in bytes."""
    kib = number_after(read_or_none(procfs, "/proc/meminfo") or "", "MemAvailable:")
    return None if kib is None else kib * 1024


def used_limits(procfs: ProcFS, root: int, tables: Tables) -> list[Limit]:
    """Returns the limits that these processes share.

    The kernel does not expose how many pipe pages and inotify instances a user has: they are summed over the scanned
    processes, which is a lower bound.
    """
    pipes, inotify = Kind.PIPE, Kind.INOTIFY
    watchers = [(pid, one.fd) for pid, table in tables.items() for one in table or () if one.kind is inotify]
    own = {
        "pipe_user_pages": PIPE_PAGES
        * len({one.inode for table in tables.values() for one in table or () if one.kind is pipes}),
        "inotify_instances": len(watchers),
        "inotify_watches": count_watches(procfs, watchers),
    }
    return [
        replace(limit, used=own[limit.name]) if limit.name in own else limit for limit in shared_limits(procfs, root)
    ]


def count_watches(procfs: ProcFS, watchers: list[tuple[int, int]]) -> int | None:
    """Counts the watches: fdinfo of an inotify descriptor has a row `inotify wd:1 ino:…` for each."""
    rows = 0
    for pid, fd in watchers:
        text = read_or_none(procfs, f"/proc/{pid}/fdinfo/{fd}")
        if text is None:
            return None
        rows += sum(line.startswith("inotify wd:") for line in text.splitlines())
    return rows


_ROWS = {"Max open files": "nofile", "Max processes": "nproc"}
_RLIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A soft and a hard limit; `math.inf` is unlimited."""

    soft: float
    hard: float


def parse_limits(text: str) -> dict[str, Bounds]:
    """Parses the rows "open files" and "processes" of `/proc/PID/limits`.

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
    """Parses `1504\\t0\\t9223372036854775807\\n`: allocated, of these free, maximum."""
    words = text.split()
    if len(words) != 3 or not all(word.isdigit() for word in words):
        return None
    return int(words[0]), int(words[1]), int(words[2])


def parse_loadavg_threads(text: str) -> int | None:
    """Parses the number of threads on the machine, 80, from `0.20 0.18 0.12 1/80 11206\\n`."""
    words = text.split()
    total = words[3].partition("/")[2] if len(words) > 3 else ""
    return int(total) if total.isdigit() else None


def process_limits(procfs: ProcFS, pid: int, fds: int | None, user_threads: int | None) -> tuple[Limit, Limit]:
    """Returns nofile and nproc of a process. nproc is used by all threads of the user together."""
    rows = parse_limits(read_or_none(procfs, f"/proc/{pid}/limits") or "")
    for name, which in _RLIMITS.items():
        if name not in rows and (bounds := _call_prlimit(procfs, pid, which)):
            rows[name] = bounds
    return _limit("nofile", fds, rows.get("nofile")), _limit("nproc", user_threads, rows.get("nproc"))


def _call_prlimit(procfs: ProcFS, pid: int, which: int) -> Bounds | None:
    """Calls prlimit(2), which needs permission for the process but no free descriptor."""
    try:
        soft, hard = procfs.rlimit(pid, which)
    except (OSError, ValueError):
        return None
    return Bounds(soft=math.inf if soft < 0 else soft, hard=math.inf if hard < 0 else hard)


def plan_limit(soft: float, hard: float, want: int | None, want_hard: int | None) -> tuple[float, float]:
    """Returns the new limits: the soft one is raised to `want`, by default to the hard one, and neither is lowered."""
    new_hard = max(hard, want_hard or 0)
    return max(soft, min(new_hard if want is None else want, new_hard)), new_hard


def swap_nofile(pid: int, new: tuple[float, float] | None = None) -> tuple[float, float]:
    """Returns the limits of open descriptors of a running process, soft and hard, and sets them if `new` is given."""

    def raw(value: float) -> int:
        return resource.RLIM_INFINITY if value == math.inf else int(value)

    which = resource.RLIMIT_NOFILE
    old = resource.prlimit(pid, which) if new is None else resource.prlimit(pid, which, (raw(new[0]), raw(new[1])))
    soft, hard = (math.inf if value == resource.RLIM_INFINITY else value for value in old)
    return soft, hard


def _limit(name: str, used: int | None, bounds: Bounds | None) -> Limit:
    if bounds is None:
        return Limit(name=name, used=used)
    return Limit(name=name, used=used, soft=bounds.soft, hard=bounds.hard)


def threads_by_user(procfs: ProcFS) -> dict[int, int]:
    """Counts the threads of each uid that are visible in this /proc; a container shows only its own."""
    found: dict[int, int] = {}
    for pid in list_pids(procfs):
        process = stat_or_none(procfs, f"/proc/{pid}")
        if process is not None:
            found[process.st_uid] = found.get(process.st_uid, 0) + (count_threads(procfs, pid) or 0)
    return found


def count_threads(procfs: ProcFS, pid: int) -> int | None:
    """Counts the links of the `task` folder: that needs no descriptor and works for other users' processes."""
    task = stat_or_none(procfs, f"/proc/{pid}/task")
    return None if task is None else max(0, task.st_nlink - 2)


def shared_limits(procfs: ProcFS, pid: int) -> list[Limit]:
    """Returns limits of the machine, of the process's control group and of `/dev/shm`.

    `used` is None for pipe pages, inotify instances and watches: the kernel does not expose them per user.
    """
    file_nr = parse_file_nr(read_or_none(procfs, "/proc/sys/fs/file-nr") or "")
    used, maximum = (file_nr[0] - file_nr[1], file_nr[2]) if file_nr else (None, None)
    threads = parse_loadavg_threads(read_or_none(procfs, "/proc/loadavg") or "")
    return [
        Limit(name="file_max", used=used, soft=maximum, hard=maximum),
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
    """Reads the limits beyond which new pipes have two pages only (soft) or fail (hard). 0 is no limit."""
    soft, hard = (number_or_none(procfs, f"/proc/sys/fs/pipe-user-pages-{which}") for which in ("soft", "hard"))
    return Limit(name="pipe_user_pages", soft=math.inf if soft == 0 else soft, hard=math.inf if hard == 0 else hard)


def shm_limit(procfs: ProcFS) -> Limit:
    try:
        disk = procfs.statvfs("/dev/shm")
    except OSError:
        return Limit(name="dev_shm_bytes")
    size = disk.f_blocks * disk.f_frsize
    return Limit(name="dev_shm_bytes", used=size - disk.f_bfree * disk.f_frsize, soft=size, hard=size)


NAMES = {
    "nofile": "open files",
    "nproc": "threads of this user (ulimit -u)",
    "file_max": "open files of the machine (fs.file-max)",
    "nr_open": "highest limit of open files (fs.nr_open)",
    "threads_max": "threads of the machine (kernel.threads-max)",
    "pid_max": "pids of the machine (kernel.pid_max)",
    "cgroup_pids": "tasks of the control group (pids.max)",
    "cgroup_memory": "memory of the control group",
    "pipe_user_pages": "pages of this user's pipes (fs.pipe-user-pages-soft)",
    "inotify_instances": "inotify instances of this user",
    "inotify_watches": "inotify watches of this user",
    "dev_shm_bytes": "/dev/shm",
    "memory_available": "memory of the machine",
}
_BYTES = {"dev_shm_bytes", "cgroup_memory", "memory_available"}


def name_of(limit: Limit) -> str:
    return NAMES.get(limit.name, limit.name)


def is_bytes(limit: Limit) -> bool:
    return limit.name in _BYTES


def amount(limit: Limit, value: float | None) -> str:
    """Formats a value in the unit of this limit: `12.3 GB` or `4,711`."""
    return quantity(value, in_bytes=is_bytes(limit))


def quantity(value: float | None, *, in_bytes: bool = False) -> str:
    if value is None:
        return "?"
    if math.isinf(value):
        return "unlimited"
    return format_bytes(int(value)) if in_bytes else f"{value:,.0f}"


def used_part(used: int | None, maximum: float | None) -> float | None:
    """Returns the used fraction: above 1 beyond the limit, 1 for a limit of 0, None if unknown."""
    if used is None or maximum is None:
        return None
    return used / maximum if maximum else 1.0


def percent(ratio: float) -> str:
    """Formats a ratio: `3.4 %`, `97.5 %`, `202 %`; never `100 %` below the limit."""
    if ratio >= 1:
        return f"{ratio * 100:,.0f} %" if ratio < 1000 else "far too many"
    return f"{min(ratio * 100, 99.9):.1f} %"


def finite(value: float | None) -> float | int | None:
    """Converts a limit for JSON, which has no infinity: unlimited and unknown are both null."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value
