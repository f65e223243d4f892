"""Where a process is in its work, in memory that outlives it: what it was at when it died is known to the byte."""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple

_BYTES = 512
_FIXED = struct.Struct("<QqqqI")  # bytes done, number of the piece, its offset, pieces done in all, how many axes
_MOST_AXES = 32


class Place(NamedTuple):
    """`piece` -1: not in a piece of a dataset, but at its head."""

    done_bytes: int = 0
    piece: int = -1
    offset: int = -1
    pieces: int = 0
    start: tuple[int, ...] = ()


class SharedPlace:
    """One page of shared memory, behind a descriptor that a child is given."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("holdfast-place") if fd is None else fd
        try:
            if fd is None:
                os.ftruncate(self.fd, _BYTES)
            self._memory = mmap.mmap(self.fd, _BYTES)
        except BaseException:
            os.close(self.fd)
            raise
        if fd is None:
            self.set(Place())

    def set(self, place: Place) -> None:
        start = place.start[:_MOST_AXES]
        _FIXED.pack_into(self._memory, 0, place.done_bytes, place.piece, place.offset, place.pieces, len(start))
        struct.pack_into(f"<{len(start)}q", self._memory, _FIXED.size, *start)

    def get(self) -> Place:
        done_bytes, piece, offset, pieces, axes = _FIXED.unpack_from(self._memory, 0)
        start = struct.unpack_from(f"<{min(axes, _MOST_AXES)}q", self._memory, _FIXED.size)
        return Place(done_bytes, piece, offset, pieces, start)

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)
