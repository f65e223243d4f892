"""Where a work runs: here, on threads, in processes. Items go in and come out in the same order.

Each is a generator. Closing it, at the end or half-way, ends what it started.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from ..pool import ProcessPool, Task
from ..settings import Function
from .item import Item
from .stats import Meter
from .work import Given, Outcome, Work, given_of

Finish = Callable[[Item, Work, Outcome], Item]
_STOP_S = 5.0  # how long a function of the user's may go on after the end; its thread is left to itself then


def run_stage(
    items: Iterator[Item], work: Work, place: Function | None, finish: Finish, meter: Meter, memory_bytes: int
) -> Iterator[Item]:
    """`place` is the function that says where; None: here."""
    if place is None or place.where == "inline":
        return _inline(items, work, finish, meter)
    if place.where == "threads":
        return _threads(items, work, place.workers, finish, meter)
    return _processes(items, work, place, finish, meter, memory_bytes)


def _no_tell(_: int) -> None:
    """Only a worker process has to say which sample it is at."""


def _inline(items: Iterator[Item], work: Work, finish: Finish, meter: Meter) -> Iterator[Item]:
    for item in items:
        start = perf_counter()
        outcome = work(given_of(item), _no_tell)
        meter.add(work.name, perf_counter() - start)
        yield finish(item, work, outcome)


# ---- threads


class _Job:
    """One work to be done, and what became of it."""

    __slots__ = ("done", "error", "given", "item", "outcome")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.given: Given | None = given_of(item)
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def run(self, work: Work) -> None:
        given, self.given = self.given, None
        try:
            if given is not None:
                self.outcome = work(given, _no_tell)
        except BaseException as error:  # noqa: BLE001 - it is raised where the item is asked for
            self.error = error
        self.done.set()

    def wait(self) -> Outcome:
        self.done.wait()
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome


def _threads(items: Iterator[Item], work: Work, workers: int, finish: Finish, meter: Meter) -> Iterator[Item]:
    jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    def serve() -> None:
        while (job := jobs.get()) is not None:
            start = perf_counter()
            job.run(work)
            meter.add(work.name, perf_counter() - start, workers)

    # Daemons: a function that never returns must not keep the program from ending.
    threads = [threading.Thread(target=serve, name=f"holdfast-map-{n}", daemon=True) for n in range(workers)]
    waiting: deque[_Job] = deque()
    try:
        for thread in threads:
            thread.start()
        for item in items:
            waiting.append(_Job(item))
            jobs.put(waiting[-1])
            if len(waiting) > workers:
                job = waiting.popleft()
                yield finish(job.item, work, job.wait())
        while waiting:
            job = waiting.popleft()
            yield finish(job.item, work, job.wait())
    finally:
        for job in waiting:
            job.given = None  # not begun yet: not worth beginning
        for _ in threads:
            jobs.put(None)
        for thread in threads:
            if thread.ident is not None:
                thread.join(_STOP_S)


# ---- processes


class _Remote:
    """A work in another process: an error itself may not come back, its words do."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, given: Given, tell: Callable[[int], None]) -> tuple[Outcome, float]:
        start = perf_counter()
        outcome = self._work(given, tell)
        failures = [failure._replace(error=None) for failure in outcome.failures]
        return outcome._replace(failures=failures), perf_counter() - start


def _processes(
    items: Iterator[Item], work: Work, place: Function, finish: Finish, meter: Meter, memory_bytes: int
) -> Iterator[Item]:
    waiting: deque[Item] = deque()

    def tasks() -> Iterator[Task]:
        for item in items:
            given = given_of(item)
            item.rows = {}
            waiting.append(item)
            yield Task(given, _Label(item))

    with ProcessPool(
        _Remote(work), place.workers, context=place.start, stall_s=place.stall_s, memory_bytes=memory_bytes
    ) as pool:
        results: Any = pool.run(tasks())
        try:
            for outcome, seconds in results:
                meter.add(work.name, seconds, place.workers)
                yield finish(waiting.popleft(), work, outcome)
        finally:
            results.close()


class _Label:
    """The name of sample i, made when somebody asks."""

    def __init__(self, item: Item) -> None:
        self._shard, self._sample, self._paths = item.shard, item.sample, item.paths

    def __call__(self, index: int) -> str:
        if not 0 <= index < len(self._shard):
            return "a whole batch"
        return f"{self._paths[self._shard[index]]}, record {self._sample[index]:,}"
