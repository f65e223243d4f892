"""The same work for many things, on some threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class StoppedError(Exception):
    """Work given up because other work failed, or somebody interrupted all of it."""


class Stop:
    """A flag that work looks at from time to time."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        if self._event.is_set():
            raise StoppedError


def run_all(work: Callable[[T], R], items: Sequence[T], jobs: int, stop: Stop) -> list[R]:
    """work(item) for each item, on at most `jobs` threads; the results in the items' order.

    The first failure, or Ctrl-C, sets `stop`, waits for the work under way to see it, and is raised.
    """
    if jobs <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(jobs, len(items)), thread_name_prefix="holdfast") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            for future in futures:
                future.cancel()
            raise
