"""Process objects of children that have ended are kept: each holds a pipe both ways."""

from __future__ import annotations

import multiprocessing

from rounds import KEPT, serve

FORK = multiprocessing.get_context("fork")


def leak() -> None:
    for _ in range(2):
        process = FORK.Process(target=int)
        process.start()
        process.join()
        KEPT.append(process)


def honest() -> None:
    process = FORK.Process(target=int)
    process.start()
    process.join()
    process.close()
    KEPT.append(process)


serve(leak, honest)
