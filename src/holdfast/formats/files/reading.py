"""Whole files, one behind the other in one buffer, by as few system calls as there can be."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError, cannot_open
from .problems import changed

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO that took a file's place would block the open else


def read_files(paths: Iterable[bytes], rows: Iterable[int], offsets: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The files' bytes, file i from offsets[i] to offsets[i + 1], as many as it has. `rows` name them in errors."""
    buffer = np.empty(int(offsets[-1]) + 1, np.uint8)
    view = buffer.data
    ends = offsets.tolist()
    start = 0
    # These names are looked up for every one of many thousands of files.
    open_, readv, close = os.open, os.readv, os.close
    for path, row, end in zip(paths, rows, ends[1:], strict=True):
        try:
            fd = open_(path, _FLAGS)
        except OSError as error:
            raise cannot_open(os.fsdecode(path), error) from error
        try:
            # One byte to spare, where the next file will begin: it stays untouched unless this one has grown.
            if readv(fd, [view[start : end + 1]]) != end - start:
                _read_on(fd, path, row, view[start : end + 1])
        except OSError as error:
            raise InputError(f"{os.fsdecode(path)}: cannot read: {error.strerror}") from error
        finally:
            close(fd)
        start = end
    return buffer[:-1]


def _read_on(fd: int, path: bytes, row: int, view: memoryview) -> None:
    """A file system may give less at once than there is; or the file is not what it was."""
    wanted, got = len(view) - 1, 0
    if os.fstat(fd).st_size == wanted:  # not so with what is no file, where the next call would fail, too
        while got <= wanted and (n := os.preadv(fd, [view[got:]], got)):
            got += n
    if got != wanted:
        raise changed(path, row, fd, wanted)
