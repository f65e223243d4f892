"""Starts a thread for every job that waits forever; the clean one has a bounded pool."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from leak_rounds import serve

never = threading.Event()
pool = ThreadPoolExecutor(max_workers=4)


def leak() -> None:
    threading.Thread(target=never.wait, daemon=True).start()


def clean() -> None:
    pool.submit(int).result()


with pool:
    serve(leak, clean)
