"""The processes and queues of one iterator, kept apart from it.

The collector may take a queue before the iterator that would send "stop" through it; then every worker is waited for in
vain. A crew is held by the finalizer: whatever becomes garbage, in whatever order, it is whole when it is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from multiprocessing import process
from multiprocessing.connection import wait
from typing import Any

from .._util.finalize import all_opened, close_leaked, finish_finalizers, note_opened
from .._util.process import ProcessMark, end_with_marked, mark_this_process
from ..procfs.processes import is_stopped
from ..procfs.procfs import REAL, list_pids, read_or_none
from .transport import PinQueue, send_parcels

GRACE_S = 5.0  # what torch gives a worker to finish the batch it is at
_LOOK_S = 0.25
_KILLED_S = 5.0
_FEEDER_S = 1.0


class LoaderWorkers:
    """Stands in for the multiprocessing context that torch's iterator makes its queues and workers with."""

    def __init__(self, context: Any, feed: PinQueue | None, *, copies: bool) -> None:
        self._context = context
        self._feed = feed
        self._copies = copies
        self.pid = os.getpid()
        self._trainer = mark_this_process()
        self._queues: list[Any] = []
        self._events: list[Any] = []
        self._workers: list[Any] = []
        self._folder: str | None = None
        self.closed = False
        self.iterator: Callable[[], Any] = lambda: None
        close_leaked()
        note_opened(self)

    # ---- what torch asks a context for ---------------------------------------------------------------------

    def Queue(self) -> Any:
        queue = self._context.Queue()
        queue._ignore_epipe = True  # else the thread that feeds a dead worker prints a traceback
        if self._feed is not None and not self._queues:
            self._feed.attach(queue)
        self._queues.append(queue)
        return queue

    def Event(self) -> Any:
        event = self._context.Event()
        self._events.append(event)
        return event

    def Process(self, *, target: Any, args: tuple[Any, ...]) -> Any:
        if self._folder is None:
            with contextlib.suppress(OSError):  # then each makes its own, or says why it cannot
                self._folder = tempfile.mkdtemp(prefix="pymp-")
        results = self._queues[0] if self._copies else None
        worker = self._context.Process(target=_work_for, args=(self._trainer, self._folder, results, target, *args))
        self._workers.append(worker)
        return worker

    @property
    def is_here(self) -> bool:
        """False in a forked child, whose copy reaches the workers of another process."""
        return os.getpid() == self.pid

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self, grace_s: float = GRACE_S) -> None:
        """Nothing is left when it returns: workers, threads, pipes. In a forked child it does nothing."""
        if self.closed or not self.is_here:
            return
        self.closed = True
        workers = [worker for worker in self._workers if worker.pid is not None]
        try:
            self._ask_to_end()
            _wait_for(workers, grace_s)
        finally:
            _kill(workers)
            if self._copies:
                _sweep_shared_memory({worker.pid for worker in workers if not worker.is_alive()})
            if self._feed is not None:
                self._feed.close()
            for queue in self._queues:
                _close_queue(queue)
            for worker in workers:
                _close_worker(worker)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            # Under spawn and forkserver a semaphore's file in /dev/shm goes with its object.
            self._queues, self._events, self._workers = [], [], []

    def _ask_to_end(self) -> None:
        for event in self._events:
            event._flag.release()  # not set(): that waits for a lock a killed worker may have died with
        for queue in self._queues[1:]:  # the first is the one that results come through
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # no thread can be started: killed then
                queue.put(None)


def _work_for(trainer: ProcessMark, folder: str | None, results: Any, target: Callable[..., None], *args: Any) -> None:
    """What a worker runs: `target` is torch's own loop, whose watch over the trainer a fork server deceives.

    `folder` is for the sockets that batches are fetched through. One of the worker's own would stay if it were killed.
    `results` is the queue that batches are sent through, if they are copied in the trainer.
    """
    end_with_marked(trainer)
    if folder is not None:
        process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]
    if results is not None:
        send_parcels(results)
    target(*args)


def _wait_for(workers: list[Any], grace_s: float) -> None:
    deadline = time.monotonic() + grace_s
    while True:
        living = [worker for worker in workers if worker.is_alive()]
        for worker in living:
            if is_stopped(worker.pid):
                worker.kill()
        left_s = deadline - time.monotonic()
        if not living or left_s <= 0:
            return
        wait([worker.sentinel for worker in living], timeout=min(left_s, _LOOK_S))


def _kill(workers: list[Any]) -> None:
    for worker in workers:
        if worker.is_alive():
            worker.kill()  # not SIGTERM: it waits while a process is stopped
    for worker in workers:
        worker.join(timeout=_KILLED_S)


def _close_worker(worker: Any) -> None:
    """Gives back the descriptors of a process that has ended.

    Process.close() would also forget how it ended, which those who keep the process may still ask, as with torch's.
    """
    if worker.exitcode is not None:  # else a kill waits for a disk that does not answer
        worker._popen.close()
        worker._sentinel = -1  # the number will be that of another file


def _sweep_shared_memory(pids: set[int]) -> None:
    """Removes batches shared by file name and never fetched: torch_shm_manager does so later, if at all.

    A file that a process has mapped is left to it: torch removes it when the last tensor in it is dropped, and aborts
    the process if it is gone by then. Workers may have sent such tensors on their own, here or elsewhere.
    """
    with contextlib.suppress(OSError):
        left = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if _torch_pid(name) in pids}
        if left:
            left -= _mapped_files()
        for path in left:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _torch_pid(name: str) -> int | None:
    parts = name.split("_")  # torch_PID_RANDOM_NUMBER
    return int(parts[1]) if parts[0] == "torch" and len(parts) > 1 and parts[1].isdigit() else None


def _mapped_files() -> set[str]:
    """Of all processes that may have mapped files of this user, which are those whose maps this user may read."""
    maps = (read_or_none(REAL, f"/proc/{pid}/maps") or "" for pid in list_pids(REAL))
    return {line.split(maxsplit=5)[-1] for text in maps for line in text.splitlines() if "/dev/shm/torch_" in line}


def _close_queue(queue: Any) -> None:
    queue.close()
    feeder = queue._thread
    if feeder is not None:
        feeder.join(timeout=_FEEDER_S)
        if feeder.is_alive():  # stuck in a full pipe whose only reader left is ours
            queue._reader.close()
            feeder.join()
    queue._reader.close()
    queue._writer.close()


def _close_all() -> None:
    finish_finalizers()
    for opened in all_opened():
        if isinstance(opened, LoaderWorkers):
            with contextlib.suppress(Exception):  # the others are to be ended as well
                opened.close()


# Before multiprocessing's own, which runs later and joins a stopped worker for ever.
atexit.register(_close_all)
