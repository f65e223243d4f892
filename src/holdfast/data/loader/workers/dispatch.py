"""Sends tasks to workers and takes their results. Every wait is on all workers at once, and on their ends."""

from __future__ import annotations

import contextlib
import pickle
import select
import signal
import time
from collections.abc import Callable
from functools import partial

from ...._util.process import describe_exit
from ....errors import WorkerDiedError, WorkerError, WorkerTimeoutError
from ....procfs.processes import describe_state, is_stopped
from .wire_format import Job, MessageKind, Payload, WorkerMessage, receive, send, unpack
from .worker_processes import Worker, WorkerProcesses

_SLICE_S = 1.0
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


class WorkerTraceback(Exception):
    """The cause of an error that came from a worker: its traceback there."""

    def __init__(self, pid: int, sample: str, text: str) -> None:
        super().__init__(pid, sample, text)
        self.pid = pid
        self.sample = sample
        self.text = text

    def __str__(self) -> str:
        return f"in worker {self.pid}, at {self.sample}:\n{self.text}"


class Dispatcher:
    def __init__(self, processes: WorkerProcesses, stall_s: float | None) -> None:
        self._processes = processes
        self._stall_s = stall_s
        self._free_slots = list(range(processes.memory.layout.slots))
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self.run = 0  # results of other runs are dropped
        self._register(processes.wake_fd, self._closed)
        self._register(processes.control.fileno(), self._receive_control)
        self._register(processes.forkserver_pidfd, self._forkserver_died)
        for worker in processes.workers:
            self._register(worker.sock.fileno(), partial(self._receive, worker))

    def _register(self, fd: int, handler: Callable[[], None]) -> None:
        self._poll.register(fd, select.POLLIN)
        self._handlers[fd] = handler

    # ---- sending -------------------------------------------------------------------------------------------

    @property
    def has_free_slot(self) -> bool:
        return bool(self._free_slots)

    def send(self, job: Job, payload: Payload) -> None:
        """Sends a task to the worker with the fewest. The next take() reports one that is dead."""
        worker = min(self._processes.workers, key=lambda one: (len(one.jobs), not one.ready))
        slot = self._free_slots.pop()
        with self._processes.memory.slot(slot) as view:
            payload.write(view)
        if not worker.jobs:
            worker.silent_s = 0.0
        worker.jobs.append(job)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(worker.sock, WorkerMessage(MessageKind.TASK, slot, task=job.number, run=job.run))

    # ---- receiving -----------------------------------------------------------------------------------------

    def take(self, *, wait: bool) -> None:
        """Takes the messages that have come; with `wait`, waits for one. Raises WorkerError when none can come."""
        slice_s = None if self._stall_s is None else min(_SLICE_S, self._stall_s)
        while True:
            begun = time.monotonic()
            events = self._poll.poll(0 if not wait else None if slice_s is None else slice_s * 1000)
            for fd, _ in events:
                self._handlers[fd]()
            if events or not wait:
                return
            if slice_s is not None:
                # A process that was stopped together with its workers has not waited for them: count the slice at most.
                self._count_silence(min(time.monotonic() - begun, slice_s))

    def _receive(self, worker: Worker) -> None:
        while True:
            try:
                message, _ = receive(worker.sock, wait=False)
            except BlockingIOError:
                return
            if message is None:
                raise self._death_of(worker)
            worker.silent_s = 0.0
            if message.kind is MessageKind.HELLO:
                worker.dumps_stack = True
            elif message.kind is MessageKind.READY:
                worker.ready = True
            elif message.kind is MessageKind.FAILED:
                text = message.text.decode(errors="replace").rstrip()
                raise WorkerError(f"worker {worker.pid} cannot load its work:\n{text}", worker.pid)
            else:
                self._finish_job(worker, message)

    def _finish_job(self, worker: Worker, message: WorkerMessage) -> None:
        job = worker.jobs.popleft()  # a worker runs its tasks in the order they were sent
        if job.run == self.run and message.kind is not MessageKind.SKIPPED:
            with self._processes.memory.slot(message.number) as slot:
                try:
                    value = unpack(slot)
                except Exception as error:  # noqa: BLE001 the user's classes rebuild themselves here
                    error.add_note(f"the result of task {job.number} cannot be unpickled in this process")
                    job.finish(error=error)
                else:
                    if message.kind is MessageKind.RESULT:
                        job.finish(value)
                    else:
                        job.finish(error=_rebuild_error(worker, job, *value))
        self._free_slots.append(message.number)

    def _receive_control(self) -> None:
        for worker in self._processes.read_control():
            if worker.pidfd is not None and worker.pidfd not in self._handlers:
                self._register(worker.pidfd, partial(self._ended, worker))
            if worker.exit_code is not None:
                self._ended(worker)
        if self._processes.control_ended:
            self._forkserver_died()

    def _ended(self, worker: Worker) -> None:
        self._receive(worker)  # its last messages count, and may say why it ended
        raise self._death_of(worker)

    def _closed(self) -> None:
        raise WorkerError("the pool was closed while a result was waited for")

    # ---- errors --------------------------------------------------------------------------------------------

    def _death_of(self, worker: Worker) -> WorkerError:
        self._processes.await_exit_code(worker)
        if worker.exit_code is None and self._processes.control_ended:
            return self._forkserver_death()
        where, sample = self._position_of(worker)
        text = f"worker {worker.pid} {describe_exit(worker.exit_code)}; {where}"
        if worker.exit_code is not None and -worker.exit_code in _CRASHES:
            text += f"\n{self._processes.stack_dumps.read()}"
        return WorkerDiedError(text, worker.pid, sample)

    def _forkserver_died(self) -> None:
        raise self._forkserver_death()

    def _forkserver_death(self) -> WorkerError:
        processes = self._processes
        processes.reap_forkserver(_SLICE_S)
        end = describe_exit(processes.forkserver_exit)
        text = f"the process {processes.forkserver_pid} that starts the workers {end}; the workers end with it"
        return WorkerDiedError(text, processes.forkserver_pid)

    def _count_silence(self, passed_s: float) -> None:
        for worker in self._processes.workers:
            heartbeats = self._processes.memory.progress_of(worker.number).heartbeats
            if heartbeats != worker.heartbeats or not (worker.jobs or not worker.ready):
                worker.heartbeats, worker.silent_s = heartbeats, 0.0
                continue
            worker.silent_s += passed_s
            if self._stall_s is not None and worker.silent_s >= self._stall_s:
                raise self._stall_of(worker)

    def _stall_of(self, worker: Worker) -> WorkerError:
        where, sample = self._position_of(worker)
        if worker.pid is None:
            pid = self._processes.forkserver_pid
            return WorkerTimeoutError(
                f"worker {worker.number} did not start within {self._stall_s:g} s; the process {pid} that starts it "
                f"is {describe_state(pid)}"
            )
        state = describe_state(worker.pid)
        text = f"worker {worker.pid} made no progress for {self._stall_s:g} s and is {state}; {where}"
        return WorkerTimeoutError(f"{text}\n{self._stack_of(worker)}", worker.pid, sample)

    def _stack_of(self, worker: Worker) -> str:
        if worker.pid is None or worker.pidfd is None or not worker.dumps_stack:
            return "no stack: the worker is still starting"
        if is_stopped(worker.pid):
            return "no stack: a stopped process cannot dump it"
        return self._processes.stack_dumps.request(worker.pidfd) or "no stack: the worker does not answer"

    def _position_of(self, worker: Worker) -> tuple[str, str | None]:
        """Returns a worker's position for a message, and the name of its sample."""
        if not worker.ready:
            return "it was still loading its work", None
        progress = self._processes.memory.progress_of(worker.number)
        for job in worker.jobs:
            if job.number == progress.task:
                name = job.sample_name(progress.sample)
                return f"it was at {name}", name
        return "it was at no sample", None


def _rebuild_error(worker: Worker, job: Job, pickled: bytes | None, name: str, text: str, number: int) -> Exception:
    """Returns the error as it was in the worker, or a WorkerError in its place when it does not pickle."""
    pid = worker.pid or 0
    sample = job.sample_name(number)
    error: Exception = WorkerError(f"worker {pid} raised {name}; at {sample}", pid, sample)
    if pickled is not None:
        with contextlib.suppress(Exception):  # a user's `__init__` may raise anything
            error = pickle.loads(pickled)
            error.add_note(f"at {sample}, in worker {pid}")
    error.__cause__ = WorkerTraceback(pid, sample, text)
    return error
