"""The small process that a pool's workers are forked from.

It has one thread and no user's code, so forking it is safe, and the kernel can be told to kill the workers with it. It
ends when the pool's process does. As the workers' parent it is the one that learns how each of them ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import traceback
import warnings
from typing import NoReturn

from ..._util.process import PACKAGE_PARENT, die_with_forker
from .messages import MOST_TEXT, MessageKind, WorkerMessage, receive, send

_CONTROL = 3
_PR_SET_NAME = 15


def launch(command: list[str], control: int, *, spawn: bool) -> int:
    """The seed's pid. `command` is the interpreter with its options.

    SIGINT is blocked until the seed can ignore it: Ctrl-C reaches every process of the terminal.
    """
    code = f"import sys; sys.path.append({PACKAGE_PARENT!r}); from {__name__} import main; main({spawn})"
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, control, _CONTROL)]
    return os.posix_spawn(
        command[0],
        [*command, "-c", code],
        os.environ,
        file_actions=actions,
        setsigmask=[signal.SIGINT],
        setsigdef=[signal.SIGTERM, signal.SIGCHLD],
    )


def main(spawn: bool) -> NoReturn:
    _calm_down()
    _close_all_but(_CONTROL)
    os.set_inheritable(_CONTROL, False)
    code = 1
    try:
        with socket.socket(fileno=_CONTROL) as control:
            seed = _ForkServer(control, spawn=spawn)
            seed.serve()
            seed.end_workers()
        code = 0
    finally:
        os._exit(code)  # nothing of the user's is here that an orderly end would be for


def _calm_down() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _close_all_but(kept: int) -> None:
    """What the pool's process had opened without close-on-exec: a port that it listens on, a device."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


class _ForkServer:
    def __init__(self, control: socket.socket, *, spawn: bool) -> None:
        self._control = control
        self._spawn = spawn
        self._workers: dict[int, tuple[int, int]] = {}  # by pidfd: number and pid
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        setup, (owner,) = receive(self._control)
        if setup is None:
            return
        self._poll.register(owner, select.POLLIN)
        if not self._spawn:
            from . import worker  # noqa: F401 with numpy and all: once, for all workers
        while True:
            for fd, _ in self._poll.poll():
                if fd == owner or (fd == self._control.fileno() and not self._obey(owner)):
                    return
                if fd in self._workers:
                    self._tell_end(fd)

    def end_workers(self) -> None:
        """Where nobody reaps what has lost its parent, a worker left to that would stay in the list of processes."""
        for _, pid in self._workers.values():
            os.kill(pid, signal.SIGKILL)
        for _, pid in self._workers.values():
            os.waitpid(pid, 0)

    def _obey(self, owner: int) -> bool:
        message, descriptors = receive(self._control)
        if message is None:
            return False
        seed = os.getpid()
        pid = _fork()
        if pid == 0:
            _become_worker(seed, message.number, descriptors[0], self._spawn, [owner, *self._workers, _CONTROL])
        os.close(descriptors[0])
        pidfd = os.pidfd_open(pid)
        self._workers[pidfd] = (message.number, pid)
        self._poll.register(pidfd, select.POLLIN)
        return self._say(WorkerMessage(MessageKind.STARTED, message.number, pid), pidfd)

    def _tell_end(self, pidfd: int) -> None:
        number, pid = self._workers.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._say(WorkerMessage(MessageKind.ENDED, number, os.waitstatus_to_exitcode(status)))

    def _say(self, message: WorkerMessage, *descriptors: int) -> bool:
        try:
            send(self._control, message, descriptors)
        except OSError:
            return False  # the pool's process is gone
        return True


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the threads that Python warns of are numpy's, which knows about forks
        return os.fork()


def _become_worker(seed: int, number: int, sock: int, spawn: bool, others: list[int]) -> NoReturn:
    code = 1
    try:
        die_with_forker(seed)
        for fd in others:
            os.close(fd)
        _set_name(f"hold-worker-{number}")
        if spawn:
            os.set_inheritable(sock, True)
            start = f"import sys; sys.path.append({PACKAGE_PARENT!r}); from {__name__} import main_spawned; "
            os.execv(sys.executable, [*sys.orig_argv[:-2], "-c", start + f"main_spawned({seed}, {number}, {sock})"])
        code = _serve(number, sock, forked=True)
    finally:
        os._exit(code)


def main_spawned(seed: int, number: int, sock: int) -> NoReturn:
    """A worker that was not forked but started anew."""
    code = 1
    try:
        die_with_forker(seed)
        os.set_inheritable(sock, False)
        _set_name(f"hold-worker-{number}")
        code = _serve(number, sock, forked=False)
    finally:
        os._exit(code)


def _serve(number: int, descriptor: int, *, forked: bool) -> int:
    sock = socket.socket(fileno=descriptor)
    try:
        from .worker import serve

        return serve(number, sock, forked=forked)
    except BaseException:  # noqa: BLE001 it must not go on up: the frames there may be the seed's
        with contextlib.suppress(OSError):
            send(
                sock,
                WorkerMessage(MessageKind.FAILED, text=traceback.format_exc().encode(errors="replace")[-MOST_TEXT:]),
            )
        return 1


def _set_name(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
