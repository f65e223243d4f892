"""Where a process that answers and the one that asks meet: a Unix socket in a folder of the user's own."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import struct
from pathlib import Path

from ..errors import InputError
from ..proc.processes import read_stat
from ..proc.procfs import REAL, ProcFS

# A socket's path has room for 107 bytes.
_LONGEST = 107
_NAME = re.compile(r"(\d+)-(\d+)\.sock")


def folders() -> list[Path]:
    """In order of preference. Who asks may have another environment than who answers, so that all are tried."""
    uid = os.getuid()
    runtime = [Path(place) for place in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{uid}") if place]
    return list(dict.fromkeys([*(place / "holdfast" for place in runtime), Path(f"/tmp/holdfast-{uid}")]))


def socket_name(pid: int, procfs: ProcFS = REAL) -> str | None:
    """`PID-STARTTIME.sock`; None if there is no such process."""
    seen = read_stat(procfs, pid)
    return None if seen is None else f"{pid}-{seen.start_ticks}.sock"


def own_place() -> Path:
    """The path to listen at, in a folder that was made or found to be safe."""
    pid = REAL.own_pid()
    name = None if pid is None else socket_name(pid)
    if name is None:
        raise InputError("this process is not to be seen in /proc: nobody could find it to ask")
    whys = []
    for folder in folders():
        if len(os.fsencode(folder / name)) > _LONGEST:
            whys.append(f"{folder} is too long a path for a socket")
            continue
        try:
            make_private(folder)
        except OSError as error:
            whys.append(str(error))
        else:
            return folder / name
    raise InputError(f"no folder to listen in: {'; '.join(whys)}")


def make_private(folder: Path) -> None:
    """Makes it, or makes sure that it is a folder of this user's that nobody else may enter."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"expected {folder} to be a folder of user {os.getuid()}, got one of {found.st_uid}")
    if found.st_mode & 0o077:
        os.chmod(folder, 0o700)


def places_of(pid: int) -> list[Path]:
    """Where a process may be listening: only folders that are this user's own are believed."""
    name = socket_name(pid)
    found = []
    for folder in folders() if name else ():
        with contextlib.suppress(OSError):
            seen = os.lstat(folder)
            if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and (folder / str(name)).is_socket():
                found.append(folder / str(name))
    return found


def clean_up(folder: Path) -> None:
    """Takes away the sockets of processes that have ended without doing so."""
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match and socket_name(int(match[1])) != name and is_dead(folder / name):
            with contextlib.suppress(OSError):
                os.unlink(folder / name)


def is_dead(place: Path) -> bool:
    """Nobody listens there. A process of another pid namespace looks ended from here, and is not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(place))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end, as the kernel knows it."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)
