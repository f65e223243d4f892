"""Lists the resources of this process that can leak: descriptors, child processes, threads, files in /dev/shm."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from ...procfs.descriptors import Kind, scan
from ...procfs.processes import descendants, read_parents, read_process
from ...procfs.procfs import REAL, list_pids, read_or_none, readlink_or_none

PROCESS, THREAD, SHM_FILE = "process", "thread", "shm_file"
KINDS = frozenset({*(str(kind) for kind in Kind), PROCESS, THREAD, SHM_FILE})
_SHM = "/dev/shm"
# The interpreter or a library opens these on first use and keeps them until the process ends.
_ONCE = ("/dev/urandom", "/dev/random")


class Resource(NamedTuple):
    kind: str
    what: str
    fd: int | None = None


ResourceSnapshot = dict[Hashable, Resource]


def take_resource_snapshot(*, processes: bool = True) -> ResourceSnapshot:
    """Lists the resources by a key that identifies the same resource in a later snapshot."""
    found = {**dict(_descriptors()), **dict(_threads()), **dict(_shm_files())}
    return found | dict(_children()) if processes else found


def _descriptors() -> Iterator[tuple[Hashable, Resource]]:
    own = REAL.own_pid()
    kept = _kept_by_python()[1]
    for one in (scan(REAL, own) if own is not None else None) or ():
        if one.fd in kept or one.target in _ONCE:
            continue
        # The key has the inode, so that a number reused for another file is new and a renamed file is not. All
        # anonymous inodes are the same: there the target says more.
        what: Hashable = one.target
        if not one.target.startswith("anon_inode:"):
            try:
                status = os.fstat(one.fd)
            except OSError:
                continue
            what = status.st_dev, status.st_ino
        yield ("fd", one.fd, what), Resource(str(one.kind), f"{one.fd} -> {one.target}", one.fd)


def _threads() -> Iterator[tuple[Hashable, Resource]]:
    """Lists Python threads only: the thread pools of numerical libraries start on first use and stay."""
    for thread in threading.enumerate():
        if not isinstance(thread, threading._DummyThread):
            name = f"{thread.name} (daemon)" if thread.daemon else thread.name
            yield (THREAD, thread.ident, thread.native_id), Resource(THREAD, name)


def _shm_files() -> Iterator[tuple[Hashable, Resource]]:
    try:
        names = os.listdir(_SHM)
    except OSError:
        return
    for name in names:
        yield (SHM_FILE, name), Resource(SHM_FILE, f"{_SHM}/{name}")


def _children() -> Iterator[tuple[Hashable, Resource]]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there are none
        return
    own, kept = REAL.own_pid(), _kept_by_python()[0]
    for pid, parent in read_parents(REAL).items():
        if parent == own and pid not in kept and (child := read_process(REAL, pid)) is not None:
            what = "(zombie)" if child.state == "Z" else child.cmdline or child.comm
            yield (PROCESS, pid, child.start_ticks), Resource(PROCESS, f"{pid} {what}")


def _kept_by_python() -> tuple[set[object], set[object]]:
    """Returns the pids and descriptors of multiprocessing's resource tracker and fork server, which it keeps."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    pids = {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None)}
    return pids, {getattr(tracker, "_fd", None), getattr(server, "_forkserver_alive_fd", None)}


def exclude_other_processes(resources: ResourceSnapshot) -> ResourceSnapshot:
    """Removes files in /dev/shm that belong to another user or that a process outside this one's tree uses."""
    files = {key: resource.what for key, resource in resources.items() if resource.kind == SHM_FILE}
    if not files:
        return resources
    own = REAL.own_pid()
    family = {own, *(descendants(read_parents(REAL), own) if own is not None else ())}
    theirs = {path for path in files.values() if _is_of_another(path)}
    for pid in list_pids(REAL):
        if pid not in family:
            theirs |= _used_by(pid, set(files.values()) - theirs)
    return {key: resource for key, resource in resources.items() if files.get(key) not in theirs}


def _is_of_another(path: str) -> bool:
    try:
        return os.lstat(path).st_uid != os.getuid()
    except OSError:  # gone
        return True


def _used_by(pid: int, paths: set[str]) -> set[str]:
    text = read_or_none(REAL, f"/proc/{pid}/maps") or ""
    mapped = {path for path in paths if f" {path}\n" in text}
    try:
        fds = REAL.listdir(f"/proc/{pid}/fd") if paths - mapped else []
    except OSError:
        fds = []
    return mapped | (paths & {readlink_or_none(REAL, f"/proc/{pid}/fd/{fd}") for fd in fds})
