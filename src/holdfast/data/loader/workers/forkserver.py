"""The fork server: the small process that starts a pool's workers, by fork or by spawn.

It has one thread and runs no user code, so forking it is safe, and the kernel can kill the workers when it ends. It
ends when the pool's process does. As the parent of the workers it learns how each of them ended.
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

from ...._util.process import PACKAGE_PARENT, die_with_forker
from ....procfs.procfs import REAL
from .wire_format import MAX_TEXT_BYTES, MessageKind, WorkerMessage, receive, send

_CONTROL = 3
_PR_SET_NAME = 15


def launch(command: list[str], control: int, *, spawn: bool) -> int:
    """Starts a fork server and returns its pid. `command` is the interpreter with its options.

    SIGINT is blocked until the fork server can ignore it: Ctrl-C reaches every process of the terminal.
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
    _ignore_sigint()
    _close_inherited()
    os.set_inheritable(_CONTROL, False)
    code = 1
    try:
        with socket.socket(fileno=_CONTROL) as control:
            server = _ForkServer(control, spawn=spawn)
            server.serve()
            server.end_workers()
        code = 0
    finally:
        os._exit(code)  # there is no user code here that an orderly exit would matter to


def _ignore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _close_inherited() -> None:
    """Closes what the pool's process had opened without close-on-exec: a listening port, a device."""
    for name in REAL.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != _CONTROL:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))


class _ForkServer:
    def __init__(self, control: socket.socket, *, spawn: bool) -> None:
        self._control = control
        self._spawn = spawn
        self._workers: dict[int, tuple[int, int]] = {}  # by pidfd: number and pid
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        setup, (pool_process,) = receive(self._control)
        if setup is None:
            return
        self._poll.register(pool_process, select.POLLIN)
        if not self._spawn:
            from . import worker_main  # noqa: F401 imported once for all workers, with numpy
        while True:
            for fd, _ in self._poll.poll():
                if fd == pool_process or (fd == self._control.fileno() and not self._start_worker(pool_process)):
                    return
                if fd in self._workers:
                    self._report_exit(fd)

    def end_workers(self) -> None:
        """Kills and reaps the workers: in a container without an init process they would stay as zombies."""
        for _, pid in self._workers.values():
            os.kill(pid, signal.SIGKILL)
        for _, pid in self._workers.values():
            os.waitpid(pid, 0)

    def _start_worker(self, pool_process: int) -> bool:
        """Returns False when the pool's process is gone."""
        message, descriptors = receive(self._control)
        if message is None:
            return False
        server_pid = os.getpid()
        pid = _fork()
        if pid == 0:
            others = [pool_process, *self._workers, _CONTROL]
            _become_worker(server_pid, message.number, descriptors[0], self._spawn, others)
        os.close(descriptors[0])
        pidfd = os.pidfd_open(pid)
        self._workers[pidfd] = (message.number, pid)
        self._poll.register(pidfd, select.POLLIN)
        return self._send(WorkerMessage(MessageKind.STARTED, message.number, pid), pidfd)

    def _report_exit(self, pidfd: int) -> None:
        number, pid = self._workers.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._send(WorkerMessage(MessageKind.ENDED, number, os.waitstatus_to_exitcode(status)))

    def _send(self, message: WorkerMessage, *descriptors: int) -> bool:
        try:
            send(self._control, message, descriptors)
        except OSError:
            return False  # the pool's process is gone
        return True


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the threads that Python warns of are numpy's, which handles forks
        return os.fork()


def _become_worker(server_pid: int, number: int, sock: int, spawn: bool, others: list[int]) -> NoReturn:
    code = 1
    try:
        die_with_forker(server_pid)
        for fd in others:
            os.close(fd)
        _set_name(f"hold-worker-{number}")
        if spawn:
            os.set_inheritable(sock, True)
            start = f"import sys; sys.path.append({PACKAGE_PARENT!r}); from {__name__} import main_spawned; "
            call = f"main_spawned({server_pid}, {number}, {sock})"
            os.execv(sys.executable, [*sys.orig_argv[:-2], "-c", start + call])
        code = _run_worker(number, sock, forked=True)
    finally:
        os._exit(code)


def main_spawned(server_pid: int, number: int, sock: int) -> NoReturn:
    """Runs a worker in a fresh interpreter."""
    code = 1
    try:
        die_with_forker(server_pid)
        os.set_inheritable(sock, False)
        _set_name(f"hold-worker-{number}")
        code = _run_worker(number, sock, forked=False)
    finally:
        os._exit(code)


def _run_worker(number: int, descriptor: int, *, forked: bool) -> int:
    sock = socket.socket(fileno=descriptor)
    try:
        from .worker_main import serve

        return serve(number, sock, forked=forked)
    except BaseException:  # noqa: BLE001 it must not propagate: the frames above may be the fork server's
        with contextlib.suppress(OSError):
            text = traceback.format_exc().encode(errors="replace")[-MAX_TEXT_BYTES:]
            send(sock, WorkerMessage(MessageKind.FAILED, text=text))
        return 1


def _set_name(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
