"""A thread for every job that waits for ever; the twin has a bounded pool."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from rounds import serve

never = threading.Event()
pool = ThreadPoolExecutor(max_workers=4)


def leak() -> None:
    threading.Thread(target=never.wait, daemon=True).start()


def honest() -> None:
    pool.submit(int).result()


with pool:
    serve(leak, honest)
