"""Files of a process that other processes find by its pid: its heartbeat page, and the status of a supervisor.

They lie beside the sockets of `hold.listen`, in a folder that belongs to the process's user. The name is the pid and
the start time, so that a file is never taken for that of an earlier process with the same pid.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ..._util.fds import open_regular
from ...procfs.processes import Identity, read_stat
from ...procfs.procfs import REAL, ProcFS, stat_or_none
from ..fd_owners.agent import socket_dirs


def own_identity() -> Identity | None:
    """Returns this process's pid and start time in this /proc; None if it is not visible there."""
    pid = REAL.own_pid()
    seen = None if pid is None else read_stat(REAL, pid)
    return None if pid is None or seen is None else Identity(pid, seen.start_ticks)


def file_name(identity: Identity, suffix: str) -> str:
    return f"{identity.pid}-{identity.start_ticks}{suffix}"


def page_dirs(uid: int) -> list[Path]:
    """Returns the folders where a process of this user may have its files."""
    own = [] if uid != os.getuid() else socket_dirs()
    return list(dict.fromkeys([*own, Path(f"/run/user/{uid}/holdfast"), Path(f"/tmp/holdfast-{uid}")]))


def read_process_files(
    pid: int, suffix: str, max_bytes: int, procfs: ProcFS = REAL
) -> Iterator[tuple[Identity, bytes]]:
    """Yields the contents of this file of a process, in every folder where there is one, with its identity."""
    seen = read_stat(procfs, pid)
    owner = stat_or_none(procfs, f"/proc/{pid}")
    if seen is None or owner is None:
        return
    identity = Identity(pid, seen.start_ticks)
    for folder in page_dirs(owner.st_uid):
        data = read_owned(folder / file_name(identity, suffix), owner.st_uid, max_bytes)
        if data is not None:
            yield identity, data


def list_process_files(uid: int, suffix: str) -> frozenset[str]:
    """Returns the names of all such files of a user's processes: one call for many processes that have none."""
    found: list[str] = []
    for folder in page_dirs(uid):
        with contextlib.suppress(OSError):
            found += [name for name in os.listdir(folder) if name.endswith(suffix)]
    return frozenset(found)


def open_process_file(pid: int, suffix: str) -> int | None:
    """Opens this file of a process, which can be read then even after it was removed; None if there is none."""
    seen = read_stat(REAL, pid)
    owner = stat_or_none(REAL, f"/proc/{pid}")
    if seen is None or owner is None:
        return None
    for folder in page_dirs(owner.st_uid):
        with contextlib.suppress(OSError):
            return open_regular(folder / file_name(Identity(pid, seen.start_ticks), suffix), uid=owner.st_uid)
    return None


def read_owned(path: Path, uid: int, max_bytes: int) -> bytes | None:
    """Reads a regular file of this user; None if it is none, is larger, or cannot be read.

    Another user could put a file there for a process that is not theirs.
    """
    try:
        fd = open_regular(path, uid=uid)
    except OSError:
        return None
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, size, 0) if size <= max_bytes else None
    except OSError:
        return None
    finally:
        os.close(fd)


def remove_stale(folder: Path, suffix: str, is_used: Callable[[Path], bool]) -> None:
    """Removes the files of processes that ended without removing them.

    A process of another pid namespace is not in this /proc: its file is kept while it `is_used`. The name of a file
    that is being written may begin with a dot.
    """
    pattern = re.compile(rf"\.?(\d+)-(\d+){re.escape(suffix)}")
    for name in os.listdir(folder):
        match = pattern.fullmatch(name)
        seen = read_stat(REAL, int(match[1])) if match else None
        if not match or (seen is not None and seen.start_ticks == int(match[2])):
            continue
        if not is_used(folder / name):
            with contextlib.suppress(OSError):
                os.unlink(folder / name)
