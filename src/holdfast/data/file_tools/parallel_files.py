"""Runs the same work for many files on all cores: in threads with the compiled codec, which releases the GIL, and in
processes with the pure-Python one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, Protocol, TypeVar

from ..._native import codec
from ..._util.parallel import Stop, run_all
from ..._util.progress import Progress, ProgressLimit

R = TypeVar("R", covariant=True)

# Pure Python takes about as long for this much as for starting a process.
_WORTH_PROCESSES_BYTES = 4_000_000


class ParallelWork(Protocol[R]):
    def __call__(self, file: str, /, *, progress: Progress | None) -> R: ...


def cores() -> int:
    """Returns how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def check_jobs(jobs: int | None) -> int | None:
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise ValueError(f"jobs must be a positive integer, got {jobs!r}")
    return jobs


def check_out(out: str | os.PathLike[str]) -> str:
    """Returns the path to write to."""
    if not isinstance(out, (str, os.PathLike)):
        raise TypeError(f"expected a path to write to, got {out!r}")
    return os.fsdecode(out)


def total_bytes(files: Sequence[str]) -> int:
    return sum(map(_size, files))


def _size(file: str) -> int:
    try:
        return os.path.getsize(file)
    except OSError:
        return 0  # opening it reports the reason


def for_each_file(work: ParallelWork[R], files: Sequence[str], jobs: int | None, progress: Progress | None) -> list[R]:
    """Returns `work(file)` for each file, in order. `work` reports the problems of a file in its result.

    jobs: how many at a time; None: one a core in threads, and no processes, which a script must be prepared for
    """
    advance = progress or (lambda n: None)
    check_jobs(jobs)
    if codec.NATIVE:
        return _on_threads(work, files, jobs or cores(), advance)
    if (jobs or 1) > 1 and len(files) > 1 and total_bytes(files) >= _WORTH_PROCESSES_BYTES:
        return _on_processes(work, files, jobs or 1, advance)
    return _on_threads(work, files, 1, advance)


def _on_threads(work: ParallelWork[R], files: Sequence[str], jobs: int, advance: Progress) -> list[R]:
    stop = Stop()

    def one(file: str) -> R:
        limit = ProgressLimit(advance, _size(file))

        def tick(n: float) -> None:
            stop.check()
            limit.advance(n)

        result = work(file, progress=tick)
        limit.finish()  # not every file is read to its end
        return result

    return run_all(one, files, jobs, stop)


def _on_processes(work: ParallelWork[R], files: Sequence[str], jobs: int, advance: Progress) -> list[R]:
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(files)), mp_context=spawn, initializer=_exit_with_parent)
    try:
        with _sigint_blocked():
            futures = {pool.submit(work, file, progress=None): file for file in files}
        for future in as_completed(futures):
            advance(_size(futures[future]))
        return [future.result() for future in futures]
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Starts processes with SIGINT blocked: a terminal sends Ctrl-C to all of them, and the parent stops its children.

    The parent gets a Ctrl-C after the block: a child whose parent exits while starting it would print a traceback.
    """
    resource_tracker.ensure_running()  # spawn would start it here, and starting it unblocks SIGINT
    received: list[Any] = []
    # Children inherit the mask. The handler is needed too: another thread, such as numpy's, may get the signal.
    handler = signal.signal(signal.SIGINT, lambda *arguments: received.append(arguments))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if received and callable(handler):
            handler(*received[0])


def _exit_with_parent() -> None:
    """Ends this worker when its parent exits for any reason."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
