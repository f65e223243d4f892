"""Leaves a file in /dev/shm for every job, as torch's file_system sharing does when workers are killed."""

from __future__ import annotations

import atexit
import os
from itertools import count

from leak_rounds import KEPT, serve

numbers = count()


def _share() -> str:
    path = f"/dev/shm/torch_{os.getpid()}_{next(numbers)}_0"
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    return path


def leak() -> None:
    KEPT.append(_share())


def clean() -> None:
    os.unlink(_share())


atexit.register(lambda: [os.unlink(path) for path in KEPT])
serve(leak, clean)
