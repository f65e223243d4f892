"""Opens a connection to a multiprocessing Manager for every call; the Manager's own proxies share one."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Client
from typing import Any

from leak_rounds import KEPT, serve

manager = multiprocessing.get_context("fork").Manager()
shared: Any = manager.dict()


def leak() -> None:
    for _ in range(4):
        KEPT.append(Client(manager.address, authkey=multiprocessing.current_process().authkey))


def clean() -> None:
    shared["calls"] = shared.get("calls", 0) + 1


with manager:
    serve(leak, clean)
    for connection in KEPT:
        connection.close()
