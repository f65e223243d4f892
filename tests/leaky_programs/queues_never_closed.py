"""Creates a queue for every job, uses it, and keeps it without close()."""

from __future__ import annotations

import multiprocessing

from leak_rounds import KEPT, serve

FORK = multiprocessing.get_context("fork")


def leak() -> None:
    for _ in range(2):
        queue = FORK.SimpleQueue()
        queue.put(1)
        queue.get()
        KEPT.append(queue)


def clean() -> None:
    queue = FORK.Queue()
    queue.put(1)
    queue.get()
    queue.close()
    queue.join_thread()
    KEPT.append(queue)


serve(leak, clean)
