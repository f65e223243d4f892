"""One pass over tasks: results in their order, whatever the order they came in."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from ..._util.finalize import close_when_collected
from ...errors import WorkerError
from .dispatch import Dispatcher, wake
from .messages import Job, Payload, Task
from .processes import GRACE_S, WorkerProcesses
from .shared_memory import lay_out
from .worker_init import check_guarded


class PoolRun(Iterator[Any]):
    """`next` gives the next result, or raises what its task raised, and can be asked again after that.

    Tasks are pulled as they are needed. To close it, or to drop it, gives up what is under way.
    """

    def __init__(self, pool: ProcessPool, tasks: Iterable[Task], number: int) -> None:
        self._pool: ProcessPool | None = pool
        self._tasks: Iterator[Task] | None = iter(tasks)
        self._number = number
        self._line: deque[Job] = deque()

    def __next__(self) -> Any:
        job = self._next_job()
        error, value = job.error, job.value
        if error is None:
            return value
        del self, job  # who keeps the error keeps this frame
        try:
            raise error
        finally:
            del error

    def close(self) -> None:
        pool, self._pool, self._tasks = self._pool, None, None
        self._line.clear()
        if pool is not None:
            pool._give_up(self._number)

    def __enter__(self) -> PoolRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_line"):
            self.close()

    def _next_job(self) -> Job:
        pool = self._pool
        if pool is None:
            raise StopIteration
        wait = False
        while True:
            pool._take(self._number, wait=wait)
            self._fill(pool)
            if not self._line and self._tasks is None:
                self.close()
                raise StopIteration
            if self._line and self._line[0].settled:
                job = self._line.popleft()
                self._fill(pool)  # before the result is worked with: the workers go on meanwhile
                return job
            wait = True  # with an empty line too: the tasks of a run that was given up may have all slots

    def _fill(self, pool: ProcessPool) -> None:
        while self._tasks is not None and len(self._line) < pool.ahead and pool._post.has_room:
            try:
                task = next(self._tasks)
            except StopIteration:
                self._tasks = None
            except Exception as error:  # noqa: BLE001 raised when its turn comes
                self._tasks = None
                job = Job(0, self._number, None)
                job.settle(error=error)
                self._line.append(job)
            else:
                self._line.append(pool._send(task, self._number))


# A fixed number of processes that do one kind of work.

__all__ = ["ProcessPool", "Task"]

_FAILED_GRACE_S = 0.5


class ProcessPool:
    """`with ProcessPool(work, 4) as pool: for result in pool.run(tasks): …`

    work:          called as work(data, tell) in a worker; tell(i) notes that it is at sample i of the data
    workers:       how many processes; they come up while you go on
    context:       "forkserver": forked from a small process of the pool's own. "spawn": each started anew
    memory_bytes:  the most memory shared with the workers. A task's data, or its result, may take an equal share of it
    stall_s:       how long a worker may neither tell nor finish before it is an error; None: for ever
    ahead:         how many tasks may be under way at once, by default workers + 2; it may be changed to less later

    A task that raises leaves the pool as it is. A worker that dies or stalls ends it: the error says which sample it
    was at. A pool may be closed from any thread and is closed when it is dropped, and when this process ends. In a
    forked child it is of no use and does no harm.
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
        check_guarded()
        if workers < 1:
            raise ValueError(f"expected at least one worker, got {workers}")
        if context not in ("forkserver", "spawn"):
            raise ValueError(f"expected the context forkserver or spawn, got {context!r}")
        if stall_s is not None and stall_s <= 0:
            raise ValueError(f"expected stall_s above 0, or None, got {stall_s}")
        self.ahead = workers + 2 if ahead is None else ahead
        if self.ahead < 1:
            raise ValueError(f"expected at least one task under way, got ahead={ahead}")
        self._crew = WorkerProcesses(work, lay_out(workers, self.ahead, memory_bytes), spawn_each=context == "spawn")
        self._finalizer = close_when_collected(self, self._crew.close)
        self._post = Dispatcher(self._crew, stall_s)
        self._lock = threading.Lock()
        self._ended_by: str | None = None
        self._n_tasks = 0
        self._n_runs = 0

    @property
    def pids(self) -> list[int]:
        """Of the workers that are up."""
        return [member.pid for member in self._crew.members if member.pid is not None]

    def run(self, tasks: Iterable[Task]) -> PoolRun:
        """An iterator over their results, in their order. It ends the run before it."""
        self._check()
        self._begin()
        return PoolRun(self, tasks, self._n_runs)

    def close(self, grace_s: float = GRACE_S) -> None:
        """Ends the workers: asks them, waits, then kills. Any number of times; from any thread."""
        crew = self._crew
        if crew.closed or os.getpid() != crew.owner_pid:
            return
        self._ended_by = self._ended_by or "was closed"
        wake(crew)  # another thread may wait for a result
        with self._lock:
            crew.close(grace_s)
        self._finalizer.detach()

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- for a run -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._n_runs += 1
        self._post.run = self._n_runs
        self._crew.memory.set_run(self._n_runs)

    def _give_up(self, run: int) -> None:
        if run == self._n_runs and not self._crew.closed:
            self._begin()

    def _take(self, run: int, *, wait: bool) -> None:
        self._check()
        if run != self._n_runs:
            raise WorkerError("expected the pool's present run, got one that ended when another began")
        with self._lock:
            self._check()
            try:
                self._post.take(wait=wait)
            except BaseException as error:
                # Whatever it is, a message may be lost with it, and its sender would be waited for in vain.
                self._ended_by = self._ended_by or f"was ended by {type(error).__name__}: {error}".strip(": ")
                self._crew.close(_FAILED_GRACE_S)
                self._finalizer.detach()
                raise

    def _send(self, task: Task, run: int) -> Job:
        self._n_tasks += 1
        job = Job(self._n_tasks, run, task.label)
        try:
            parcel = Payload(task.data)
            self._crew.memory.check_fits(parcel.n_bytes, "a task's data")
        except Exception as error:  # noqa: BLE001 raised when its turn comes
            job.settle(error=error)
            return job
        with self._lock:
            self._check()
            self._post.send(job, parcel)
        return job

    def _check(self) -> None:
        if os.getpid() != self._crew.owner_pid:
            raise WorkerError(f"expected the process {self._crew.owner_pid} that opened the pool, got a fork of it")
        if self._ended_by is not None:
            raise WorkerError(f"expected an open pool, got one that {self._ended_by}")
