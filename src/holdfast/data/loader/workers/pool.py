"""The pool: a fixed number of worker processes that do one kind of work, and the results of a run in task order."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal

from ...._util.finalize import close_when_collected
from ....errors import WorkerError
from .dispatch import Dispatcher
from .shared_memory import lay_out
from .wire_format import Job, Payload, Task
from .worker_init import check_not_importing_main
from .worker_processes import WorkerProcesses

GRACE_S = 2.0  # how long workers may take to drain when the pool is closed
_FAILED_GRACE_S = 0.5  # and when it could not be started


class ProcessPool:
    """`with ProcessPool(work, 4) as pool: for result in pool.run(tasks): …`

    work:          called as work(data, progress) in a worker; progress(i) reports that it is at sample i of the data
    workers:       how many processes; they come up in the background
    context:       "forkserver": forked from a small process of the pool's own. "spawn": each a fresh interpreter
    memory_bytes:  the most memory shared with the workers; each task's data, and its result, gets an equal share
    stall_s:       how long a worker may go without progress before it is an error; None: forever
    ahead:         how many tasks may be under way at once, by default workers + 2; it may be lowered later

    A task that raises leaves the pool intact. A worker that dies or stalls ends it, with an error that names the sample
    it was at. A pool may be closed from any thread; it is closed when it is garbage-collected and when this process
    ends. In a forked child it cannot be used.
    """

    def __init__(
        self,
        work: Callable[[Any, Callable[[int], None]], Any],
        workers: int,
        *,
        context: Literal["forkserver", "spawn"] = "forkserver",
        memory_bytes: int = 1 << 30,
        stall_s: float | None = 300.0,
        ahead: int | None = None,
    ) -> None:
        check_not_importing_main()
        if workers < 1:
            raise ValueError(f"expected at least one worker, got {workers}")
        if context not in ("forkserver", "spawn"):
            raise ValueError(f"expected the context forkserver or spawn, got {context!r}")
        if stall_s is not None and stall_s <= 0:
            raise ValueError(f"expected stall_s above 0, or None, got {stall_s}")
        self.ahead = workers + 2 if ahead is None else ahead
        if self.ahead < 1:
            raise ValueError(f"expected at least one task under way, got ahead={ahead}")
        layout = lay_out(workers, self.ahead, memory_bytes)
        self._processes = WorkerProcesses(work, layout, spawn_each=context == "spawn")
        self._finalizer = close_when_collected(self, partial(self._processes.close, GRACE_S))
        self._dispatcher = Dispatcher(self._processes, stall_s)
        self._lock = threading.Lock()
        self._ended_by: str | None = None
        self._n_tasks = 0
        self._n_runs = 0

    @property
    def pids(self) -> list[int]:
        """The pids of the workers that have started."""
        return [worker.pid for worker in self._processes.workers if worker.pid is not None]

    def run(self, tasks: Iterable[Task]) -> PoolRun:
        """Returns an iterator over the results, in task order. It closes the iterator of the run before it."""
        self._check_open()
        self._begin()
        return PoolRun(self, tasks, self._n_runs)

    def close(self, grace_s: float = GRACE_S) -> None:
        """Ends the workers: asks them, waits, then kills. Safe to call twice, from any thread."""
        processes = self._processes
        if processes.closed or os.getpid() != processes.owner_pid:
            return
        self._ended_by = self._ended_by or "was closed"
        processes.wake()  # another thread may wait for a result, and holds the lock
        with self._lock:
            processes.close(grace_s)
        self._finalizer.detach()

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- for PoolRun ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._n_runs += 1
        self._dispatcher.run = self._n_runs
        self._processes.memory.set_run(self._n_runs)

    def _cancel(self, run: int) -> None:
        if run == self._n_runs and not self._processes.closed:
            self._begin()

    def _take(self, run: int, *, wait: bool) -> None:
        self._check_open()
        if run != self._n_runs:
            raise WorkerError("this result iterator was closed because a newer run() was started on the pool")
        with self._lock:
            self._check_open()
            try:
                self._dispatcher.take(wait=wait)
            except BaseException as error:
                # Whatever it is, a message may be lost with it, and the pool would wait forever for its sender.
                self._ended_by = self._ended_by or f"was ended by {type(error).__name__}: {error}".strip(": ")
                self._processes.close(_FAILED_GRACE_S)
                self._finalizer.detach()
                raise

    def _send(self, task: Task, run: int) -> Job:
        self._n_tasks += 1
        job = Job(self._n_tasks, run, task.label)
        try:
            payload = Payload(task.data)
            self._processes.memory.check_fits(payload.n_bytes, "a task's data")
        except Exception as error:  # noqa: BLE001 raised when its turn comes
            job.finish(error=error)
            return job
        with self._lock:
            self._check_open()
            self._dispatcher.send(job, payload)
        return job

    def _check_open(self) -> None:
        if os.getpid() != self._processes.owner_pid:
            raise WorkerError(
                f"expected the process {self._processes.owner_pid} that opened the pool, got a forked child of it"
            )
        if self._ended_by is not None:
            raise WorkerError(f"expected an open pool, got one that {self._ended_by}")


class PoolRun(Iterator[Any]):
    """Iterates over results in task order. `next` raises what a task raised, and can be called again after that.

    Tasks are pulled as they are needed. Closing or dropping the iterator cancels what is under way.
    """

    def __init__(self, pool: ProcessPool, tasks: Iterable[Task], number: int) -> None:
        self._pool: ProcessPool | None = pool
        self._tasks: Iterator[Task] | None = iter(tasks)
        self._number = number
        self._pending: deque[Job] = deque()

    def __next__(self) -> Any:
        job = self._next_job()
        error, value = job.error, job.value
        if error is None:
            return value
        del self, job  # an error that is kept keeps this frame alive
        try:
            raise error
        finally:
            del error

    def close(self) -> None:
        pool, self._pool, self._tasks = self._pool, None, None
        self._pending.clear()
        if pool is not None:
            pool._cancel(self._number)

    def __enter__(self) -> PoolRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_pending"):
            self.close()

    def _next_job(self) -> Job:
        pool = self._pool
        if pool is None:
            raise StopIteration
        wait = False
        while True:
            pool._take(self._number, wait=wait)
            self._fill(pool)
            if not self._pending and self._tasks is None:
                self.close()
                raise StopIteration
            if self._pending and self._pending[0].done:
                job = self._pending.popleft()
                self._fill(pool)  # before the caller gets the result: the workers go on meanwhile
                return job
            wait = True  # also with nothing pending: the tasks of a cancelled run may have all slots

    def _fill(self, pool: ProcessPool) -> None:
        while self._tasks is not None and len(self._pending) < pool.ahead and pool._dispatcher.has_free_slot:
            try:
                task = next(self._tasks)
            except StopIteration:
                self._tasks = None
            except Exception as error:  # noqa: BLE001 raised when its turn comes
                self._tasks = None
                job = Job(0, self._number, None)
                job.finish(error=error)
                self._pending.append(job)
            else:
                self._pending.append(pool._send(task, self._number))
