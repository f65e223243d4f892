"""Starts and ends the processes of one pool, and owns their sockets and shared memory.

The pool's finalizer holds this object, not the pool: in whatever order garbage is collected, everything is still here
when it is closed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import spawn, util
from socket import socket
from typing import Any

from ...._util.process import call_after_fork, open_this_process
from ....procfs.processes import is_stopped
from .forkserver import launch
from .shared_memory import SharedLayout, SharedMemory, create_file
from .stack_dump import StackDumps
from .wire_format import Job, MessageKind, WorkerMessage, pair, receive, send
from .worker_init import write_init

_TERM_S = 0.5
_KILLED_S = 5.0
_FORKSERVER_S = 1.0


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as its pool sees it.

    dumps_stack:   it has installed its stack dump handler
    ready:         it has loaded its work
    heartbeats:    the count at the last check
    silent_s:      how long the pool has waited since a heartbeat or a message
    """

    number: int
    sock: socket
    pid: int | None = None
    pidfd: int | None = None
    dumps_stack: bool = False
    ready: bool = False
    exit_code: int | None = None
    jobs: deque[Job] = field(default_factory=deque)
    heartbeats: int = 0
    silent_s: float = 0.0


class WorkerProcesses:
    """Starts everything or nothing, and does not wait for the workers to come up."""

    def __init__(self, work: Callable[..., Any], layout: SharedLayout, *, spawn_each: bool) -> None:
        self.owner_pid = os.getpid()
        self.closed = False
        self.workers: list[Worker] = []
        self.forkserver_exit: int | None = None
        self.control_ended = False
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as sent:
            init = _closed_by(sent, write_init(work, layout))
            file = _closed_by(sent, create_file(layout))
            self.memory = SharedMemory(layout, os.dup(file))
            undo.callback(self.memory.close)
            self.stack_dumps = StackDumps()
            undo.callback(self.stack_dumps.close)
            self.wake_fd = _closed_by(undo, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            self.control, theirs = pair()
            undo.enter_context(self.control)
            sent.enter_context(theirs)
            this_process = _closed_by(sent, open_this_process())
            send(self.control, WorkerMessage(MessageKind.SETUP), [this_process])
            for number in range(layout.workers):
                ours, workers = pair()
                undo.enter_context(ours)
                sent.enter_context(workers)
                send(ours, WorkerMessage(MessageKind.SETUP), [file, self.stack_dumps.fd, init, this_process])
                send(self.control, WorkerMessage(MessageKind.START, number), [workers.fileno()])
                self.workers.append(Worker(number, ours))
            self.forkserver_pid = launch(_interpreter(), theirs.fileno(), spawn=spawn_each)
            self.forkserver_pidfd = os.pidfd_open(self.forkserver_pid)
            undo.pop_all()
        call_after_fork(self)

    def wake(self) -> None:
        """Ends a wait for a result in another thread."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self.wake_fd, 1)

    # ---- messages of the fork server -----------------------------------------------------------------------

    def read_control(self) -> list[Worker]:
        """Takes the messages that have come, and returns the workers that they are about."""
        about = []
        while not self.control_ended:
            try:
                message, descriptors = receive(self.control, wait=False)
            except BlockingIOError:
                break
            if message is None:
                self.control_ended = True
                break
            worker = self.workers[message.number]
            about.append(worker)
            if message.kind is MessageKind.STARTED:
                worker.pid, worker.pidfd = message.value, descriptors[0]
            else:
                worker.exit_code = message.value
        return about

    def await_exit_code(self, worker: Worker, wait_s: float = _KILLED_S) -> None:
        """Waits for the exit code: it comes a little later than the end of the worker's socket."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        deadline = time.monotonic() + wait_s
        while worker.exit_code is None and not self.control_ended:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                return
            self.read_control()

    def reap_forkserver(self, wait_s: float) -> bool:
        """Returns whether it has ended."""
        if self.forkserver_exit is None and _await_ends([self.forkserver_pidfd], wait_s):
            self.forkserver_exit = 0
            with contextlib.suppress(ChildProcessError):  # the program waits for all of its children itself
                self.forkserver_exit = os.waitstatus_to_exitcode(os.waitpid(self.forkserver_pid, 0)[1])
        return self.forkserver_exit is not None

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self, grace_s: float) -> None:
        """Ends all processes and closes all descriptors. Safe to call twice; does nothing in a forked child."""
        if self.closed or os.getpid() != self.owner_pid:
            return
        self.closed = True
        try:
            self._end_workers(grace_s)
        finally:
            try:
                self._end_forkserver()
            finally:
                self._release()

    def _end_workers(self, grace_s: float) -> None:
        for worker in self.workers:
            worker.sock.close()  # tells the worker that there is no more to do
        self.read_control()
        for worker in self.workers:
            if worker.pid is not None and is_stopped(worker.pid):
                _signal(worker, signal.SIGKILL)
        if any(worker.pidfd is None for worker in self.workers):
            # The fork server is not up yet. The workers it has forked die with it.
            self._kill_forkserver()
            self.read_control()
        for wait_s, number in ((grace_s, signal.SIGTERM), (_TERM_S, signal.SIGKILL), (_KILLED_S, None)):
            living = [worker for worker in self.workers if worker.pidfd is not None]
            if _await_ends([worker.pidfd for worker in living if worker.pidfd is not None], wait_s):
                return
            for worker in living:
                if number is not None:
                    _signal(worker, number)

    def _end_forkserver(self) -> None:
        self.control.close()
        if not self.reap_forkserver(_FORKSERVER_S):
            self._kill_forkserver()

    def _kill_forkserver(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.forkserver_pidfd, signal.SIGKILL)
        self.reap_forkserver(_KILLED_S)

    def _release(self) -> None:
        for worker in self.workers:
            worker.sock.close()
            worker.jobs.clear()
            if worker.pidfd is not None:
                os.close(worker.pidfd)
                worker.pidfd = None
        self.control.close()
        self.stack_dumps.close()
        os.close(self.wake_fd)
        os.close(self.forkserver_pidfd)
        with contextlib.suppress(BufferError):  # a traceback holds a slot: the memory goes with it
            self.memory.close()

    def after_fork_in_child(self) -> None:
        """Closes the child's copies of the descriptors: the workers belong to its parent."""
        if not self.closed:
            self.closed = True
            self._release()


def _closed_by(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _interpreter() -> list[str]:
    options: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [os.fsdecode(spawn.get_executable()), *options]


def _signal(worker: Worker, number: signal.Signals) -> None:
    if worker.pidfd is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker.pidfd, number)


def _await_ends(pidfds: list[int], wait_s: float) -> bool:
    """Returns whether all of these processes ended in time."""
    poll = select.poll()
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    left = len(pidfds)
    deadline = time.monotonic() + wait_s
    while left:
        ended = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ended:
            return False
        for fd, _ in ended:
            poll.unregister(fd)
        left -= len(ended)
    return True
