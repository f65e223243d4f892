"""The limits by the names people look for."""

from __future__ import annotations

import math

from .._base.units import format_bytes
from ..proc.limit import Limit

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


def amount(limit: Limit, value: float | None) -> str:
    """A number of what this limit counts: `12.3 GB` or `4,711`."""
    return quantity(value, in_bytes=limit.name in _BYTES)


def quantity(value: float | None, *, in_bytes: bool = False) -> str:
    if value is None:
        return "?"
    if math.isinf(value):
        return "unlimited"
    return format_bytes(int(value)) if in_bytes else f"{value:,.0f}"


def used_part(used: int | None, most: float | None) -> float | None:
    """0 to 1 and above; of nothing at all, everything is used. None is unknown."""
    if used is None or most is None:
        return None
    return used / most if most else 1.0


def percent(ratio: float) -> str:
    """`3.4 %`, `97.5 %`, `202 %`; never `100 %` while something is left."""
    if ratio >= 1:
        return f"{ratio * 100:,.0f} %" if ratio < 1000 else "far too many"
    return f"{min(ratio * 100, 99.9):.1f} %"


def finite(value: float | None) -> float | int | None:
    """For JSON, which has no infinity: unlimited and unknown are both null."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value
