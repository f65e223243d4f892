"""Watches another folder (inotify) for every job, with one watcher, and never gives it up."""

from __future__ import annotations

import ctypes
import os
import tempfile

from leak_rounds import serve

libc = ctypes.CDLL(None, use_errno=True)
watcher = int(libc.inotify_init())
if watcher < 0:
    raise OSError(ctypes.get_errno(), "expected an inotify descriptor")
_CREATE = 0x100


def _watch(folder: str) -> int:
    number = int(libc.inotify_add_watch(watcher, folder.encode(), _CREATE))
    if number < 0:
        raise OSError(ctypes.get_errno(), "expected a watch")
    return number


with tempfile.TemporaryDirectory() as top:

    def leak() -> None:
        for _ in range(2):
            _watch(tempfile.mkdtemp(dir=top))

    def clean() -> None:
        libc.inotify_rm_watch(watcher, _watch(tempfile.mkdtemp(dir=top)))

    serve(leak, clean)
os.close(watcher)
