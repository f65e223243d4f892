"""Where a transform runs: inline, on threads, in processes. Items come out in the order they went in.

Each executor is a generator. Closing it, at the end or half-way, ends what it started.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing
from time import perf_counter
from typing import Any

from ....errors import InputError, StateError
from ..options import Function
from ..sources.file_pool import explain_emfile, is_emfile
from ..stats import Meter
from ..workers import ProcessPool, Task
from .run_context import Items, RunContext, WorkItem
from .transform import Transform, TransformResult, TransformRun

Finish = Callable[[WorkItem, Transform, TransformResult], WorkItem]
_STOP_S = 5.0  # how long a function of the user's may go on after the end; its thread is abandoned then


def run_stage(
    items: Items, transform: Transform, executor: Function | None, finish: Finish, context: RunContext
) -> Items:
    """Runs a transform where the function `executor` says; None: inline."""
    if executor is None or executor.where == "inline":
        return _inline(items, transform, finish, context.meter)
    run = _threads if executor.where == "threads" else _processes
    return run(items, transform, executor, finish, context)


def _inline(items: Items, transform: Transform, finish: Finish, meter: Meter) -> Items:
    # Closed explicitly, here and below: a kept error keeps this frame, and with it the stages before it.
    with closing(items):
        for item in items:
            yield finish(item, transform, _timed(item, transform, meter))


def _timed(item: WorkItem, transform: Transform, meter: Meter) -> TransformResult:
    """A function of its own: the generator must not keep the rows while the next ones are made."""
    result = transform(item)
    meter.add(transform.name, result.seconds)
    return result


# ---- threads


class _SharedRun:
    """One item's transform, run by as many threads as are free, and its result."""

    __slots__ = (
        "_input",
        "_is_cancelled",
        "_lock",
        "_n_threads",
        "_run",
        "_transform",
        "done",
        "error",
        "item",
        "result",
    )

    def __init__(self, item: WorkItem, transform: Transform) -> None:
        self.item, self._transform = item, transform
        self._input: WorkItem | None = item.move_rows()
        self._run: TransformRun | None = None
        self._n_threads = 0
        self._is_cancelled = False
        self._lock = threading.Lock()
        self.result: TransformResult | None = None
        self.error: BaseException | None = None
        # Not an Event: Ctrl-C in the middle of its wait() may leave it locked for the thread that sets it.
        self.done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def help(self) -> bool:
        """Runs samples until none is left to begin. Returns whether the item is done now."""
        is_last = False
        try:
            run = self._join()
            if run is None:
                return False
            if self._is_cancelled:  # while the rows were split into samples
                run.stop()
            try:
                run.run()
            except BaseException as error:
                self.error = error  # before any thread may leave last, and take its sample for one that was filtered
                run.stop()
                raise
            finally:
                is_last = self._leave()
            if is_last and self.error is None and not self._is_cancelled:  # else some samples may be missing
                self.result = run.finish()
        except BaseException as error:  # noqa: BLE001 - it is raised where the item is asked for
            self.error = error
            is_last = True
        if is_last:
            self.done.put(None)
        return is_last

    def _join(self) -> TransformRun | None:
        """Returns None if all samples have begun, or none is to begin any more."""
        with self._lock:
            item, self._input = self._input, None
            if item is not None:
                self._run = TransformRun(self._transform, item)
            if self._run is not None:
                self._n_threads += 1
            return self._run

    def _leave(self) -> bool:
        """Returns whether all threads have left: no other joins any more."""
        with self._lock:
            self._n_threads -= 1
            self._run = None
            return not self._n_threads

    def cancel(self) -> None:
        """Lets no other sample begin. Takes no lock: a signal handler may call it in the middle of the above."""
        self._is_cancelled = True
        run, self._input = self._run, None
        if run is not None:
            run.stop()
        self.done.put(None)

    def wait(self) -> TransformResult:
        self.done.get()
        if self.error is not None:
            raise self.error
        if self.result is None:
            raise StateError("the iteration was closed while a thread waited for a batch")
        return self.result


def _threads(items: Items, transform: Transform, executor: Function, finish: Finish, context: RunContext) -> Items:
    workers = executor.workers
    to_run: queue.SimpleQueue[_SharedRun | None] = queue.SimpleQueue()
    pending: deque[_SharedRun] = deque()
    # All threads work on one batch if its samples are independent: the first batch is there sooner, and no thread is
    # idle at the end.
    helpers = workers if any(function.each == "sample" for function in transform.functions) else 1

    def serve() -> None:
        while (run := to_run.get()) is not None:
            start = perf_counter()
            is_done = run.help()
            context.meter.add(transform.name, perf_counter() - start, workers, calls=is_done)

    has_ended = False

    def end() -> None:
        nonlocal has_ended
        has_ended = True
        for _ in range(workers):
            to_run.put(None)
        for run in list(pending):
            run.cancel()

    def next_finished() -> WorkItem:
        run = pending[0]
        item = finish(run.item, transform, run.wait())
        pending.popleft()
        return item

    # Daemons: a function that never returns must not keep the program from ending.
    threads = [threading.Thread(target=serve, name=f"holdfast-map-{n}", daemon=True) for n in range(workers)]
    context.cancel_token.on_cancel(end)
    with closing(items):
        try:
            for thread in threads:
                thread.start()
            for item in items:
                pending.append(_SharedRun(item, transform))
                if has_ended:  # no thread is left to run it, so nothing may wait for it
                    pending[-1].cancel()
                for _ in range(helpers):
                    to_run.put(pending[-1])
                while len(pending) >= context.budget.in_flight(executor):
                    yield next_finished()
            while pending:
                yield next_finished()
        finally:
            end()
            for thread in threads:
                if thread.ident is not None and thread is not threading.current_thread():
                    thread.join(_STOP_S)


# ---- processes


def _processes(items: Items, transform: Transform, executor: Function, finish: Finish, context: RunContext) -> Items:
    pending: deque[WorkItem] = deque()

    def task(item: WorkItem) -> Task:
        pool.ahead = context.budget.in_flight(executor)
        pending.append(item)
        return Task(item.move_rows(), item.describe)

    def finished(result: TransformResult) -> WorkItem:
        context.meter.add(transform.name, result.seconds, executor.workers)
        return finish(pending.popleft(), transform, result)

    with closing(items), _open_pool(transform, executor, context.budget.limit_bytes) as pool:
        context.cancel_token.on_cancel(pool.close)
        results: Any = pool.run(map(task, items))
        try:
            yield from map(finished, results)
        finally:
            results.close()


def _open_pool(transform: Transform, executor: Function, memory_bytes: int) -> ProcessPool:
    try:
        return ProcessPool(
            transform, executor.workers, context=executor.start, stall_s=executor.stall_s, memory_bytes=memory_bytes
        )
    except OSError as error:
        if is_emfile(error):
            raise InputError(f"{transform.name}: cannot start its worker processes: {explain_emfile(error)}") from error
        raise
