"""What a test leaves behind: descriptors, child processes, threads, files in /dev/shm.

    before = take()
    …the test…
    left = wait_until_clean(before)    # {} or {"fd": ["7 -> /tmp/x"], "process": […], "thread": […], …}

Taking a picture costs a few hundred microseconds, so that every test can have one before and one after.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass

KINDS = ("fd", "process", "thread", "shm")
GRACE_S = 2.0

_SHM = "/dev/shm"
_CLONE_NEWNS = 0x20000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18


@dataclass(frozen=True, slots=True)
class ResourceSnapshot:
    """What this process has, each as identity -> how to tell a person."""

    fd: dict[Hashable, str]
    process: dict[Hashable, str]
    thread: dict[Hashable, str]
    shm: dict[Hashable, str]


def take() -> ResourceSnapshot:
    return ResourceSnapshot(_descriptors(), _processes(), _threads(), _shm_files())


def wait_until_clean(before: ResourceSnapshot, grace_s: float = GRACE_S) -> dict[str, list[str]]:
    """What is here and was not `before`, once it had its chance to go: a thread may be ending just now."""
    left = _added(before, take())
    if not left:
        return left
    deadline = time.monotonic() + grace_s
    while True:
        gc.collect()
        left = _added(before, take())
        if not left or time.monotonic() >= deadline:
            break
        time.sleep(0.01)
    if "shm" in left:
        paths = {name: f"{_SHM}/{name}" for name in left["shm"]}
        left["shm"] = [name for name, path in paths.items() if not _is_of_strangers(path) and os.path.exists(path)]
    return {kind: resources for kind, resources in left.items() if resources}


def describe(left: dict[str, list[str]]) -> str:
    lines = [f"  {kind}: {resource}" for kind in KINDS for resource in left.get(kind, [])]
    return "\n".join(["left behind by this test:", *lines])


def _added(before: ResourceSnapshot, after: ResourceSnapshot) -> dict[str, list[str]]:
    added = {}
    for kind in KINDS:
        old, new = getattr(before, kind), getattr(after, kind)
        resources = [told for identity, told in new.items() if identity not in old]
        if resources:
            added[kind] = sorted(resources)
    return added


# ---- descriptors -------------------------------------------------------------------------------------------


def _descriptors() -> dict[Hashable, str]:
    kept = _kept_by_python()[1]
    found: dict[Hashable, str] = {}
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd == kept:
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            status = os.fstat(fd)
        except OSError:
            continue  # the listing's own, closed by now
        # By inode, so that a number given to another file shows, and a file renamed or deleted meanwhile does
        # not. All anonymous ones share an inode: there the target says a little more.
        what = target if target.startswith("anon_inode:") else (status.st_dev, status.st_ino)
        found[fd, what] = f"{fd} -> {target}"
    return found


# ---- processes ---------------------------------------------------------------------------------------------

# Seen, and not our children: they never become so. Reading new ones only keeps it quick on a full machine.
_strangers: set[int] = set()


def _processes() -> dict[Hashable, str]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {}
    here = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    _strangers.intersection_update(here)
    kept = _kept_by_python()[0]
    found: dict[Hashable, str] = {}
    for pid in here - _strangers:
        state, parent = _state_and_parent(pid)
        if parent != os.getpid():
            _strangers.add(pid)
        elif pid != kept:
            found[pid] = f"{pid} {'(zombie)' if state == 'Z' else _command_line(pid)}"
    return found


def _state_and_parent(pid: int) -> tuple[str, int]:
    """From /proc/PID/stat: `41 (name) S 1 …`; the name may hold spaces and parentheses."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return "", -1
    return state.decode(), int(parent)


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(gone)"


def _kept_by_python() -> tuple[int | None, int | None]:
    """Process and descriptor of multiprocessing's resource tracker, which Python starts once and keeps."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(module, "_resource_tracker", None)
    return getattr(tracker, "_pid", None), getattr(tracker, "_fd", None)


# ---- threads -----------------------------------------------------------------------------------------------


def _threads() -> dict[Hashable, str]:
    """Python's only: pools inside numerical libraries start when first used, and stay."""
    return {thread: f"{thread.name} (daemon)" if thread.daemon else thread.name for thread in threading.enumerate()}


# ---- shared memory -----------------------------------------------------------------------------------------


def mount_own_shm() -> None:
    """Gives this process a /dev/shm of its own where that is permitted: other programs put files there at any time."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)  # what follows is not seen outside
        libc.mount(b"tmpfs", _SHM.encode(), b"tmpfs", 0, None)


def _shm_files() -> dict[Hashable, str]:
    try:
        return {name: name for name in os.listdir(_SHM)}
    except OSError:
        return {}


def _is_of_strangers(path: str) -> bool:
    """Whether a process outside our group has the file: then another suite on this machine made it."""
    ours = os.getpgrp()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ended in between, or is not ours to look at
            if os.getpgid(int(pid)) != ours and (_maps(pid, path) or _has_open(pid, path)):
                return True
    return False


def _maps(pid: str, path: str) -> bool:
    with open(f"/proc/{pid}/maps", errors="replace") as file:
        return any(line.rstrip("\n").endswith(path) for line in file)


def _has_open(pid: str, path: str) -> bool:
    return any(os.readlink(f"/proc/{pid}/fd/{fd}") == path for fd in os.listdir(f"/proc/{pid}/fd"))
