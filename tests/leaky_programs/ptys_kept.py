"""Opens a terminal (pty) for every command, and never closes it."""

from __future__ import annotations

import os

from leak_rounds import serve


def leak() -> None:
    for _ in range(2):
        os.openpty()


def clean() -> None:
    for fd in os.openpty():
        os.close(fd)


serve(leak, clean)
