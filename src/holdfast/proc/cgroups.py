"""What a process's control group lets it have: tasks and memory, in versions 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .limit import Limit, tightest
from .procfs import ProcFS, read_or_none

_MOUNT = "/sys/fs/cgroup"
# Version 1 writes "no limit" as the largest multiple of a page below 2**63.
_V1_UNLIMITED = 1 << 62


def parse_cgroup(text: str) -> dict[str, str]:
    """`/proc/PID/cgroup` -> path by controller; version 2 has the one of the empty name.

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
    return _limit(procfs, pid, "pids", ("pids.current", "pids.max"), ("pids.current", "pids.max"))


def memory_limit(procfs: ProcFS, pid: int) -> Limit:
    old = ("memory.usage_in_bytes", "memory.limit_in_bytes")
    return _limit(procfs, pid, "memory", ("memory.current", "memory.max"), old)


def _limit(procfs: ProcFS, pid: int, name: str, v2: tuple[str, str], v1: tuple[str, str]) -> Limit:
    """Every group above binds as well, so that the one used most is the one that counts."""
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
        used, most = (_number(read_or_none(procfs, f"{folder}/{file}")) for file in files)
        if most is not None:
            yield Limit(name=title, used=None if used is None else int(used), soft=most, hard=most)


def _upwards(mount: str, path: str) -> Iterator[str]:
    """The group's folder and those above it, up to the mount: in a container that is often the only one to be seen."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # a group outside of this one's namespace: its folder is not here
        parts = []
    for length in range(len(parts), -1, -1):
        yield "/".join([mount, *parts[:length]])


def _number(text: str | None) -> float | None:
    """`max` or a number."""
    word = (text or "").strip()
    if word == "max":
        return math.inf
    if not word.isdigit():
        return None
    return math.inf if int(word) >= _V1_UNLIMITED else int(word)
