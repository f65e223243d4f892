"""Creates a file watcher for every job. Two a round: a user may have 128 in all."""

from __future__ import annotations

import ctypes
import os

from leak_rounds import serve

libc = ctypes.CDLL(None, use_errno=True)


def _watch() -> int:
    fd = int(libc.inotify_init())
    if fd < 0:
        raise OSError(ctypes.get_errno(), "expected an inotify descriptor")
    return fd


def leak() -> None:
    for _ in range(2):
        _watch()


def clean() -> None:
    os.close(_watch())


serve(leak, clean)
