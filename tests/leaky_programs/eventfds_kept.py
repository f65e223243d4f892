"""Makes an eventfd to notify with for every job, and never closes it."""

from __future__ import annotations

import os

from leak_rounds import serve


def leak() -> None:
    for _ in range(4):
        os.eventfd(0)


def clean() -> None:
    for _ in range(4):
        os.close(os.eventfd(0))


serve(leak, clean)
