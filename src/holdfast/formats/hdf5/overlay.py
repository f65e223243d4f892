"""A file read through its mended superblock: the library sees a closed file, the file on disk stays as it is.

No copy is made: a damaged file may be larger than what is free on the disk, and a copy is one more thing that can fail.
"""

from __future__ import annotations

import io
import os
from typing import Any

from .superblock import Superblock, mended


class Overlay(io.RawIOBase):
    """For h5py's driver of Python file objects. Reading only."""

    def __init__(self, path: str, block: Superblock) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._fd).st_size
        self._patch, self._patch_at = mended(block, self._size), block.at
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, into: Any) -> int:
        view = memoryview(into).cast("B")
        done = 0
        while done < len(view):
            n = os.preadv(self._fd, [view[done:]], self._at + done)
            if not n:
                break
            done += n
        low, high = max(self._at, self._patch_at), min(self._at + done, self._patch_at + len(self._patch))
        if low < high:
            view[low - self._at : high - self._at] = self._patch[low - self._patch_at : high - self._patch_at]
        self._at += done
        return done

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        super().close()
