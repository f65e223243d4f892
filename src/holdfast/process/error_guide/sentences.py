"""Turns facts about this machine, and about the files an error names, into sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from ..._util.text import format_bytes
from ...procfs.limits import Limit, quantity
from ...procfs.locks import Lock, LockKind
from .rules import Disk, Fact, NamedFile, Scope, SystemContext

_MAX_LOCKS = 4
_HDF5 = b"\x89HDF\r\n\x1a\n"
_BEGINNINGS = (
    (_HDF5, "begins with the HDF5 signature"),
    (b"\x1f\x8b", "is compressed with gzip"),
    (b"version https://git-lfs", "is a git-lfs pointer: `git lfs pull` downloads the data"),
    (b"PK\x03\x04", "is a zip file"),
    (b"CDF\x01", "is NetCDF-3"),
    (b"CDF\x02", "is NetCDF-3"),
    (b"<!doctype html", "is a web page"),
    (b"<html", "is a web page"),
    (b"<?xml", "is XML, perhaps an error page"),
    (b'{"', "is JSON, perhaps an error response"),
)
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_KINDS = {
    LockKind.FLOCK: "flock",
    LockKind.POSIX: "lockf lock",
    LockKind.OFD: "open-file lock",
    LockKind.LEASE: "lease",
}


def file_locks(context: SystemContext) -> Iterator[str]:
    if not context.files:
        yield "Name the file (--path FILE, or path=…) to see which process holds its lock."
    for file in context.files:
        if file.locks is None:
            yield f"The locks on {file.path} cannot be read from here."
            continue
        holding = [lock for lock in file.locks if not lock.waiting]
        if not holding:
            yield f"No process holds a lock on {file.path} now."
        for lock in holding[:_MAX_LOCKS]:
            yield _held(file.path, lock, context.pid)
        if len(holding) > _MAX_LOCKS:
            yield f"There are {len(holding) - _MAX_LOCKS:,} more locks on it."
        waiting = [str(lock.pid) for lock in file.locks if lock.waiting and lock.pid is not None]
        if waiting:
            yield f"These processes wait for it: {', '.join(waiting[:_MAX_LOCKS])}."


def _held(path: str, lock: Lock, own: int) -> str:
    what = f"{'an exclusive' if lock.exclusive else 'a shared'} {_KINDS[lock.kind]} on {path}"
    if lock.pid is None:
        return f"A process that is not visible here (another machine's, user's or container's) holds {what}."
    who = "This process itself" if lock.pid == own else f"Process {lock.pid}"
    who += f" ({lock.command})" if lock.command else ""
    how = " through an inherited descriptor" if lock.inherited else ""
    return f"{who} holds {what}{how}."


def file_heads(context: SystemContext) -> Iterator[str]:
    for file in context.files:
        if file.size_bytes is not None:
            yield _head(file)


def _head(file: NamedFile) -> str:
    if file.size_bytes == 0:
        return f"{file.path} is empty."
    text = f"{file.path} is {format_bytes(file.size_bytes or 0)} long"
    if file.head is None:
        return f"{text}."
    start = file.head.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    for beginning, said in _BEGINNINGS:
        if file.head.startswith(beginning) or start.startswith(beginning):
            return f"{text} and {said}."
    if file.head.startswith(_ZLIB):
        return f"{text} and is probably compressed with zlib."
    if not file.head.strip(b"\0"):
        return f"{text} and begins with zero bytes."
    return f"{text} and begins neither as HDF5 nor as gzip."


_NEARLY = 0.9
_FEW_FREE = 16
_TIGHT_BYTES = 64 << 20
_TASKS = {
    "nproc": "threads of this user (RLIMIT_NPROC)",
    "cgroup_pids": "tasks of the control group (pids.max)",
    "threads_max": "threads of the machine (threads-max)",
    "pid_max": "process ids of the machine (pid_max)",
}


def sentences(facts: Iterable[Fact], context: SystemContext) -> tuple[str, ...]:
    """Return sentences about the facts of a rule, leaving out what is unknown."""
    return tuple(line for ask in facts for line in _SAY[ask](context))


def _descriptors(context: SystemContext) -> Iterator[str]:
    limit = context.limits.get("nofile", Limit(name="nofile"))
    if limit.soft is None:
        return
    hard = f"; its hard limit is {quantity(limit.hard)}" if limit.hard is not None and limit.hard > limit.soft else ""
    if context.scope is Scope.SHELL:
        yield (
            f"A process started from here may have {quantity(limit.soft)} descriptors{hard}. "
            "Pass --pid PID to see how many a process uses."
        )
        return
    if limit.used is None:
        yield f"{_who(context)} may have {quantity(limit.soft)} descriptors{hard}; how many it uses cannot be read."
        return
    yield (
        f"{_who(context)} has {limit.used:,} of {quantity(limit.soft)} descriptors{hard}. "
        f"{_fullness(limit, _FEW_FREE, 'None is free.', 'Few are free.', 'Enough are free now.')}"
    )
    if context.kinds:
        yield "Of these: " + " · ".join(f"{kind} {times:,}" for kind, times in list(context.kinds.items())[:6]) + "."
    if context.match is not None:
        yield f"{context.match.count:,} of them look like this: {context.match.cause}."


def _highest(context: SystemContext) -> Iterator[str]:
    if context.highest_fd is not None and context.scope is not Scope.SHELL:
        over = "too high for select()" if context.highest_fd >= 1024 else "low enough for select()"
        yield f"The highest descriptor in use is {context.highest_fd:,}: {over}."


def _host_files(context: SystemContext) -> Iterator[str]:
    limit = context.limits.get("file_max")
    if limit is not None and limit.used is not None and limit.soft is not None:
        maximum = "unlimited" if limit.soft >= 1 << 60 else quantity(limit.soft)
        yield f"This machine has {limit.used:,} open files; its limit (fs.file-max) is {maximum}."


def _tasks(context: SystemContext) -> Iterator[str]:
    known = [(name, context.limits[name]) for name in _TASKS if name in context.limits]
    known = [(name, limit) for name, limit in known if limit.used is not None and limit.soft not in (None, math.inf)]
    full = [(name, limit) for name, limit in known if (limit.ratio or 0) >= _NEARLY]
    for name, limit in full or known[:2]:
        note = " It is not enforced for root." if name == "nproc" and context.is_root else ""
        yield f"{limit.used:,} of {quantity(limit.soft)} {_TASKS[name]} are in use.{note}"
    binding = [name for name, _ in full if not (name == "nproc" and context.is_root)]
    if known and not binding:
        yield "No task limit is near now, but one may have been when the error occurred."


def _memory(context: SystemContext) -> Iterator[str]:
    group = context.limits.get("cgroup_memory")
    if group is not None and group.used is not None and group.soft not in (None, math.inf):
        yield f"The control group uses {format_bytes(group.used)} of {format_bytes(int(group.soft or 0))} of memory."
    if context.oom_kills:
        times = "once" if context.oom_kills == 1 else f"{context.oom_kills:,} times"
        yield f"The kernel has killed processes of this control group for lack of memory {times}."
    if context.available_bytes is not None:
        rule = " Overcommit is disabled (vm.overcommit_memory=2)." if context.overcommit == 2 else ""
        yield f"The machine has {format_bytes(context.available_bytes)} of memory available now.{rule}"
    if context.address_space_bytes is not None:
        yield f"`ulimit -v` limits the process to {format_bytes(context.address_space_bytes)} of address space."


def _maps(context: SystemContext) -> Iterator[str]:
    if context.max_maps is None or context.scope is Scope.SHELL:
        return
    limit = Limit(name="maps", used=context.maps, soft=context.max_maps)
    if context.maps is not None:
        said = _fullness(limit, _FEW_FREE, "None is free.", "Few are free.", "Enough are free now.")
        yield f"{_who(context)} has {context.maps:,} of {context.max_maps:,} mappings (vm.max_map_count). {said}"


def _shm(context: SystemContext) -> Iterator[str]:
    limit = context.limits.get("dev_shm_bytes")
    if limit is None or limit.used is None or limit.soft is None:
        return
    size = int(limit.soft)
    small = " 64 MB is docker's default, which is too small for workers." if size == 64 << 20 else ""
    said = _fullness(limit, _TIGHT_BYTES, "It is full.", "It is nearly full.", "")
    yield f"/dev/shm has {format_bytes(limit.used)} of {format_bytes(size)} in use. {said}{small}".strip()


def _disk(context: SystemContext) -> Iterator[str]:
    for disk in context.disks:
        yield _one_disk(disk)


def _one_disk(disk: Disk) -> str:
    text = (
        f"{disk.path} is on a file system with {format_bytes(disk.free_bytes)} of {format_bytes(disk.size_bytes)} free"
    )
    if disk.inodes and disk.free_inodes < disk.inodes * (1 - _NEARLY):
        return f"{text}, and {disk.free_inodes:,} of {disk.inodes:,} inodes."
    return f"{text}."


def _inotify(context: SystemContext) -> Iterator[str]:
    for name, what in (("inotify_instances", "instances"), ("inotify_watches", "watches")):
        limit = context.limits.get(name)
        if limit is not None and limit.soft is not None:
            yield f"Each user may have {quantity(limit.soft)} inotify {what} (fs.inotify.max_user_{what})."


def _who(context: SystemContext) -> str:
    if context.scope is Scope.OTHER:
        return f"Process {context.pid} ({context.command})" if context.command else f"Process {context.pid}"
    return f"This process ({context.pid})"


def _fullness(limit: Limit, few: int, full: str, nearly: str, fine: str) -> str:
    left = limit.headroom
    if left is None:
        return ""
    if left <= 0:
        return full
    return nearly if left < few or (limit.ratio or 0) >= _NEARLY else fine


_SAY: Mapping[Fact, Callable[[SystemContext], Iterator[str]]] = {
    Fact.DESCRIPTORS: _descriptors,
    Fact.HOST_FILES: _host_files,
    Fact.HIGHEST: _highest,
    Fact.TASKS: _tasks,
    Fact.MEMORY: _memory,
    Fact.MAPS: _maps,
    Fact.SHM: _shm,
    Fact.DISK: _disk,
    Fact.INOTIFY: _inotify,
    Fact.LOCKS: file_locks,
    Fact.HEAD: file_heads,
}
