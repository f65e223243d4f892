"""What is said of the files an error speaks of: who locks them, and what they really are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from .._util.text import format_bytes
from ..procfs.limits import Limit
from ..procfs.locks import Lock, LockKind
from .rules import Disk, Fact, NamedFile, Scope, SystemContext

_MOST_LOCKS = 4
_HDF5 = b"\x89HDF\r\n\x1a\n"
_BEGINNINGS = (
    (_HDF5, "begins as an HDF5 file does"),
    (b"\x1f\x8b", "is compressed with gzip"),
    (b"version https://git-lfs", "is a pointer of git-lfs: `git lfs pull` fetches the data"),
    (b"PK\x03\x04", "is a zip file"),
    (b"CDF\x01", "is NetCDF-3"),
    (b"CDF\x02", "is NetCDF-3"),
    (b"<!doctype html", "is a web page"),
    (b"<html", "is a web page"),
    (b"<?xml", "is XML, perhaps a download's error"),
    (b'{"', "is JSON, perhaps a download's error"),
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
        yield "Name the file (--path FILE, or path=…) to see who holds its lock."
    for file in context.files:
        if file.locks is None:
            yield f"Who locks {file.path} cannot be seen from here."
            continue
        holding = [lock for lock in file.locks if not lock.waiting]
        if not holding:
            yield f"Nobody holds a lock on {file.path} now."
        for lock in holding[:_MOST_LOCKS]:
            yield _held(file.path, lock, context.pid)
        if len(holding) > _MOST_LOCKS:
            yield f"So do {len(holding) - _MOST_LOCKS:,} more."
        waiting = [str(lock.pid) for lock in file.locks if lock.waiting and lock.pid is not None]
        if waiting:
            yield f"Waiting for it: process {', '.join(waiting[:_MOST_LOCKS])}."


def _held(path: str, lock: Lock, own: int) -> str:
    what = f"{'an exclusive' if lock.exclusive else 'a shared'} {_KINDS[lock.kind]} on {path}"
    if lock.pid is None:
        return f"A process that cannot be seen from here (another machine's, user's or container's) holds {what}."
    who = "This process itself" if lock.pid == own else f"Process {lock.pid}"
    who += f" ({lock.command})" if lock.command else ""
    how = ", by a descriptor that it inherited" if lock.inherited else ""
    return f"{who} holds {what}{how}."


def file_heads(context: SystemContext) -> Iterator[str]:
    for file in context.files:
        if file.size_bytes is not None:
            yield _head(file)


def _head(file: NamedFile) -> str:
    if file.size_bytes == 0:
        return f"{file.path} is empty."
    text = f"{file.path} has {format_bytes(file.size_bytes or 0)}"
    if file.head is None:
        return f"{text}."
    start = file.head.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    for beginning, said in _BEGINNINGS:
        if file.head.startswith(beginning) or start.startswith(beginning):
            return f"{text} and {said}."
    if file.head.startswith(_ZLIB):
        return f"{text} and seems to be compressed with zlib."
    if not file.head.strip(b"\0"):
        return f"{text} and begins with zeros only."
    return f"{text}, and its beginning is neither HDF5 nor gzip."


# From what was looked up to what it means.

_NEARLY = 0.9
_FEW_FREE = 16
_TIGHT_BYTES = 64 << 20
_TASKS = {
    "nproc": "threads of this user (RLIMIT_NPROC)",
    "cgroup_pids": "tasks of the control group (pids.max)",
    "threads_max": "threads of the machine (threads-max)",
    "pid_max": "process numbers of the machine (pid_max)",
}


def sentences(facts: Iterable[Fact], context: SystemContext) -> tuple[str, ...]:
    """What the facts say about a row's questions; what could not be seen is left out."""
    return tuple(line for ask in facts for line in _SAY[ask](context))


def _descriptors(context: SystemContext) -> Iterator[str]:
    limit = context.limits.get("nofile", Limit(name="nofile"))
    if limit.soft is None:
        return
    hard = f"; its hard limit is {_number(limit.hard)}" if limit.hard is not None and limit.hard > limit.soft else ""
    if context.scope is Scope.SHELL:
        yield (
            f"A process started from here may have {_number(limit.soft)} descriptors{hard}. "
            "With --pid PID: how many one uses."
        )
        return
    if limit.used is None:
        yield f"{_who(context)} may have {_number(limit.soft)} descriptors{hard}; how many it has cannot be seen."
        return
    yield (
        f"{_who(context)} has {limit.used:,} of {_number(limit.soft)} descriptors{hard}. "
        f"{_fullness(limit, _FEW_FREE, 'No number is free.', 'That is not much left.', 'There is room now.')}"
    )
    if context.kinds:
        yield "Of these: " + " · ".join(f"{kind} {times:,}" for kind, times in list(context.kinds.items())[:6]) + "."
    if context.match is not None:
        yield f"{context.match.count:,} of them look like this: {context.match.cause}."


def _highest(context: SystemContext) -> Iterator[str]:
    if context.highest_fd is not None and context.scope is not Scope.SHELL:
        over = "select() cannot take it" if context.highest_fd >= 1024 else "still below 1024"
        yield f"The highest number in use is {context.highest_fd:,}: {over}."


def _host_files(context: SystemContext) -> Iterator[str]:
    limit = context.limits.get("file_max")
    if limit is not None and limit.used is not None and limit.soft is not None:
        most = "as many as it likes" if limit.soft >= 1 << 60 else f"{_number(limit.soft)} at most"
        yield f"This machine has {limit.used:,} open files, and may have {most} (fs.file-max)."


def _tasks(context: SystemContext) -> Iterator[str]:
    known = [(name, context.limits[name]) for name in _TASKS if name in context.limits]
    known = [(name, limit) for name, limit in known if limit.used is not None and limit.soft not in (None, math.inf)]
    full = [(name, limit) for name, limit in known if (limit.ratio or 0) >= _NEARLY]
    for name, limit in full or known[:2]:
        note = " It does not bind root." if name == "nproc" and context.is_root else ""
        yield f"{limit.used:,} of {_number(limit.soft)} {_TASKS[name]} are in use.{note}"
    binding = [name for name, _ in full if not (name == "nproc" and context.is_root)]
    if known and not binding:
        yield "So no limit of tasks is near now; it may have been when the error came."


def _memory(context: SystemContext) -> Iterator[str]:
    group = context.limits.get("cgroup_memory")
    if group is not None and group.used is not None and group.soft not in (None, math.inf):
        yield f"The control group uses {format_bytes(group.used)} of {format_bytes(int(group.soft or 0))} of memory."
    if context.oom_kills:
        times = "once" if context.oom_kills == 1 else f"{context.oom_kills:,} times"
        yield f"The kernel has killed for lack of memory in this control group {times}."
    if context.available_bytes is not None:
        rule = " Overcommit is switched off (vm.overcommit_memory=2)." if context.overcommit == 2 else ""
        yield f"The machine has {format_bytes(context.available_bytes)} of memory available now.{rule}"
    if context.address_space_bytes is not None:
        yield f"`ulimit -v` holds the process to {format_bytes(context.address_space_bytes)} of address space."


def _maps(context: SystemContext) -> Iterator[str]:
    if context.most_maps is None or context.scope is Scope.SHELL:
        return
    limit = Limit(name="maps", used=context.maps, soft=context.most_maps)
    if context.maps is not None:
        said = _fullness(limit, _FEW_FREE, "That is all.", "That is not much left.", "That is not what is short now.")
        yield f"{_who(context)} has {context.maps:,} of {context.most_maps:,} mappings (vm.max_map_count). {said}"


def _shm(context: SystemContext) -> Iterator[str]:
    limit = context.limits.get("dev_shm_bytes")
    if limit is None or limit.used is None or limit.soft is None:
        return
    size = int(limit.soft)
    small = " 64 MB is docker's default, and too small for workers." if size == 64 << 20 else ""
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
            yield f"Each user may have {_number(limit.soft)} inotify {what} (fs.inotify.max_user_{what})."


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


def _number(value: float | None) -> str:
    return "unlimited" if value is None or math.isinf(value) else f"{int(value):,}"


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
