"""Bytes of an open file, from any place: without a file offset that somebody else could move."""

from __future__ import annotations

import os

from ..errors import InputError


def fill_from(fd: int, path: str, offset: int, view: memoryview) -> int:
    """Fills the view from the file's byte `offset` on; fewer bytes only at the end. `path`: for errors."""
    got = 0
    while got < len(view):
        try:
            n = os.preadv(fd, [view[got:]], offset + got)
        except OSError as error:
            raise InputError(f"{path}: cannot read at byte {offset + got:,}: {error.strerror}") from error
        if n == 0:
            break
        got += n
    return got
