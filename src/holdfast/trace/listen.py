"""A process that answers who asks what holds its descriptors, also when it has none left.

    hold.listen()                 # once, when a worker starts; until it ends
    with hold.listen("worker"):   # or for the time of a block

The answering thread sleeps until somebody asks. An answer takes up to some seconds, during which the process goes on
at about half its speed in Python code.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import threading
from pathlib import Path

from .._base.descriptors import Reserve
from .._base.fork import tell_after_fork
from .answers import answer
from .meeting import clean_up, is_dead, own_place, peer_uid
from .wire import MOST_REQUEST_BYTES, WireError, receive, send

_REQUEST_S = 2.0
_ANSWER_S = 5.0
# Accepting takes one, and answering opens one thing at a time. The third is for a thread that snatches one.
_KEPT = 3
_PAUSE_S = 0.2
_EXIT_S = 1.0


class Responder:
    """The socket, the thread and the reserve; one in a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = own_place()
        self._uses = 0
        with contextlib.ExitStack() as undo:
            self._reserve = undo.enter_context(Reserve(_KEPT))
            self._socket = undo.enter_context(_bind(self.path))
            undo.callback(_unlink, self.path)
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._wake)
            self._thread = threading.Thread(target=self._run, name="holdfast-listen", daemon=True)
            self._thread.start()
            self._undo = undo.pop_all()
        tell_after_fork(self)
        with contextlib.suppress(OSError):
            clean_up(self.path.parent)

    def close(self, within_s: float | None = None) -> None:
        """Waits for an answer under way, which takes some seconds at most; if that is too long, only hides."""
        os.eventfd_write(self._wake, 1)
        self._thread.join(within_s)
        if self._thread.is_alive():
            _unlink(self.path)
        else:
            self._undo.close()

    def after_fork_in_child(self) -> None:
        """The thread is not here, and the socket is the parent's: its file stays."""
        global _responder, _lock
        _responder = None
        _lock = threading.Lock()  # another thread of the parent may have held it
        self._undo.pop_all()
        self._reserve.close()
        self._socket.close()
        os.close(self._wake)

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poller.poll(None if len(self._reserve) == _KEPT else int(_PAUSE_S * 1000))]
            if self._wake in ready:
                return
            if ready and not self._serve():
                # None is free for it, and the one set free was snatched: the caller waits at the door.
                select.poll().poll(int(_PAUSE_S * 1000))
            self._reserve.refill()

    def _serve(self) -> bool:
        with self._reserve.spend(), self._reserve.spend():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return False
            with connection:
                # Nothing that is asked, and nobody who asks, may end the thread or disturb the process.
                with contextlib.suppress(Exception):
                    self._answer(connection)
        return True

    def _answer(self, connection: socket.socket) -> None:
        if peer_uid(connection) != os.getuid():
            return
        try:
            request = receive(connection, MOST_REQUEST_BYTES, _REQUEST_S)
            said = answer(request, self.name, self._own(connection))
        except WireError as error:
            said = {"error": str(error)}
        send(connection, said, _ANSWER_S)

    def _own(self, connection: socket.socket) -> set[int]:
        return {*self._reserve.fds, self._socket.fileno(), self._wake, connection.fileno()}


class Listener:
    """`close()` ends it, when nobody else in this process wants it any more. Dropping it does not end it."""

    def __init__(self, responder: Responder) -> None:
        self._responder: Responder | None = responder
        self.path = responder.path

    def close(self) -> None:
        """Safe to call twice, and in a forked child, where nothing is left to be closed."""
        responder, self._responder = self._responder, None
        if responder is not None:
            _let_go(responder)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_lock = threading.Lock()
_responder: Responder | None = None
_at_exit = False


def listen(name: str | None = None) -> Listener:
    """Lets other processes of this user ask this one; until closed, or until it ends.

    Takes five descriptors and a thread. Called again, it shares the one that is there. A forked child does not listen:
    it may call this itself. InputError: there is no folder for the socket.
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
        return Listener(_responder)


def _let_go(responder: Responder) -> None:
    global _responder
    with _lock:
        if responder is not _responder:  # a forked child's, or closed at exit
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
            if not is_dead(path):
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
