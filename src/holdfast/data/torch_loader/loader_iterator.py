"""torch's multi-process iterator, with bounded waits, errors that name the worker, and an orderly end."""

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

from ..._util.finalize import close_when_collected
from ...errors import ClosedLoaderError, WorkerDiedError, WorkerError, WorkerTimeoutError
from ...procfs.processes import describe_state, is_stopped
from .transport import Deadline, FetchError, MessageReader, PinQueue, unpack
from .workers import GRACE_S, LoaderWorkers

_LIBRARY_PATHS = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, multiprocessing.__file__, __file__))

_signal_handling: Any = _utils.signal_handling
_FAILED_GRACE_S = 0.5
_ENDING_S = 5.0
_POLL_S = 5.0
_PINNED_POLL_S = 0.5
_SHOWN_SAMPLES = 8
_SHOWN_BATCHES = 4
_TOO_MANY = (
    "Too many open files: expected one more descriptor to fetch a batch from a worker, got none. `holdfast doctor`"
    " shows what holds them. torch.multiprocessing.set_sharing_strategy('file_system') uses one a batch only"
)


class _LoaderView:
    """A loader as torch's iterator sees it, with LoaderWorkers as its multiprocessing context."""

    def __init__(self, loader: Any, workers: LoaderWorkers) -> None:
        self._loader = loader
        self.multiprocessing_context = workers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class LoaderIterator(_MultiProcessingDataLoaderIter):
    """Keeps torch's order and values, and replaces its waiting, its errors and its shutdown."""

    _workers: list[Any]
    _worker_result_queue: Any
    _data_queue: Any
    _workers_done_event: Any

    def __init__(self, loader: Any, *, copy_batches: bool) -> None:
        self._copy_batches = copy_batches
        self._asked: dict[int, Any] = {}
        self._reader: MessageReader | None = None
        self._dataset_failed = False
        self._ended_by: str | None = None
        self._pin_queue = PinQueue(loader.timeout or None, copy_batches=copy_batches) if loader.pin_memory else None
        # Batches that are not copied may be in use under their file names, in this process or in others.
        self._processes = LoaderWorkers(
            loader.multiprocessing_context or torch.multiprocessing, self._pin_queue, copies=copy_batches
        )
        self._processes.iterator = weakref.ref(self)
        self._closer = close_when_collected(self, self._processes.close)
        self._closer.atexit = False  # workers.py has an exit function of its own
        # torch sets these last, and a worker may die before.
        self._workers, self._workers_status, self._task_info = [], [True] * loader.num_workers, {}
        try:
            super().__init__(_LoaderView(loader, self._processes))
        except BaseException as error:
            death = self._death() if isinstance(error, RuntimeError) else None
            self.close(_FAILED_GRACE_S)
            if death is not None:
                raise death from None  # torch's own error says less
            raise

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._drop_signal_handler()
        super()._reset(loader, first_iter)

    def _drop_signal_handler(self) -> None:
        """Turns off torch's SIGCHLD handler, which raises a worker's death in whatever line runs. `next` raises it."""
        if self._worker_pids_set:
            _signal_handling._remove_worker_pids(id(self))
            self._worker_pids_set = False

    # ---- the next batch ------------------------------------------------------------------------------------

    def __next__(self) -> Any:
        outer = sys.exception()
        batch, error = self._step()
        if error is None:
            return batch
        clear_library_frames(error, outer)
        del self, batch, outer  # an error that is kept keeps this frame alive
        try:
            raise error
        finally:
            del error

    def _step(self) -> tuple[Any, BaseException | None]:
        if self._ended_by is not None:
            return None, ClosedLoaderError(f"expected an open iterator, got one that {self._ended_by}")
        if not self._processes.is_here:
            return None, ClosedLoaderError(
                f"expected next() in process {self._processes.pid}, which made the iterator, got it in a forked child"
            )
        self._dataset_failed = False
        try:
            return super().__next__(), None
        except StopIteration as end:
            return None, end
        except BaseException as error:  # noqa: BLE001 raised again, without library frames
            if not self._dataset_failed:  # after an error of the dataset torch goes on with the next batch
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
        if self._reader is None:
            self._reader = MessageReader(self._worker_result_queue)
        deadline = Deadline(self._timeout or None)
        sentinels = [worker.sentinel for worker, busy in zip(self._workers, self._workers_status, strict=True) if busy]
        while (message := self._reader.next_message(deadline.at_most(_POLL_S), sentinels)) is None:
            self._check_workers(deadline)
        try:
            return unpack(message, deadline, copy_batches=self._copy_batches)
        except OSError as error:
            if (explained := self._explain(error)) is None:
                raise
            raise explained from error

    def _get_pinned(self) -> Any:
        """Takes a batch from torch's thread, which copies them into pinned memory as they come."""
        assert self._pin_queue is not None
        deadline = Deadline(self._timeout or None)
        while True:
            try:
                return self._data_queue.get(timeout=deadline.at_most(_PINNED_POLL_S).left_s())
            except queue.Empty:
                if (error := self._pin_queue.error) is not None:
                    raise (isinstance(error, OSError) and self._explain(error)) or error from None
                self._check_workers(deadline)
                if not self._pin_memory_thread.is_alive():
                    raise RuntimeError("Pin memory thread exited unexpectedly") from None

    def _check_workers(self, deadline: Deadline) -> None:
        """Raises for a dead worker, also one whose sentinel another forked process holds open, and for a timeout."""
        if (death := self._death()) is not None:
            raise death
        if deadline.left_s() == 0:
            raise self._timeout_error()

    # ---- errors --------------------------------------------------------------------------------------------

    def _explain(self, error: OSError) -> Exception | None:
        """Explains why the memory of a batch could not be fetched: a dead or stopped worker, or no free descriptor."""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return WorkerError(_TOO_MANY)
        if not isinstance(error, FetchError):
            return None
        if isinstance(error.__cause__, BlockingIOError):
            return self._timeout_error()
        return self._death(_ENDING_S)

    def _death(self, wait_s: float = 0) -> WorkerDiedError | None:
        """Returns the error for dead workers. A process closes its pipes a little before it has ended: `wait_s`."""
        busy = {w.sentinel: (n, w) for n, w in enumerate(self._workers) if self._workers_status[n]}
        ended = {cast(int, sentinel) for sentinel in wait(list(busy), timeout=wait_s)}
        dead = [(n, w) for sentinel, (n, w) in busy.items() if sentinel in ended or not w.is_alive()]
        for _, worker in dead:
            if worker.exitcode is None:
                worker.join(_ENDING_S)
        if not dead:
            return None
        text = "; ".join(f"{_describe_death(w.pid, w.exitcode)}; {self._describe_owed(n)}" for n, w in dead)
        number, worker = dead[0]
        return WorkerDiedError(text, worker.pid, self._owed_by(number))

    def _timeout_error(self) -> WorkerTimeoutError:
        suspects = [number for number, worker in enumerate(self._workers) if is_stopped(worker.pid)]
        awaited = self._task_info.get(self._rcvd_idx)
        if not suspects and awaited:
            suspects = [awaited[0]]
        described = [
            f"worker {number} (pid {self._workers[number].pid}) is {describe_state(self._workers[number].pid)}; "
            f"{self._describe_owed(number)}"
            for number in suspects
        ]
        text = "; ".join([f"DataLoader timed out after {self._timeout} seconds", *described])
        if not suspects:
            return WorkerTimeoutError(text)
        return WorkerTimeoutError(text, self._workers[suspects[0]].pid, self._owed_by(suspects[0]))

    def _describe_owed(self, number: int) -> str:
        owed = self._owed_by(number)
        return "it owed nothing" if owed is None else f"it owed {owed}"

    def _owed_by(self, number: int) -> str | None:
        """Lists the batches that a worker was asked for and that did not arrive; some may be lost in its queue."""
        tasks = sorted(task for task, info in self._task_info.items() if info == (number,))
        batches = [f"batch {task}" + _describe_samples(self._asked.get(task)) for task in tasks[:_SHOWN_BATCHES]]
        return ", ".join(batches + ["…"] * (len(tasks) > _SHOWN_BATCHES)) or None

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self, grace_s: float = GRACE_S) -> None:
        """Ends the workers and closes every descriptor. Safe to call twice."""
        if self._ended_by is None and not self._processes.closed:
            self._ended_by = "was closed"
        self._shutdown_workers(grace_s)

    @property
    def closed(self) -> bool:
        """True in a forked child as well: the workers belong to its parent."""
        return self._processes.closed or not self._processes.is_here

    def __del__(self) -> None:
        """Does nothing: torch would end the workers here, in the thread of the collector. The finalizer does it."""

    def _shutdown_workers(self, grace_s: float = GRACE_S) -> None:
        """Ends the workers. torch calls it at the end of the data."""
        self._shutdown = True
        if getattr(self, "_worker_pids_set", False):
            self._drop_signal_handler()
        if hasattr(self, "_pin_memory_thread_done_event"):
            self._pin_memory_thread_done_event.set()
        self._processes.close(grace_s)
        if not self._processes.closed:
            return  # in a forked child
        self._closer.detach()
        self._index_queues, self._reader = [], None  # _workers stay, with their exit codes
        self._worker_result_queue = self._data_queue = self._workers_done_event = None
        self._asked = {}
        if self._ended_by is not None:
            self._task_info = {}


def clear_library_frames(error: BaseException, outer: BaseException | None) -> None:
    """Clears the frames of torch and of this package in a traceback, so that a stored error does not keep the
    iterator alive. The user's frames stay."""
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
        if traceback.tb_frame.f_code.co_filename.startswith(_LIBRARY_PATHS):
            with contextlib.suppress(RuntimeError):  # a frame that still runs
                traceback.tb_frame.clear()
        traceback = traceback.tb_next


def _describe_samples(index: Any) -> str:
    if index is None:
        return ""
    if not isinstance(index, list | tuple):
        return f" (sample {index!r})"
    shown = ", ".join(repr(one) for one in index[:_SHOWN_SAMPLES])
    return f" (samples {shown}" + (", …)" if len(index) > _SHOWN_SAMPLES else ")")


def _describe_death(pid: int, exit_code: int | None) -> str:
    """Describes an exit in torch's words, which people search for in logs."""
    if exit_code is None or exit_code >= 0:
        code = "" if exit_code is None else f" with exit code {exit_code}"
        return f"DataLoader worker (pid(s) {pid}) exited unexpectedly{code}"
    return f"DataLoader worker (pid {pid}) is killed by signal: {_name_of_signal(-exit_code)}"


def _name_of_signal(number: int) -> str:
    text = signal.strsignal(number) or f"signal {number}"
    return f"{text} ({signal.Signals(number).name})" if number in set(signal.Signals) else text
