"""Answers other processes of the same user that ask what holds this one's descriptors, even if it has none left.

    hold.listen()                 # once, when a worker starts; until it ends
    with hold.listen("worker"):   # or for the time of a block

The responder listens at a Unix socket in a private folder of the user. A request and its reply are one message
each, limited in size and time. The thread sleeps until a request comes, but checks its socket every two seconds.
An answer may take some seconds, during which Python code in the process runs at about half its speed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..._util.fds import OwnFd, Reserve
from ..._util.framing import MessageError, MessageReceiver, send_message
from ..._util.process import call_after_fork
from ...errors import InputError
from ...procfs.limits import finite
from ...procfs.processes import read_stat
from ...procfs.procfs import REAL, ProcFS
from ...procfs.snapshot import take_snapshot
from .owners import open_fds, owners_summary, spread
from .paths import HeldBy, OwnerGroup, OwnerPath

MAX_REQUEST_BYTES = 64 << 10
MAX_ANSWER_BYTES = 4 << 20


# The path of a Unix socket has at most 107 bytes.
_LONGEST = 107
_NAME = re.compile(r"(\d+)-(\d+)\.sock")


def socket_dirs() -> list[Path]:
    """Returns folders in order of preference. Clients try all: their environment may differ from the responder's."""
    uid = os.getuid()
    runtime = [Path(place) for place in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{uid}") if place]
    return list(dict.fromkeys([*(place / "holdfast" for place in runtime), Path(f"/tmp/holdfast-{uid}")]))


def socket_name(pid: int, procfs: ProcFS = REAL) -> str | None:
    """Returns `PID-STARTTIME.sock`; None if there is no such process."""
    seen = read_stat(procfs, pid)
    return None if seen is None else f"{pid}-{seen.start_ticks}.sock"


def own_socket_path() -> Path:
    """Returns the path to listen at, in a folder that only this user can enter."""
    pid = REAL.own_pid()
    name = None if pid is None else socket_name(pid)
    if name is None:
        raise InputError("this process is not visible in /proc, so that no other process could find its socket")
    reasons = []
    for folder in socket_dirs():
        if len(os.fsencode(folder / name)) > _LONGEST:
            reasons.append(f"the path {folder} is too long for a socket")
            continue
        try:
            make_private(folder)
        except OSError as error:
            reasons.append(str(error))
        else:
            return folder / name
    raise InputError(f"no folder to listen in: {'; '.join(reasons)}")


def make_private(folder: Path) -> None:
    """Creates the folder if needed, and makes sure that it is this user's and that no other user may enter it."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"expected {folder} to be a folder of user {os.getuid()}, got one of {found.st_uid}")
    if found.st_mode & 0o077:
        os.chmod(folder, 0o700)


def socket_paths(pid: int) -> list[Path]:
    """Returns the paths at which a process may be listening, in folders that belong to this user only."""
    name = socket_name(pid)
    found = []
    for folder in socket_dirs() if name else ():
        with contextlib.suppress(OSError):
            seen = os.lstat(folder)
            if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and (folder / str(name)).is_socket():
                found.append(folder / str(name))
    return found


def remove_stale_sockets(folder: Path) -> None:
    """Removes the sockets of processes that ended without removing them."""
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match and socket_name(int(match[1])) != name and is_stale(folder / name):
            with contextlib.suppress(OSError):
                os.unlink(folder / name)


def is_stale(place: Path) -> bool:
    """Returns whether nobody listens there. A process of another pid namespace is not in this /proc but may listen."""
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
    """Returns the user id of the peer as the kernel reports it."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


MAX_GROUPS = 200
MAX_WITHIN_S = 10.0
WITHIN_S = 3.0


def answer(request: dict[str, Any], name: str, own: Collection[int]) -> dict[str, Any]:
    """Answers a request, leaving out the descriptors `own` of the agent itself. MessageError: it is not valid."""
    asked = request.get("ask")
    if not isinstance(asked, str) or asked not in _ANSWERS:
        raise MessageError(f"expected an object with 'ask' of {', '.join(_ANSWERS)}")
    return {"pid": os.getpid(), "name": name, **_ANSWERS[asked](request, own)}


def _hello(request: dict[str, Any], own: Collection[int]) -> dict[str, Any]:
    return {"asks": list(_ANSWERS)}


def _owners(request: dict[str, Any], own: Collection[int]) -> dict[str, Any]:
    fds, maximum = request.get("fds"), request.get("max", MAX_GROUPS)
    if fds is not None and not (isinstance(fds, list) and all(type(fd) is int for fd in fds)):
        raise MessageError("expected 'fds' to be a list of numbers")
    if type(maximum) is not int or maximum < 1:
        raise MessageError("expected 'max' to be a number of at least 1")
    within_s = request.get("within_s", WITHIN_S)
    if type(within_s) not in (int, float) or not 0 < within_s <= MAX_WITHIN_S:
        raise MessageError(f"expected 'within_s' between 0 and {MAX_WITHIN_S:g}")
    asked = [fd for fd in (open_fds() if fds is None else fds) if fd not in own and (fds is not None or fd > 2)]
    groups = owners_summary(asked, within=within_s)
    return {"groups": [asdict(group) for group in groups[: min(maximum, MAX_GROUPS)]]}


def _snapshot(request: dict[str, Any], own: Collection[int]) -> dict[str, Any]:
    root = take_snapshot(tree=False).root
    return {
        "fds": root.fd_count,
        "kinds": root.kinds,
        "limits": {
            limit.name: {"used": limit.used, "soft": finite(limit.soft), "hard": finite(limit.hard)}
            for limit in root.limits
        },
        "threads": root.process.threads,
        "rss_bytes": root.process.rss_bytes,
        "uptime_s": root.process.uptime_s,
    }


_ANSWERS: dict[str, Callable[[dict[str, Any], Collection[int]], dict[str, Any]]] = {
    "hello": _hello,
    "owners": _owners,
    "snapshot": _snapshot,
}


_REQUEST_S = 2.0
_ANSWER_S = 5.0
# Accepting takes one descriptor, and answering opens one at a time. The third is for a thread that takes one first.
_KEPT = 3
_PAUSE_S = 0.2
_CHECK_S = 2.0  # after so long the thread checks whether the socket is still its own
_EXIT_S = 1.0


class Responder:
    """Owns the socket, the thread and the reserved descriptors; there is one in a process.

    If the program closes all descriptors, as a daemon does, the thread binds a new socket.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = own_socket_path()
        self._uses = 0
        self._is_over = False
        with contextlib.ExitStack() as undo:
            self._reserve = undo.enter_context(Reserve(_KEPT))
            self._bind()
            undo.callback(_unlink, self.path)
            undo.callback(self._close_socket)
            self._thread = threading.Thread(target=self._run, name="holdfast-listen", daemon=True)
            self._thread.start()
            self._undo = undo.pop_all()
        call_after_fork(self)
        with contextlib.suppress(OSError):
            remove_stale_sockets(self.path.parent)

    def _bind(self) -> None:
        self._socket = _bind(self.path)
        self._own_fd = OwnFd(self._socket.fileno())

    def _close_socket(self) -> None:
        self._socket.detach()  # its number may be a file of the program now, which the socket's end would close
        self._own_fd.close()

    def close(self, within_s: float | None = None) -> None:
        """Waits for an answer in progress, some seconds at most; after `within_s` it only removes the socket's file."""
        self._is_over = True
        if self._own_fd.number >= 0:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join(within_s)
        if self._thread.is_alive():
            _unlink(self.path)
        else:
            self._undo.close()

    def after_fork_in_child(self) -> None:
        """Closes the descriptors. A child has no such thread, and the file of the socket is the parent's: it stays."""
        global _responder, _lock
        _responder = None
        _lock = threading.Lock()  # another thread of the parent may have held it
        self._undo.pop_all()
        self._reserve.close()
        self._close_socket()

    def _run(self) -> None:
        while not self._is_over:
            poller = select.poll()
            if self._is_bound():
                poller.register(self._own_fd.number, select.POLLIN)
            is_full = len(self._reserve) == _KEPT
            ready = poller.poll(int(1000 * (_CHECK_S if is_full else _PAUSE_S)))
            if ready and not self._is_over and self._own_fd.number >= 0 and not self._serve():
                # Another thread took the descriptor that was released for accept: the client has to wait.
                select.poll().poll(int(_PAUSE_S * 1000))
            self._reserve.refill()

    def _is_bound(self) -> bool:
        """Returns whether the socket is open, or a new one could be bound."""
        if self._own_fd.number < 0:
            self._close_socket()
            with contextlib.suppress(OSError), self._reserve.spend(), self._reserve.spend():
                self._bind()
        return self._own_fd.number >= 0

    def _serve(self) -> bool:
        with self._reserve.spend(), self._reserve.spend():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return False
            connection.setblocking(False)
            own_fd = OwnFd(connection.fileno())
            # No request and no client may end the thread or disturb the process.
            with contextlib.suppress(Exception):
                self._answer(connection, own_fd)
            connection.detach()
            own_fd.close()
        return True

    def _answer(self, connection: socket.socket, own_fd: OwnFd) -> None:
        if peer_uid(connection) != os.getuid():
            return
        try:
            request = _receive(connection, MAX_REQUEST_BYTES, _REQUEST_S)
            reply = answer(request, self.name, self._own(connection))
        except MessageError as error:
            reply = {"error": str(error)}
        if own_fd.number >= 0:  # the answer may have taken seconds
            send_message(own_fd.number, reply, timeout_s=_ANSWER_S)

    def _own(self, connection: socket.socket) -> set[int]:
        return {*self._reserve.fds, self._own_fd.number, connection.fileno()}


class AgentListener:
    """A handle on the responder, which ends when every handle was closed. Dropping a handle does not close it."""

    def __init__(self, responder: Responder) -> None:
        self._responder: Responder | None = responder
        self.path = responder.path

    def close(self) -> None:
        """Closes the handle. Safe to call twice, and in a forked child, where nothing is left to close."""
        responder, self._responder = self._responder, None
        if responder is not None:
            _release(responder)

    def __enter__(self) -> AgentListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_lock = threading.Lock()
_responder: Responder | None = None
_at_exit = False


def listen(name: str | None = None) -> AgentListener:
    """Answers requests of this user's other processes until it is closed or this process ends.

    It takes four descriptors and a thread, which further calls share. A forked child does not listen, but may call this
    itself.

    Args:
        name: How this process is called in answers; by default it has no name.

    Raises:
        InputError: There is no folder for the socket.
    """
    global _responder, _at_exit
    with _lock:
        if _responder is None:
            _responder = Responder(name or "")
        elif name:
            _responder.name = name
        _responder._uses += 1
        if not _at_exit:
            _at_exit = True
            atexit.register(_close_at_exit)
        return AgentListener(_responder)


def _release(responder: Responder) -> None:
    global _responder
    with _lock:
        if responder is not _responder:  # in a forked child, or closed at exit
            return
        responder._uses -= 1
        if responder._uses == 0:
            _responder = None
            responder.close()


def _close_at_exit() -> None:
    global _responder
    responder, _responder = _responder, None
    if responder is not None:
        responder.close(_EXIT_S)


def _bind(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        try:
            made.bind(str(path))
        except OSError:
            if not is_stale(path):
                raise
            os.unlink(path)
            made.bind(str(path))
        os.chmod(path, 0o600)
        made.setblocking(False)
        made.listen(8)
    except BaseException:
        made.close()
        raise
    return made


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


ANSWER_WITHIN_S = 8.0
_MAX_FDS = 5_000  # as many as fit into a request


def ask(pid: int, request: dict[str, Any], *, within_s: float = ANSWER_WITHIN_S) -> dict[str, Any] | None:
    """Sends a request to a process; None if it does not listen for this user, is too slow, or sends a bad reply."""
    deadline = time.monotonic() + within_s
    for place in socket_paths(pid):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(within_s)
                connection.connect(str(place))
                if peer_uid(connection) != os.getuid():
                    continue
                connection.setblocking(False)
                send_message(connection.fileno(), request, timeout_s=deadline - time.monotonic())
                reply = _receive(connection, MAX_ANSWER_BYTES, deadline - time.monotonic())
        except (OSError, MessageError):
            continue
        if "error" not in reply:
            return reply
    return None


def _receive(connection: socket.socket, max_bytes: int, within_s: float) -> dict[str, Any]:
    message = MessageReceiver(connection.fileno(), max_bytes).receive(within_s)
    if message is None:
        raise MessageError("expected a message, got the end of the stream")
    return message.head


def ask_owners(
    pid: int, fds: Iterable[int] | None = None, *, within_s: float = ANSWER_WITHIN_S
) -> list[OwnerGroup] | None:
    """Asks a process what holds these of its descriptors (by default all), most common first; None: no answer.

    Of very many, an even sample is asked about and the counts are estimates.
    """
    numbers = None if fds is None else sorted(set(fds))
    request: dict[str, Any] = {"ask": "owners", "within_s": max(0.1, min(within_s / 2, 5.0))}
    if numbers is not None:
        request["fds"] = spread(numbers, _MAX_FDS)
    reply = ask(pid, request, within_s=within_s)
    if reply is None:
        return None
    scale = len(numbers) / len(request["fds"]) if numbers else 1.0
    try:
        return [_group(row, scale) for row in reply["groups"]]
    except (KeyError, TypeError, ValueError):
        return None


def _group(row: dict[str, Any], scale: float) -> OwnerGroup:
    path = row["example"]
    example = OwnerPath(int(path["fd"]), HeldBy(path["held"]), path["root"], tuple(path["steps"]), path["owner"])
    count = round(int(row["count"]) * scale)
    return OwnerGroup(str(row["shape"]), HeldBy(row["held"]), count, example, bool(row["exact"]) and scale == 1.0)
