"""Makes a timer (timerfd) for every job, and never closes it."""

from __future__ import annotations

import ctypes
import os
import time

from leak_rounds import serve

libc = ctypes.CDLL(None, use_errno=True)


def _timer() -> int:
    fd = int(libc.timerfd_create(time.CLOCK_MONOTONIC, 0))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "expected a timer")
    return fd


def leak() -> None:
    for _ in range(4):
        _timer()


def clean() -> None:
    for _ in range(4):
        os.close(_timer())


serve(leak, clean)
