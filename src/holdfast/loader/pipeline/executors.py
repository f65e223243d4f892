"""Ends the waits of an iteration that another thread closes: who waits for a batch would keep it from being closed."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing
from time import perf_counter
from typing import Any

from ...errors import InputError, StateError
from ..options import Function
from ..sources.file_pool import explain_emfile, is_emfile
from ..workers import ProcessPool, Task
from .memory_budget import MemoryBudget
from .stats import Meter
from .transform import Transform, TransformInput, TransformResult, TransformRun, given_of
from .work_item import Items, WorkItem


class CancelToken:
    """Stages say how their waits are ended before they begin to wait. A forked child has none of their threads."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []
        self._halted = False
        self._pid = os.getpid()

    def on(self, call: Callable[[], None]) -> None:
        """`call` may come from any thread, more than once."""
        self._calls.append(call)
        if self._halted:
            call()

    def __call__(self) -> None:
        self._halted = True
        if os.getpid() == self._pid:
            for call in list(self._calls):
                call()


# Where a work runs: here, on threads, in processes. Items go in and come out in the same order.
#
# Each is a generator. Closing it, at the end or half-way, ends what it started.

Finish = Callable[[WorkItem, Transform, TransformResult], WorkItem]
_STOP_S = 5.0  # how long a function of the user's may go on after the end; its thread is left to itself then


def run_stage(
    items: Items,
    work: Transform,
    place: Function | None,
    finish: Finish,
    meter: Meter,
    room: MemoryBudget,
    halt: CancelToken,
) -> Items:
    """`place` is the function that says where; None: here."""
    if place is None or place.where == "inline":
        return _inline(items, work, finish, meter)
    if place.where == "threads":
        return _threads(items, work, place, finish, meter, room, halt)
    return _processes(items, work, place, finish, meter, room, halt)


def _no_tell(_: int) -> None:
    """Only a worker process has to say which sample it is at."""


def _inline(items: Items, work: Transform, finish: Finish, meter: Meter) -> Items:
    # Closed by hand, here and below: who keeps an error keeps this frame, and with it what is before it.
    with closing(items):
        for item in items:
            yield finish(item, work, _timed(item, work, meter))


def _timed(item: WorkItem, work: Transform, meter: Meter) -> TransformResult:
    """A function of its own: the generator must not keep the rows while the next ones are made."""
    start = perf_counter()
    outcome = work(given_of(item), _no_tell)
    meter.add(work.name, perf_counter() - start)
    return outcome


# ---- threads


class _Job:
    """One work to be done, by as many threads as have time for it, and what became of it."""

    __slots__ = ("_at_it", "_doing", "_given", "_is_cancelled", "_turn", "_work", "done", "error", "item", "outcome")

    def __init__(self, item: WorkItem, work: Transform) -> None:
        self.item, self._work = item, work
        self._given: TransformInput | None = given_of(item)
        item.rows = {}  # they are let go of with the work, not with what comes of it
        self._doing: TransformRun | None = None
        self._at_it = 0
        self._is_cancelled = False
        self._turn = threading.Lock()
        self.outcome: TransformResult | None = None
        self.error: BaseException | None = None
        # Not an Event: Ctrl-C in the middle of its wait() may leave it locked for the thread that sets it.
        self.done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self) -> bool:
        """Helps with it. Whether it is done now."""
        is_last = False
        try:
            doing = self._join()
            if doing is None:
                return False
            if self._is_cancelled:  # while it was split into samples
                doing.stop()
            try:
                doing.run()
            except BaseException as error:
                self.error = error  # before anybody may leave last, and take its sample for one that was filtered out
                doing.stop()
                raise
            finally:
                is_last = self._leave()
            if is_last and self.error is None and not self._is_cancelled:  # else some samples may be missing
                self.outcome = doing.finish()
        except BaseException as error:  # noqa: BLE001 - it is raised where the item is asked for
            self.error = error
            is_last = True
        if is_last:
            self.done.put(None)
        return is_last

    def _join(self) -> TransformRun | None:
        """None: others have begun all of it, or it is not to be begun any more."""
        with self._turn:
            given, self._given = self._given, None
            if given is not None:
                self._doing = TransformRun(self._work, given, _no_tell)
            if self._doing is not None:
                self._at_it += 1
            return self._doing

    def _leave(self) -> bool:
        """Whether all have left: nobody comes any more."""
        with self._turn:
            self._at_it -= 1
            self._doing = None
            return not self._at_it

    def cancel(self) -> None:
        """What is not begun yet is not worth beginning. Takes no lock: it may be called in the middle of all this."""
        self._is_cancelled = True
        doing, self._given = self._doing, None
        if doing is not None:
            doing.stop()
        self.done.put(None)

    def wait(self) -> TransformResult:
        self.done.get()
        if self.error is not None:
            raise self.error
        if self.outcome is None:
            raise StateError("the iteration was closed while a batch was waited for")
        return self.outcome


def _threads(
    items: Items, work: Transform, place: Function, finish: Finish, meter: Meter, room: MemoryBudget, halt: CancelToken
) -> Items:
    workers = place.workers
    jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
    waiting: deque[_Job] = deque()
    # All of them at one batch, if its samples are taken one by one: the first is there sooner, and none waits for the
    # last one at the end.
    together = workers if any(function.each == "sample" for function in work.functions) else 1

    def serve() -> None:
        while (job := jobs.get()) is not None:
            start = perf_counter()
            is_done = job.run()
            meter.add(work.name, perf_counter() - start, workers, calls=is_done)

    has_ended = False

    def end() -> None:
        nonlocal has_ended
        has_ended = True
        for _ in range(workers):
            jobs.put(None)
        for job in list(waiting):
            job.cancel()

    def settled() -> WorkItem:
        job = waiting[0]
        item = finish(job.item, work, job.wait())
        waiting.popleft()
        return item

    # Daemons: a function that never returns must not keep the program from ending.
    threads = [threading.Thread(target=serve, name=f"holdfast-map-{n}", daemon=True) for n in range(workers)]
    halt.on(end)
    with closing(items):
        try:
            for thread in threads:
                thread.start()
            for item in items:
                waiting.append(_Job(item, work))
                if has_ended:  # nobody is there to do it: whoever waits for it is not to wait
                    waiting[-1].cancel()
                for _ in range(together):
                    jobs.put(waiting[-1])
                while len(waiting) >= room.under_way(place):
                    yield settled()
            while waiting:
                yield settled()
        finally:
            end()
            for thread in threads:
                if thread.ident is not None and thread is not threading.current_thread():
                    thread.join(_STOP_S)


# ---- processes


class _Remote:
    """A work in another process: an error itself may not come back, its words do."""

    def __init__(self, work: Transform) -> None:
        self._work = work

    def __call__(self, given: TransformInput, tell: Callable[[int], None]) -> tuple[TransformResult, float]:
        start = perf_counter()
        outcome = self._work(given, tell)
        failures = [one if one.function < 0 else one._replace(error=None) for one in outcome.failures]
        return outcome._replace(failures=failures), perf_counter() - start


def _processes(
    items: Items, work: Transform, place: Function, finish: Finish, meter: Meter, room: MemoryBudget, halt: CancelToken
) -> Items:
    waiting: deque[WorkItem] = deque()

    def task(item: WorkItem) -> Task:
        pool.ahead = room.under_way(place)
        given = given_of(item)
        item.rows = {}
        waiting.append(item)
        return Task(given, _Label(item))

    def settled(result: tuple[TransformResult, float]) -> WorkItem:
        outcome, seconds = result
        meter.add(work.name, seconds, place.workers)
        return finish(waiting.popleft(), work, outcome)

    with closing(items), _pool(work, place, room.most_bytes) as pool:
        halt.on(pool.close)
        results: Any = pool.run(map(task, items))
        try:
            yield from map(settled, results)
        finally:
            results.close()


def _pool(work: Transform, place: Function, memory_bytes: int) -> ProcessPool:
    try:
        return ProcessPool(
            _Remote(work), place.workers, context=place.start, stall_s=place.stall_s, memory_bytes=memory_bytes
        )
    except OSError as error:
        if is_emfile(error):
            raise InputError(f"{work.name}: its processes cannot be started: {explain_emfile(error)}") from error
        raise


class _Label:
    """The name of sample i, made when somebody asks."""

    def __init__(self, item: WorkItem) -> None:
        self._shard, self._sample, self._paths = item.shard, item.sample, item.paths

    def __call__(self, index: int) -> str:
        if not 0 <= index < len(self._shard):
            return "a whole batch"
        return f"{self._paths[self._shard[index]]}, record {self._sample[index]:,}"
