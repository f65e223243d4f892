"""What goes to workers and what comes from them. Every wait is on all of them at once, and on their ends."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from functools import partial

from ...errors import WorkerDiedError, WorkerError, WorkerTimeoutError
from ...procfs.processes import is_stopped, tell_end, tell_state
from .messages import Job, MessageKind, Payload, WorkerMessage, receive, send, unpack
from .processes import Worker, WorkerProcesses

_SLICE_S = 1.0
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


class WorkerTraceback(Exception):
    """The cause of an error that came from a worker: where it was raised there."""

    def __init__(self, pid: int, sample: str, text: str) -> None:
        super().__init__(pid, sample, text)
        self.pid = pid
        self.sample = sample
        self.text = text

    def __str__(self) -> str:
        return f"in worker {self.pid}, at {self.sample}:\n{self.text}"


class Dispatcher:
    def __init__(self, crew: WorkerProcesses, stall_s: float | None) -> None:
        self._crew = crew
        self._stall_s = stall_s
        self._free = list(range(crew.memory.layout.slots))
        self._poll = select.poll()
        self._on: dict[int, Callable[[], None]] = {}
        self.run = 0  # results of other runs are dropped
        self._listen(crew.wake, self._wake)
        self._listen(crew.control.fileno(), self._hear_seed)
        self._listen(crew.seed_pidfd, self._seed_died)
        for member in crew.members:
            self._listen(member.sock.fileno(), partial(self._hear, member))

    def _listen(self, fd: int, act: Callable[[], None]) -> None:
        self._poll.register(fd, select.POLLIN)
        self._on[fd] = act

    # ---- out -----------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return bool(self._free)

    def send(self, job: Job, parcel: Payload) -> None:
        """To the worker with the least to do. One that is dead shows as such when the next result is waited for."""
        member = min(self._crew.members, key=lambda one: (len(one.jobs), not one.ready))
        slot = self._free.pop()
        with self._crew.memory.slot(slot) as view:
            parcel.write(view)
        if not member.jobs:
            member.idle_s = 0.0
        member.jobs.append(job)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(member.sock, WorkerMessage(MessageKind.TASK, slot, task=job.number, run=job.run))

    # ---- in ------------------------------------------------------------------------------------------------

    def take(self, *, wait: bool) -> None:
        """Takes what has come; with `wait`, waits until something has. WorkerError: nothing more will."""
        slice_s = None if self._stall_s is None else min(_SLICE_S, self._stall_s)
        while True:
            begun = time.monotonic()
            events = self._poll.poll(0 if not wait else None if slice_s is None else slice_s * 1000)
            for fd, _ in events:
                self._on[fd]()
            if events or not wait:
                return
            if slice_s is not None:
                # Not more than was asked for: who was stopped with all its workers has not waited for them.
                self._count_idle(min(time.monotonic() - begun, slice_s))

    def _hear(self, member: Worker) -> None:
        while True:
            try:
                message, _ = receive(member.sock, wait=False)
            except BlockingIOError:
                return
            if message is None:
                raise self._death(member)
            member.idle_s = 0.0
            if message.kind is MessageKind.HELLO:
                member.answers = True
            elif message.kind is MessageKind.READY:
                member.ready = True
            elif message.kind is MessageKind.FAILED:
                text = message.text.decode(errors="replace").rstrip()
                raise WorkerError(f"worker {member.pid} cannot load its work:\n{text}", member.pid)
            else:
                self._settle(member, message)

    def _settle(self, member: Worker, message: WorkerMessage) -> None:
        job = member.jobs.popleft()  # a worker does its tasks in the order they came
        if job.run == self.run and message.kind is not MessageKind.SKIPPED:
            with self._crew.memory.slot(message.number) as slot:
                try:
                    value = unpack(slot)
                except Exception as error:  # noqa: BLE001 the user's own classes rebuild themselves here
                    error.add_note(f"the result of task {job.number} cannot be rebuilt here")
                    job.settle(error=error)
                else:
                    if message.kind is MessageKind.RESULT:
                        job.settle(value)
                    else:
                        job.settle(error=_rebuild(member, job, *value))
        self._free.append(message.number)

    def _hear_seed(self) -> None:
        for member in self._crew.read_control():
            if member.pidfd is not None and member.pidfd not in self._on:
                self._listen(member.pidfd, partial(self._ended, member))
            if member.exit_code is not None:
                self._ended(member)
        if self._crew.control_ended:
            self._seed_died()

    def _ended(self, member: Worker) -> None:
        self._hear(member)  # what it did before counts, and says best why it ended
        raise self._death(member)

    def _wake(self) -> None:
        raise WorkerError("the pool was closed while a result was waited for")

    # ---- what went wrong -----------------------------------------------------------------------------------

    def _death(self, member: Worker) -> WorkerError:
        self._crew.await_exit_code(member)
        if member.exit_code is None and self._crew.control_ended:
            return self._seed_death()
        at, sample = self._place(member)
        text = f"worker {member.pid} {tell_end(member.exit_code)}; {at}"
        if member.exit_code is not None and -member.exit_code in _CRASHES:
            text += f"\n{self._crew.words.read()}"
        return WorkerDiedError(text, member.pid, sample)

    def _seed_died(self) -> None:
        raise self._seed_death()

    def _seed_death(self) -> WorkerError:
        crew = self._crew
        crew.reap_seed(_SLICE_S)
        text = f"the process {crew.seed_pid} that starts the workers {tell_end(crew.seed_exit)}; they end with it"
        return WorkerDiedError(text, crew.seed_pid)

    def _count_idle(self, passed_s: float) -> None:
        for member in self._crew.members:
            tells = self._crew.memory.where(member.number).tells
            if tells != member.tells or not (member.jobs or not member.ready):
                member.tells, member.idle_s = tells, 0.0
                continue
            member.idle_s += passed_s
            if self._stall_s is not None and member.idle_s >= self._stall_s:
                raise self._stall(member)

    def _stall(self, member: Worker) -> WorkerError:
        at, sample = self._place(member)
        if member.pid is None:
            text = f"worker {member.number} did not come up in {self._stall_s:g} s"
            return WorkerTimeoutError(
                f"{text}; the process {self._crew.seed_pid} that starts it is {tell_state(self._crew.seed_pid)}"
            )
        text = f"worker {member.pid} did nothing for {self._stall_s:g} s and is {tell_state(member.pid)}; {at}"
        return WorkerTimeoutError(f"{text}\n{self._stack(member)}", member.pid, sample)

    def _stack(self, member: Worker) -> str:
        if member.pid is None or member.pidfd is None or not member.answers:
            return "where in its code is not known: it is not up yet"
        if is_stopped(member.pid):
            return "where in its code is not known: a stopped process cannot say"
        return self._crew.words.ask(member.pidfd) or "where in its code is not known: it does not answer"

    def _place(self, member: Worker) -> tuple[str, str | None]:
        """Where a worker is, for a message and for a program."""
        if not member.ready:
            return "it was still loading its work", None
        where = self._crew.memory.where(member.number)
        for job in member.jobs:
            if job.number == where.task:
                name = job.name(where.sample)
                return f"it was at {name}", name
        return "it was at no sample", None


def _rebuild(member: Worker, job: Job, pickled: bytes | None, name: str, text: str, number: int) -> Exception:
    """An error as it was in the worker, with what is known there; a stand-in when it does not pickle."""
    pid = member.pid or 0
    sample = job.name(number)
    error: Exception = WorkerError(f"worker {pid} raised {name}; at {sample}", pid, sample)
    if pickled is not None:
        with contextlib.suppress(Exception):  # the user's own `__init__` may do anything
            error = pickle.loads(pickled)
            error.add_note(f"at {sample}, in worker {pid}")
    error.__cause__ = WorkerTraceback(pid, sample, text)
    return error


def wake(crew: WorkerProcesses) -> None:
    with contextlib.suppress(OSError):
        os.eventfd_write(crew.wake, 1)
