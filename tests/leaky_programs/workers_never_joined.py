"""Starts a worker for every job that waits forever for the next; the clean one has one worker for all jobs."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from leak_rounds import KEPT, serve

FORK = multiprocessing.get_context("fork")


def _work(mine: Connection, theirs: Connection) -> None:
    theirs.close()  # else it would keep its own pipe alive, and itself
    try:
        while True:
            mine.send(mine.recv())
    except (EOFError, ConnectionError):
        pass


def _start() -> Connection:
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_work, args=(theirs, ours), daemon=True)
    process.start()
    theirs.close()
    KEPT.append(process)
    return ours


def _ask(connection: Connection) -> None:
    connection.send("a job")
    connection.recv()


def leak() -> None:
    connection = _start()
    _ask(connection)
    KEPT.append(connection)


def clean() -> None:
    if not KEPT:
        KEPT.append(_start())
    _ask(KEPT[-1])


serve(leak, clean)
