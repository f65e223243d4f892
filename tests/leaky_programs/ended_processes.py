"""Keeps the Process objects of children that have ended: each holds a pipe in both directions."""

from __future__ import annotations

import multiprocessing

from leak_rounds import KEPT, serve

FORK = multiprocessing.get_context("fork")


def leak() -> None:
    for _ in range(2):
        process = FORK.Process(target=int)
        process.start()
        process.join()
        KEPT.append(process)


def clean() -> None:
    process = FORK.Process(target=int)
    process.start()
    process.join()
    process.close()
    KEPT.append(process)


serve(leak, clean)
