"""The same work for many files, on all cores: threads where the compiled codec lets go of the GIL, else processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, Protocol, TypeVar

import click

from .._native import codec
from .._util.parallel import Stop, run_all
from .console import Screen, bar_for

R = TypeVar("R", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])

# Starting a process takes about as long as pure Python takes for this much.
_WORTH_PROCESSES_BYTES = 4_000_000


class ParallelWork(Protocol[R]):
    def __call__(self, file: str, /, *, progress: Callable[[int], None] | None) -> R: ...


def cores() -> int:
    """Those this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def jobs_option(function: F) -> F:
    said = "How many files at the same time.  [default: all cores]"
    return click.option("-j", "--jobs", type=click.IntRange(min=1), default=cores, metavar="N", help=said)(function)


def total_bytes(files: Sequence[str]) -> int:
    return sum(map(_size, files))


def _size(file: str) -> int:
    try:
        return os.path.getsize(file)
    except OSError:
        return 0  # whoever opens it says why


def for_each_file(work: ParallelWork[R], files: Sequence[str], jobs: int, screen: Screen, doing: str) -> list[R]:
    """work(file) for each, results in the files' order. `work` keeps what goes wrong with a file in its result."""
    total = total_bytes(files)
    with bar_for(screen, doing, total) as bar:
        if codec.NATIVE:
            return _on_threads(work, files, jobs, bar.advance)
        if jobs > 1 and len(files) > 1 and total >= _WORTH_PROCESSES_BYTES:
            return _on_processes(work, files, jobs, bar.advance)
        return _on_threads(work, files, 1, bar.advance)


def _on_threads(work: ParallelWork[R], files: Sequence[str], jobs: int, advance: Callable[[int], None]) -> list[R]:
    stop = Stop()

    def one(file: str) -> R:
        left = _size(file)

        def tick(n: int) -> None:
            nonlocal left
            stop.check()
            n = min(n, left)
            left -= n
            advance(n)

        result = work(file, progress=tick)
        advance(left)  # not every file is gone through to its end
        return result

    return run_all(one, files, jobs, stop)


def _on_processes(work: ParallelWork[R], files: Sequence[str], jobs: int, advance: Callable[[int], None]) -> list[R]:
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(files)), mp_context=spawn, initializer=_end_with_parent)
    try:
        with _born_deaf():
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
def _born_deaf() -> Iterator[None]:
    """Processes started in here never get Ctrl-C, which a terminal sends to all: their parent ends them.

    Nor does it reach the parent while it starts them: a child whose parent leaves half-way says so in a traceback.
    """
    resource_tracker.ensure_running()  # starting it unblocks SIGINT, and spawn starts it
    came: list[Any] = []
    # The mask is the children's. Another thread (numpy's) can take the signal, and then the handler runs all the same.
    handler = signal.signal(signal.SIGINT, lambda *received: came.append(received))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if came and callable(handler):
            handler(*came[0])


def _end_with_parent() -> None:
    """Whatever becomes of the parent, no worker is left behind."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
