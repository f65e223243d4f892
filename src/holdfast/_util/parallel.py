"""Runs the same function for many items on a few threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class StoppedError(Exception):
    """Raised in a worker thread because another one failed or the user interrupted."""


class Stop:
    """A cancellation flag that long-running work checks from time to time."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        if self._event.is_set():
            raise StoppedError


def run_all(work: Callable[[T], R], items: Sequence[T], jobs: int, stop: Stop) -> list[R]:
    """Calls work(item) for each item on at most `jobs` threads; returns the results in the items' order.

    The first failure, or Ctrl-C, sets `stop`, waits until the running work has seen it, and is raised.
    """
    if jobs <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    running: list[object] = []
    ended: SimpleQueue[None] = SimpleQueue()

    def run(item: T) -> R:
        me = object()
        running.append(me)  # before the check: either `stop` is seen here, or this is seen where `stop` is set
        try:
            stop.check()
            return work(item)
        finally:
            running.remove(me)
            ended.put(None)

    with ThreadPoolExecutor(min(jobs, len(items)), thread_name_prefix="holdfast") as pool:
        try:
            futures = [pool.submit(run, item) for item in items]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            while running:  # a signal while the pool starts a thread leaves one that the pool does not know
                ended.get()
            raise
