"""Looks up the facts about this machine that a rule needs, and the files that an error names."""

from __future__ import annotations

import os
import re
import resource
import stat
from collections.abc import Iterable, Sequence
from functools import cache
from types import TracebackType
from typing import Any

from ...errors import InputError
from ...procfs.descriptors import count
from ...procfs.limits import (
    available_memory,
    count_oom_kills,
    process_limits,
    shared_limits,
    threads_by_user,
)
from ...procfs.locks import command_of, locks_of
from ...procfs.procfs import ProcFS, number_or_none, read_or_none, stat_or_none
from ...procfs.snapshot import ProcessSnapshot, Snapshot, take_snapshot
from ..doctor.fd_profile import profiles_of
from ..doctor.model import Match
from ..doctor.signatures import match
from .rules import Disk, Fact, NamedFile, Scope, SystemContext

_MAX = 8
_MAX_CHARS = 1024
_SURE = 2  # the first patterns: a match is a file name, whatever it looks like
_NOT_DATA = ("/proc/", "/sys/", "/dev/", "http:/", "https:/")


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return (
        re.compile(r"""(?:name|filename|path|file)\s*=\s*['"]([^'"\n]+)['"]"""),  # HDF5: name = '/data/a.h5'
        re.compile(r"""File\(\s*['"]([^'"\n]+)['"]"""),  # a line of a traceback: h5py.File("a.h5", "a")
        re.compile(r"""['"]([^'"\n]{1,1024})(?=['"])"""),  # may overlap: an apostrophe can look like an opening quote
        re.compile(r"""(?:^|[\s=(\[])(/[^\s'"<>:,;)\]]+)"""),
        re.compile(r"""(?:^|[\s=(\[])([\w.-][\w./-]*\.(?:h5|hdf5|he5|nc|tfrecords?|tfrec|lock)(?:\.gz)?)\b"""),
    )


def paths_in(text: str) -> list[str]:
    """Return what looks like a file name, the most certain first, without checking that the file exists.

    The lines `File "…", line 7` of a traceback are skipped, because they name programs.
    """
    text = "\n".join(line for line in text.splitlines() if not re.match(r'\s*File ".*", line \d+', line))
    found: dict[str, None] = {}
    for at, pattern in enumerate(_patterns()):
        for found_path in pattern.finditer(text):
            if _may_be_data(found_path[1]) and (at < _SURE or "/" in found_path[1] or "." in found_path[1]):
                found.setdefault(found_path[1])
            if len(found) >= _MAX:
                return list(found)
    return list(found)


def _may_be_data(name: str) -> bool:
    return len(name) <= _MAX_CHARS and not f"{name}/".startswith(_NOT_DATA) and not name.endswith(".py")


def paths_of(error: BaseException) -> list[str]:
    """Return the file names of an OSError, and the one in h5py's frames, whose errors carry none."""
    found: dict[str, None] = {}
    for name in ("filename", "filename2"):
        _add(found, getattr(error, name, None) if isinstance(error, OSError) else None)
    _add(found, _name_in_h5py(error.__traceback__))
    return list(found)


def _name_in_h5py(traceback: TracebackType | None) -> object:
    steps = 0
    while traceback is not None and steps < 1000:
        frame = traceback.tb_frame
        if str(frame.f_globals.get("__name__", "")).startswith("h5py."):
            name = frame.f_locals.get("name")
            if isinstance(name, (str, bytes, os.PathLike)):
                return name
        traceback, steps = traceback.tb_next, steps + 1
    return None


def _add(found: dict[str, None], name: object) -> None:
    if isinstance(name, (str, bytes, os.PathLike)):
        try:
            found.setdefault(os.fsdecode(name))
        except (TypeError, ValueError):
            return


_FILES = 2
_HEAD_BYTES = 64
_ABOUT_FILES = {Fact.LOCKS, Fact.HEAD}
_ABOUT_DESCRIPTORS = {Fact.DESCRIPTORS, Fact.HIGHEST}
_BY_TREE = "queues-never-closed"  # recognized only with the descriptors of the child processes


def gather(facts: Iterable[Fact], scope: Scope, pid: int | None, names: Sequence[str], procfs: ProcFS) -> SystemContext:
    """Look up the given facts; those that cannot be read stay None. Raises InputError if process `pid` does not exist.

    `names` are possible file names.
    """
    wanted = set(facts)
    known: dict[str, Any] = {"files": _files(wanted, names, procfs), "disks": _disks(wanted, names)}
    target = procfs.own_pid() if pid is None else pid
    if target is None:  # /proc belongs to another namespace, or is not mounted
        return SystemContext(scope=scope, pid=os.getpid(), **known)
    owner = stat_or_none(procfs, f"/proc/{target}")
    if owner is None:
        if pid is not None:
            raise InputError(f"there is no process {pid}")
        return SystemContext(scope=scope, pid=target, **known)
    if wanted & _ABOUT_DESCRIPTORS and scope is not Scope.SHELL:
        known |= _descriptors(target, procfs)
    users = threads_by_user(procfs) if Fact.TASKS in wanted else {}
    fds = known.pop("fds", None)
    limits = [*process_limits(procfs, target, fds, users.get(owner.st_uid)), *shared_limits(procfs, target)]
    if Fact.MEMORY in wanted:
        known |= _memory(target, procfs)
    if Fact.MAPS in wanted:
        known |= _maps(target, procfs)
    return SystemContext(
        scope=scope,
        pid=target,
        command=command_of(procfs, target),
        limits={limit.name: limit for limit in limits},
        is_root=owner.st_uid == 0,
        **known,
    )


def _descriptors(pid: int, procfs: ProcFS) -> dict[str, Any]:
    try:
        seen = take_snapshot(pid, procfs=procfs)
    except InputError:
        return {}
    root = seen.root
    highest = max((one.fd for one in root.descriptors), default=None) if root.descriptors else None
    # Without permission to read the links, count the entries.
    fds = root.fd_count or count(procfs, pid)
    return {"fds": fds, "kinds": root.kinds, "highest_fd": highest, "match": _match(seen, root)}


def _match(seen: Snapshot, root: ProcessSnapshot) -> Match | None:
    if root.descriptors is None:
        return None
    found = match(profiles_of(seen)[root.process.pid])
    return None if found and found.name == _BY_TREE and not seen.whole_tree else found


def _memory(pid: int, procfs: ProcFS) -> dict[str, Any]:
    return {
        "available_bytes": available_memory(procfs),
        "overcommit": number_or_none(procfs, "/proc/sys/vm/overcommit_memory"),
        "address_space_bytes": _address_space(pid, procfs),
        "oom_kills": count_oom_kills(procfs, pid),
    }


def _address_space(pid: int, procfs: ProcFS) -> int | None:
    try:
        soft = procfs.rlimit(pid, resource.RLIMIT_AS)[0]
    except (OSError, ValueError):
        return None
    return soft if soft >= 0 else None


def _maps(pid: int, procfs: ProcFS) -> dict[str, Any]:
    text = read_or_none(procfs, f"/proc/{pid}/maps")
    return {
        "maps": text.count("\n") if text else None,
        "max_maps": number_or_none(procfs, "/proc/sys/vm/max_map_count"),
    }


def _files(wanted: set[Fact], names: Sequence[str], procfs: ProcFS) -> tuple[NamedFile, ...]:
    """Return the regular files among the names: opening any other kind could block or have side effects."""
    if not wanted & _ABOUT_FILES:
        return ()
    found: dict[tuple[int, int], NamedFile] = {}
    for name in names:
        try:
            known = os.stat(name)
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(known.st_mode) and (known.st_dev, known.st_ino) not in found and len(found) < _FILES:
            found[known.st_dev, known.st_ino] = _file(wanted, name, known.st_size, procfs)
    return tuple(found.values())


def _file(wanted: set[Fact], name: str, size_bytes: int, procfs: ProcFS) -> NamedFile:
    locks = None
    if Fact.LOCKS in wanted:
        try:
            locks = locks_of(name, procfs)
        except OSError:  # the file was removed meanwhile
            locks = None
    head = _head(name) if Fact.HEAD in wanted else None
    return NamedFile(path=name, size_bytes=size_bytes, head=head, locks=None if locks is None else tuple(locks))


def _head(name: str) -> bytes | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.pread(fd, _HEAD_BYTES, 0)
    except OSError:
        return None
    finally:
        os.close(fd)


def _disks(wanted: set[Fact], names: Sequence[str]) -> tuple[Disk, ...]:
    """Return the file systems of the named files; without names, of the current and the temporary folder."""
    if Fact.DISK not in wanted:
        return ()
    found: dict[int, Disk] = {}
    for name in names or (".", os.environ.get("TMPDIR") or "/tmp"):
        position = _nearest(name) if os.sep in name or not names else None
        if position is None or len(found) >= _FILES:
            continue
        try:
            device = os.stat(position).st_dev
            disk = os.statvfs(position)
        except (OSError, ValueError):
            continue
        found.setdefault(
            device,
            Disk(
                path=_absolute(position),
                size_bytes=disk.f_blocks * disk.f_frsize,
                free_bytes=disk.f_bavail * disk.f_frsize,
                inodes=disk.f_files,
                free_inodes=disk.f_favail,
            ),
        )
    return tuple(found.values())


def _nearest(name: str) -> str | None:
    """Return the path if it exists, or else its folder if that exists."""
    for position in (name, os.path.dirname(_absolute(name))):
        if os.path.exists(position):
            return position
    return None


def _absolute(name: str) -> str:
    try:
        return os.path.abspath(name)
    except OSError:  # the current folder was removed
        return name
