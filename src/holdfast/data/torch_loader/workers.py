"""Starts and ends the worker processes and queues of one loader iterator.

The garbage collector may take a queue before the iterator that would send "stop" through it, and then every worker is
waited for in vain. The finalizer holds this object, so everything is still here when it is closed.
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

from ..._util.finalize import all_opened, close_leaked, finish_finalizers, note_opened
from ..._util.process import ProcessMark, end_with_marked, mark_this_process
from ...procfs.processes import is_stopped
from ...procfs.procfs import REAL, list_pids, read_or_none
from .transport import PinQueue, send_as_one_buffer

GRACE_S = 5.0  # what torch gives a worker to finish its batch
_POLL_S = 0.25
_KILLED_S = 5.0
_FEEDER_S = 1.0


class LoaderWorkers:
    """Replaces the multiprocessing context from which torch's iterator gets its queues and workers."""

    def __init__(self, context: Any, pin_queue: PinQueue | None, *, copies: bool) -> None:
        self._context = context
        self._pin_queue = pin_queue
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

    # ---- the context that torch uses -----------------------------------------------------------------------

    def Queue(self) -> Any:
        queue = self._context.Queue()
        queue._ignore_epipe = True  # otherwise the thread that feeds a dead worker prints a traceback
        if self._pin_queue is not None and not self._queues:
            self._pin_queue.attach(queue)
        self._queues.append(queue)
        return queue

    def Event(self) -> Any:
        event = self._context.Event()
        self._events.append(event)
        return event

    def Process(self, *, target: Any, args: tuple[Any, ...]) -> Any:
        if self._folder is None:
            with contextlib.suppress(OSError):  # then each worker makes its own, or raises
                self._folder = tempfile.mkdtemp(prefix="pymp-")
        results = self._queues[0] if self._copies else None
        worker = self._context.Process(target=_run_worker, args=(self._trainer, self._folder, results, target, *args))
        self._workers.append(worker)
        return worker

    @property
    def is_here(self) -> bool:
        """False in a forked child: the workers belong to its parent."""
        return os.getpid() == self.pid

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self, grace_s: float = GRACE_S) -> None:
        """Ends all workers and threads and closes all pipes. Does nothing in a forked child."""
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
                _remove_shared_memory({worker.pid for worker in workers if not worker.is_alive()})
            if self._pin_queue is not None:
                self._pin_queue.close()
            for queue in self._queues:
                _close_queue(queue)
            for worker in workers:
                _close_worker(worker)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            # Under spawn and forkserver, the file of a semaphore in /dev/shm is removed with its object.
            self._queues, self._events, self._workers = [], [], []

    def _ask_to_end(self) -> None:
        for event in self._events:
            event._flag.release()  # not set(), which waits for a lock that a killed worker may have held
        for queue in self._queues[1:]:  # the first carries the results
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # no thread can be started: kill it later
                queue.put(None)


def _run_worker(
    trainer: ProcessMark, folder: str | None, results: Any, target: Callable[..., None], *args: Any
) -> None:
    """Runs torch's worker loop `target`, and ends with the trainer, which torch does not notice under a fork server.

    folder:   for the sockets that batches are fetched through; a killed worker would leave one of its own behind
    results:  the queue that batches are sent through, if the trainer copies them
    """
    end_with_marked(trainer)
    if folder is not None:
        process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]
    if results is not None:
        send_as_one_buffer(results)
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
        wait([worker.sentinel for worker in living], timeout=min(left_s, _POLL_S))


def _kill(workers: list[Any]) -> None:
    for worker in workers:
        if worker.is_alive():
            worker.kill()  # not SIGTERM, which a stopped process does not handle
    for worker in workers:
        worker.join(timeout=_KILLED_S)


def _close_worker(worker: Any) -> None:
    """Closes the descriptors of a process that has ended.

    Process.close() would also drop the exit code, which the holder of the process may read, as with torch's loader.
    """
    if worker.exitcode is not None:  # otherwise it hangs in the kernel, on a disk that does not answer
        worker._popen.close()
        worker._sentinel = -1  # another file may get this number


def _remove_shared_memory(pids: set[int]) -> None:
    """Removes batches that were shared by file name and never fetched: torch_shm_manager does so later, if at all.

    A mapped file stays: torch removes it with the last tensor in it, and aborts the process if it is gone by then.
    Workers may have sent such tensors to any process.
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
    """Returns what other processes have mapped of /dev/shm/torch_*, as far as this user may read their maps."""
    maps = (read_or_none(REAL, f"/proc/{pid}/maps") or "" for pid in list_pids(REAL))
    return {line.split(maxsplit=5)[-1] for text in maps for line in text.splitlines() if "/dev/shm/torch_" in line}


def _close_queue(queue: Any) -> None:
    queue.close()
    feeder = queue._thread
    if feeder is not None:
        feeder.join(timeout=_FEEDER_S)
        if feeder.is_alive():  # blocked on a full pipe whose only remaining reader is this process
            queue._reader.close()
            feeder.join()
    queue._reader.close()
    queue._writer.close()


def _close_all() -> None:
    finish_finalizers()
    for opened in all_opened():
        if isinstance(opened, LoaderWorkers):
            with contextlib.suppress(Exception):  # go on with the others
                opened.close()


# Runs before multiprocessing's own exit function, which joins a stopped worker forever.
atexit.register(_close_all)
