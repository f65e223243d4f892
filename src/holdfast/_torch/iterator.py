"""torch's multi-process iterator with an end: it gives back all it took as soon as it is done, however that comes."""

from __future__ import annotations

import contextlib
import sys
import weakref
from multiprocessing.connection import wait
from typing import Any, cast

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .crew import GRACE_S, Crew
from .inbox import Inbox, Patience
from .problems import ClosedLoaderError, WorkerDiedError, WorkerTimeoutError, is_stopped, tell_death, tell_state
from .tracebacks import let_go
from .unpack import unpack

_signal_handling: Any = _utils.signal_handling
_FAILED_GRACE_S = 0.5
_ENDING_S = 5.0
_SHOWN_SAMPLES = 8


class _View:
    """A loader as torch's iterator sees it: with the crew where the multiprocessing context was."""

    def __init__(self, loader: Any, crew: Crew) -> None:
        self._loader = loader
        self.multiprocessing_context = crew

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class LoaderIterator(_MultiProcessingDataLoaderIter):
    """Order and values are torch's; waiting, failing and ending are not."""

    _workers: list[Any]
    _worker_result_queue: Any
    _data_queue: Any
    _workers_done_event: Any

    def __init__(self, loader: Any, *, keep_safe: bool) -> None:
        self._keep_safe = keep_safe
        self._asked: dict[int, Any] = {}
        self._inbox: Inbox | None = None
        self._dataset_failed = False
        self._ended_by: str | None = None
        # Batches that were not copied may be in use under their file names, here or where they were sent on to.
        self._crew = Crew(loader.multiprocessing_context or torch.multiprocessing, sweep=keep_safe)
        weakref.finalize(self, self._crew.close).atexit = False
        try:
            super().__init__(_View(loader, self._crew))
        except BaseException:
            self.close(_FAILED_GRACE_S)
            raise
        self._stand_alone()

    def _stand_alone(self) -> None:
        """torch raises a worker's death out of a signal handler, in whatever line runs. Here `next` says it."""
        if self._worker_pids_set:
            _signal_handling._remove_worker_pids(id(self))
            self._worker_pids_set = False

    # ---- the next batch ------------------------------------------------------------------------------------

    def __next__(self) -> Any:
        outer = sys.exception()
        batch, error = self._step()
        if error is None:
            return batch
        let_go(error, outer)
        del self, batch, outer  # who keeps the error keeps this frame
        try:
            raise error
        finally:
            del error

    def _step(self) -> tuple[Any, BaseException | None]:
        if self._ended_by is not None:
            return None, ClosedLoaderError(f"wanted a batch of an open iterator, got one that {self._ended_by}")
        self._dataset_failed = False
        try:
            return super().__next__(), None
        except StopIteration as end:
            return None, end
        except BaseException as error:  # noqa: BLE001 raised again, when nothing of ours hangs on it
            if not self._dataset_failed:  # else torch's goes on with the next batch, and so does this one
                self._fail(error)
            return None, error

    def _fail(self, error: BaseException) -> None:
        self.close(_FAILED_GRACE_S)
        self._ended_by = f"was ended by {type(error).__name__}: {error}"

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        self._dataset_failed = isinstance(data, ExceptionWrapper)
        return super()._process_data(data, worker_idx)  # type: ignore[no-untyped-call]

    def _next_index(self) -> Any:
        index = super()._next_index()  # type: ignore[no-untyped-call]
        self._asked[self._send_idx] = index
        return index

    def _get_data(self) -> Any:
        if self._pin_memory:
            return super()._get_data()  # type: ignore[no-untyped-call]
        if self._inbox is None:
            self._inbox = Inbox(self._worker_result_queue)
        patience = Patience(self._timeout)
        sentinels = [worker.sentinel for worker, busy in zip(self._workers, self._workers_status, strict=True) if busy]
        message = self._inbox.next_message(patience, sentinels)
        if message is None:
            raise self._death() or self._late()
        try:
            number, data = unpack(message, patience, keep_safe=self._keep_safe)
        except (OSError, EOFError) as error:
            raise self._lost(error) from error
        if isinstance(number, int):
            self._asked.pop(number, None)
        return number, data

    # ---- what went wrong -----------------------------------------------------------------------------------

    def _lost(self, error: OSError | EOFError) -> Exception:
        """A batch whose memory could not be fetched: its worker died, or does not answer, or the fault is here."""
        if isinstance(error, BlockingIOError):
            return self._late()
        return self._death(_ENDING_S) or error

    def _death(self, wait_s: float = 0) -> WorkerDiedError | None:
        """A process's pipes and sockets go a little before it is seen to have ended: it gets the time."""
        busy = {w.sentinel: (n, w) for n, w in enumerate(self._workers) if self._workers_status[n]}
        dead = [busy[cast(int, sentinel)] for sentinel in wait(list(busy), timeout=wait_s)]
        for _, worker in dead:
            worker.join(_ENDING_S)
        if not dead:
            return None
        return WorkerDiedError("; ".join(f"{tell_death(w.pid, w.exitcode)}; {self._work_of(n)}" for n, w in dead))

    def _late(self) -> WorkerTimeoutError:
        suspects = [number for number, worker in enumerate(self._workers) if is_stopped(worker.pid)]
        awaited = self._task_info.get(self._rcvd_idx)
        if not suspects and awaited:
            suspects = [awaited[0]]
        told = [
            f"worker {number} (pid {self._workers[number].pid}) is {tell_state(self._workers[number].pid)}; "
            f"{self._work_of(number)}"
            for number in suspects
        ]
        return WorkerTimeoutError("; ".join([f"DataLoader timed out after {self._timeout} seconds", *told]))

    def _work_of(self, number: int) -> str:
        tasks = [task for task, info in sorted(self._task_info.items()) if info[0] == number and len(info) == 1]
        if not tasks:
            return "it had nothing to do"
        index = self._asked.get(tasks[0])
        return f"it was at batch {tasks[0]}" + ("" if index is None else f", {_tell_samples(index)}")

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self, grace_s: float = GRACE_S) -> None:
        """Ends the workers and gives back every descriptor. Any number of times."""
        if self._ended_by is None and not self._crew.closed:
            self._ended_by = "was closed"
        self._shutdown_workers(grace_s)

    @property
    def closed(self) -> bool:
        return self._crew.closed

    def _shutdown_workers(self, grace_s: float = GRACE_S) -> None:
        """torch calls it at the end of the data and when the iterator is dropped."""
        self._shutdown = True
        if getattr(self, "_worker_pids_set", False):
            self._stand_alone()
        self._end_pinning()
        self._crew.close(grace_s)
        if not self._crew.closed:
            return  # a forked child's copy
        self._index_queues, self._workers, self._inbox = [], [], None
        self._worker_result_queue = self._data_queue = self._workers_done_event = None
        self._asked = {}
        if self._ended_by is not None:
            self._task_info = {}

    def _end_pinning(self) -> None:
        """Its thread reads what workers write, so it goes first."""
        thread = getattr(self, "_pin_memory_thread", None)
        if thread is None or self._crew.closed or not thread.is_alive():
            return
        self._pin_memory_thread_done_event.set()
        with contextlib.suppress(OSError, ValueError):
            self._worker_result_queue.put((None, None))
        thread.join(timeout=_utils.MP_STATUS_CHECK_INTERVAL)


def _tell_samples(index: Any) -> str:
    if not isinstance(index, list | tuple):
        return f"sample {index!r}"
    shown = ", ".join(repr(one) for one in index[:_SHOWN_SAMPLES])
    return f"samples {shown}" + (", …" if len(index) > _SHOWN_SAMPLES else "")
