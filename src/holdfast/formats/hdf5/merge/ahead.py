"""Room on the disk for the result, taken while the child still loads the HDF5 library."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_STEP_BYTES = 64 << 20
_KEEP_SIZE = 1  # of <linux/falloc.h>: the file seems as short as before


class RoomAhead:
    """A thread for as long as the block lasts. What a filesystem cannot do is left out: this is for speed alone."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._take, name="holdfast-room", daemon=True)

    def _take(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return
        try:
            for at in range(0, self._size, _STEP_BYTES):
                size = min(_STEP_BYTES, self._size - at)
                if self._stop.is_set() or libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(at), ctypes.c_long(size)):
                    return  # a full disk, too: whoever writes finds out
        finally:
            os.close(fd)

    def __enter__(self) -> Self:
        if self._size >= _STEP_BYTES:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if kind is None:
            os.truncate(self._path, os.path.getsize(self._path))  # what was taken behind the end is given back
