"""An error that is kept keeps its traceback, that its frames, and those the iterator: unless they are emptied."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import queue
import signal
import sys
import weakref
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .._util.finalize import close_when_collected
from ..errors import ClosedLoaderError, WorkerDiedError, WorkerError, WorkerTimeoutError
from ..procfs.processes import is_stopped, tell_state
from .transport import Deadline, MessageReader, PinQueue, unpack
from .workers import GRACE_S, LoaderWorkers

_NOT_OF_THE_USER = tuple(
    str(Path(file).parent) + os.sep for file in (torch.__file__, multiprocessing.__file__, __file__)
)


def let_go(error: BaseException, outer: BaseException | None) -> None:
    """Empties the frames of torch and of this package in the tracebacks: they hold the iterator. Yours stay."""
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if one is outer or id(one) in seen:
            continue
        seen.add(id(one))
        _clear(one.__traceback__)
        left.extend(linked for linked in (one.__cause__, one.__context__) if linked is not None)


def _clear(traceback: TracebackType | None) -> None:
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(_NOT_OF_THE_USER):
            with contextlib.suppress(RuntimeError):  # one that still runs
                traceback.tb_frame.clear()
        traceback = traceback.tb_next


# torch's multi-process iterator with an end: it gives back all it took as soon as it is done, however that comes.

_signal_handling: Any = _utils.signal_handling
_FAILED_GRACE_S = 0.5
_ENDING_S = 5.0
_LOOK_S = 5.0
_PINNED_LOOK_S = 0.5
_SHOWN_SAMPLES = 8
_SHOWN_BATCHES = 4
_TOO_MANY = (
    "Too many open files: expected one more descriptor to fetch a batch from a worker, got none. `holdfast doctor` says"
    " what holds them. torch.multiprocessing.set_sharing_strategy('file_system') takes one a batch, not one a tensor"
)


class _BatchView:
    """A loader as torch's iterator sees it: with the crew where the multiprocessing context was."""

    def __init__(self, loader: Any, crew: LoaderWorkers) -> None:
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

    def __init__(self, loader: Any, *, copy_batches: bool) -> None:
        self._copy_batches = copy_batches
        self._asked: dict[int, Any] = {}
        self._inbox: MessageReader | None = None
        self._dataset_failed = False
        self._ended_by: str | None = None
        # Batches that were not copied may be in use under their file names, here or where they were sent on to.
        self._feed = PinQueue(loader.timeout or None, copy_batches=copy_batches) if loader.pin_memory else None
        self._crew = LoaderWorkers(
            loader.multiprocessing_context or torch.multiprocessing, self._feed, copies=copy_batches
        )
        self._crew.iterator = weakref.ref(self)
        self._closer = close_when_collected(self, self._crew.close)
        self._closer.atexit = False  # crew.py has its own
        # What torch's sets last. A worker may die before.
        self._workers, self._workers_status, self._task_info = [], [True] * loader.num_workers, {}
        try:
            super().__init__(_BatchView(loader, self._crew))
        except BaseException as error:
            death = self._death() if isinstance(error, RuntimeError) else None
            self.close(_FAILED_GRACE_S)
            if death is not None:
                raise death from None  # torch's handler was quicker, and says less
            raise

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._stand_alone()
        super()._reset(loader, first_iter)

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
            return None, ClosedLoaderError(f"expected a batch of an open iterator, got one that {self._ended_by}")
        if not self._crew.is_here:
            return None, ClosedLoaderError(
                f"expected a batch in the process that made the iterator (pid {self._crew.pid}), got asked in its child"
            )
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
        number, data = self._get_pinned() if self._pin_memory else self._get_sent()
        if isinstance(number, int):
            self._asked.pop(number, None)
        return number, data

    def _get_sent(self) -> Any:
        if self._inbox is None:
            self._inbox = MessageReader(self._worker_result_queue)
        patience = Deadline(self._timeout or None)
        sentinels = [worker.sentinel for worker, busy in zip(self._workers, self._workers_status, strict=True) if busy]
        while (message := self._inbox.next_message(patience.at_most(_LOOK_S), sentinels)) is None:
            self._look(patience)
        try:
            return unpack(message, patience, copy_batches=self._copy_batches)
        except (OSError, EOFError) as error:
            raise self._lost(error) from error

    def _get_pinned(self) -> Any:
        """From torch's thread, which copies batches into pinned memory as they come."""
        assert self._feed is not None
        patience = Deadline(self._timeout or None)
        while True:
            try:
                return self._data_queue.get(timeout=patience.at_most(_PINNED_LOOK_S).left_s())
            except queue.Empty:
                if self._feed.error is not None:
                    raise self._lost(self._feed.error) from None
                self._look(patience)
                if not self._pin_memory_thread.is_alive():
                    raise RuntimeError("Pin memory thread exited unexpectedly") from None

    def _look(self, patience: Deadline) -> None:
        """Nothing came: why? A sentinel may be silent, held open by a process that another thread forked."""
        if (death := self._death()) is not None:
            raise death
        if patience.left_s() == 0:
            raise self._late()

    # ---- what went wrong -----------------------------------------------------------------------------------

    def _lost(self, error: OSError | EOFError) -> Exception:
        """A batch whose memory could not be fetched: its worker died, or does not answer, or the fault is here."""
        if isinstance(error, BlockingIOError):
            return self._late()
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return WorkerError(_TOO_MANY)
        return self._death(_ENDING_S) or error

    def _death(self, wait_s: float = 0) -> WorkerDiedError | None:
        """A process's pipes and sockets go a little before it is seen to have ended: it gets the time."""
        busy = {w.sentinel: (n, w) for n, w in enumerate(self._workers) if self._workers_status[n]}
        ended = {cast(int, sentinel) for sentinel in wait(list(busy), timeout=wait_s)}
        dead = [(n, w) for sentinel, (n, w) in busy.items() if sentinel in ended or not w.is_alive()]
        for _, worker in dead:
            if worker.exitcode is None:
                worker.join(_ENDING_S)
        if not dead:
            return None
        text = "; ".join(f"{_describe_death(w.pid, w.exitcode)}; {self._work_of(n)}" for n, w in dead)
        number, worker = dead[0]
        return WorkerDiedError(text, worker.pid, self._owed_by(number))

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
        text = "; ".join([f"DataLoader timed out after {self._timeout} seconds", *told])
        if not suspects:
            return WorkerTimeoutError(text)
        return WorkerTimeoutError(text, self._workers[suspects[0]].pid, self._owed_by(suspects[0]))

    def _work_of(self, number: int) -> str:
        owed = self._owed_by(number)
        return "it owed nothing" if owed is None else f"it owed {owed}"

    def _owed_by(self, number: int) -> str | None:
        """All that a worker was asked for and has not come: what it had made may be lost in its queue as it died."""
        tasks = sorted(task for task, info in self._task_info.items() if info == (number,))
        told = [f"batch {task}" + _tell_samples(self._asked.get(task)) for task in tasks[:_SHOWN_BATCHES]]
        return ", ".join(told + ["…"] * (len(tasks) > _SHOWN_BATCHES)) or None

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self, grace_s: float = GRACE_S) -> None:
        """Ends the workers and gives back every descriptor. Any number of times."""
        if self._ended_by is None and not self._crew.closed:
            self._ended_by = "was closed"
        self._shutdown_workers(grace_s)

    @property
    def closed(self) -> bool:
        """True in a forked child as well: the workers are not its own."""
        return self._crew.closed or not self._crew.is_here

    def __del__(self) -> None:
        """torch's ends the workers here, in whatever thread the collector runs. That is the finalizer's."""

    def _shutdown_workers(self, grace_s: float = GRACE_S) -> None:
        """torch calls it at the end of the data."""
        self._shutdown = True
        if getattr(self, "_worker_pids_set", False):
            self._stand_alone()
        if hasattr(self, "_pin_memory_thread_done_event"):
            self._pin_memory_thread_done_event.set()
        self._crew.close(grace_s)
        if not self._crew.closed:
            return  # a forked child's copy
        self._closer.detach()
        self._index_queues, self._inbox = [], None  # _workers stay: they say how they ended
        self._worker_result_queue = self._data_queue = self._workers_done_event = None
        self._asked = {}
        if self._ended_by is not None:
            self._task_info = {}


def _tell_samples(index: Any) -> str:
    if index is None:
        return ""
    if not isinstance(index, list | tuple):
        return f" (sample {index!r})"
    shown = ", ".join(repr(one) for one in index[:_SHOWN_SAMPLES])
    return f" (samples {shown}" + (", …)" if len(index) > _SHOWN_SAMPLES else ")")


def _describe_death(pid: int, exit_code: int | None) -> str:
    """In torch's words, which logs and tests look for."""
    if exit_code is None or exit_code >= 0:
        code = "" if exit_code is None else f" with exit code {exit_code}"
        return f"DataLoader worker (pid(s) {pid}) exited unexpectedly{code}"
    return f"DataLoader worker (pid {pid}) is killed by signal: {_name_of_signal(-exit_code)}"


def _name_of_signal(number: int) -> str:
    text = signal.strsignal(number) or f"signal {number}"
    return f"{text} ({signal.Signals(number).name})" if number in set(signal.Signals) else text
