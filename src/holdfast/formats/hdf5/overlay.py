"""A file read through its mended superblock: the library sees a closed file, the file on disk stays as it is.

No copy is made: a damaged file may be larger than what is free on the disk, and a copy is one more thing that can fail.
"""

from __future__ import annotations

import io
import os
from typing import Any

from .superblock import Superblock, mended, parse_superblock, with_root


class Overlay(io.RawIOBase):
    """For h5py's driver of Python file objects. Reading only.

    stretch   a file that is cut seems as long as it was, and reading behind the cut is an error: a dataset without
              chunks that was cut can be opened in no other way
    """

    def __init__(self, path: str, block: Superblock, *, stretch: bool = False) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._fd).st_size
        if stretch:
            self._size = max(self._size, block.end)
        self._patch, self._patch_at = mended(block, self._size), block.at
        self._tail = b""
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
        if done < len(view) and self._at + done < self._size:
            done += self._behind(self._at + done, view[done:])
        low, high = max(self._at, self._patch_at), min(self._at + done, self._patch_at + len(self._patch))
        if low < high:
            view[low - self._at : high - self._at] = self._patch[low - self._patch_at : high - self._patch_at]
        self._at += done
        return done

    def _behind(self, at: int, view: memoryview) -> int:
        if not self._tail:
            raise OSError(f"the file is cut at byte {at:,}")
        start = len(self._tail) - (self._size - at)
        data = self._tail[start : start + len(view)]
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        super().close()


class Rootless(Overlay):
    """A file whose superblock is lost, read with an empty file's in its place, whose empty root group is put behind it.

    `empty` is all of such a file. Nothing is listed then, but what is found by its bytes can be opened.
    """

    def __init__(self, path: str, empty: bytes) -> None:
        block = parse_superblock(empty)
        assert block is not None
        super().__init__(path, block)
        size, self._tail = self._size, empty[len(block.raw) :]
        self._patch = with_root(block, root=size, end=size + len(self._tail))
        self._patch_at = 0
        self._size = size + len(self._tail)
