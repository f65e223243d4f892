"""The processes, sockets and memory of one pool, kept apart from it.

A crew is held by the pool's finalizer: whatever becomes garbage, in whatever order, it is whole when it is closed.
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

from ..._util.process import call_after_fork, open_this_process
from ...procfs.processes import is_stopped
from .forkserver import launch
from .messages import Job, MessageKind, WorkerMessage, pair, receive, send
from .shared_memory import SharedLayout, SharedMemory, make_file
from .stack_dump import StackDumps
from .worker_init import write_brief

GRACE_S = 2.0
_TERM_S = 0.5
_KILLED_S = 5.0
_SEED_S = 1.0


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as its pool sees it. `tells` and `idle_s`: what it last said, and how long we have waited since."""

    number: int
    sock: socket
    pid: int | None = None
    pidfd: int | None = None
    answers: bool = False
    ready: bool = False
    exit_code: int | None = None
    jobs: deque[Job] = field(default_factory=deque)
    tells: int = 0
    idle_s: float = 0.0


class WorkerProcesses:
    """Opened whole or not at all. The workers come up by themselves: nothing is waited for here."""

    def __init__(self, work: Callable[..., Any], layout: SharedLayout, *, spawn_each: bool) -> None:
        self.owner_pid = os.getpid()
        self.closed = False
        self.members: list[Worker] = []
        self.seed_exit: int | None = None
        self.control_ended = False
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as sent:
            brief = _keep(sent, write_brief(work, layout))
            file = _keep(sent, make_file(layout))
            self.memory = SharedMemory(layout, os.dup(file))
            undo.callback(self.memory.close)
            self.words = StackDumps()
            undo.callback(self.words.close)
            self.wake = _keep(undo, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            self.control, theirs = pair()
            undo.enter_context(self.control)
            sent.enter_context(theirs)
            owner = _keep(sent, open_this_process())
            send(self.control, WorkerMessage(MessageKind.SETUP), [owner])
            for number in range(layout.workers):
                ours, workers = pair()
                undo.enter_context(ours)
                sent.enter_context(workers)
                send(ours, WorkerMessage(MessageKind.SETUP), [file, self.words.fd, brief, owner])
                send(self.control, WorkerMessage(MessageKind.START, number), [workers.fileno()])
                self.members.append(Worker(number, ours))
            self.seed_pid = launch(_interpreter(), theirs.fileno(), spawn=spawn_each)
            self.seed_pidfd = os.pidfd_open(self.seed_pid)
            undo.pop_all()
        call_after_fork(self)

    # ---- what the seed says --------------------------------------------------------------------------------

    def read_control(self) -> list[Worker]:
        """Takes what has come from the seed; the members it was about."""
        about = []
        while not self.control_ended:
            try:
                message, descriptors = receive(self.control, wait=False)
            except BlockingIOError:
                break
            if message is None:
                self.control_ended = True
                break
            member = self.members[message.number]
            about.append(member)
            if message.kind is MessageKind.STARTED:
                member.pid, member.pidfd = message.value, descriptors[0]
            else:
                member.exit_code = message.value
        return about

    def await_exit_code(self, member: Worker, wait_s: float = _KILLED_S) -> None:
        """A worker's socket is closed a little before it has ended, and the seed says it a little after."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        deadline = time.monotonic() + wait_s
        while member.exit_code is None and not self.control_ended:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                return
            self.read_control()

    def reap_seed(self, wait_s: float) -> bool:
        """Whether it has ended."""
        if self.seed_exit is None and _await_ends([self.seed_pidfd], wait_s):
            self.seed_exit = 0
            with contextlib.suppress(ChildProcessError):  # somebody waits for all children of this process
                self.seed_exit = os.waitstatus_to_exitcode(os.waitpid(self.seed_pid, 0)[1])
        return self.seed_exit is not None

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self, grace_s: float = GRACE_S) -> None:
        """Nothing is left when it returns. Any number of times; in a forked child it does nothing."""
        if self.closed or os.getpid() != self.owner_pid:
            return
        self.closed = True
        try:
            self._end_workers(grace_s)
        finally:
            try:
                self._end_seed()
            finally:
                self._release()

    def _end_workers(self, grace_s: float) -> None:
        for member in self.members:
            member.sock.close()  # which is how a worker learns that there is no more to do
        self.read_control()
        for member in self.members:
            if member.pid is not None and is_stopped(member.pid):
                _signal(member, signal.SIGKILL)
        if any(member.pidfd is None for member in self.members):
            # The seed is not up yet. What it has forked dies with it.
            self._kill_seed()
            self.read_control()
        for wait_s, number in ((grace_s, signal.SIGTERM), (_TERM_S, signal.SIGKILL), (_KILLED_S, None)):
            living = [member for member in self.members if member.pidfd is not None]
            if _await_ends([member.pidfd for member in living if member.pidfd is not None], wait_s):
                return
            for member in living:
                if number is not None:
                    _signal(member, number)

    def _end_seed(self) -> None:
        self.control.close()
        if not self.reap_seed(_SEED_S):
            self._kill_seed()

    def _kill_seed(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.seed_pidfd, signal.SIGKILL)
        self.reap_seed(_KILLED_S)

    def _release(self) -> None:
        for member in self.members:
            member.sock.close()
            member.jobs.clear()
            if member.pidfd is not None:
                os.close(member.pidfd)
                member.pidfd = None
        self.control.close()
        self.words.close()
        os.close(self.wake)
        os.close(self.seed_pidfd)
        with contextlib.suppress(BufferError):  # somebody's traceback holds a slot: it goes with that
            self.memory.close()

    def after_fork_in_child(self) -> None:
        """The child's copies of the descriptors go; the workers are its parent's."""
        if not self.closed:
            self.closed = True
            self._release()


def _keep(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _interpreter() -> list[str]:
    options: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [os.fsdecode(spawn.get_executable()), *options]


def _signal(member: Worker, number: signal.Signals) -> None:
    if member.pidfd is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(member.pidfd, number)


def _await_ends(pidfds: list[int], wait_s: float) -> bool:
    """Whether all of these processes ended in time."""
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
