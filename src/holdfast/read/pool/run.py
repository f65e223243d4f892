"""One pass over tasks: results in their order, whatever the order they came in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .job import Job, Task

if TYPE_CHECKING:
    from .pool import ProcessPool


class Run(Iterator[Any]):
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

    def __enter__(self) -> Run:
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
