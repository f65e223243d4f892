"""Chunks from one file to another, checked on both sides."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from .pure_crc import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer


def copy_checked(
    from_fd: int, offset: int, to_fd: int, place: int, sizes: Buffer, wanted: Buffer, here: Buffer, again: Buffer, /
) -> bytes | None:
    lengths, crcs = (memoryview(one).cast("B").cast("q").tolist() for one in (sizes, wanted))
    total = sum(lengths)
    if len(lengths) != len(crcs):
        raise ValueError("expected a size and a checksum, as int64, for every chunk")
    if min(lengths, default=0) < 0 or total > min(len(memoryview(here)), len(memoryview(again))):
        raise ValueError("expected two buffers that hold all chunks")
    first, second = memoryview(here)[:total], memoryview(again)[:total]
    try:
        if not _read(from_fd, first, offset):
            return None
        found = list(_crcs(first, lengths))
        if any(crc not in (-1, got) for crc, got in zip(crcs, found, strict=True)):
            return None
        done = 0
        while done < total:
            done += os.pwrite(to_fd, first[done:], place + done)
        if not _read(to_fd, second, place) or list(_crcs(second, lengths)) != found:
            return None
    except OSError:
        return None
    return struct.pack(f"={len(found)}I", *found)


def _read(fd: int, view: memoryview, offset: int) -> bool:
    done = 0
    if offset < 0 and len(view):
        return False  # to preadv -1 is where the file stands
    while done < len(view):
        n = os.preadv(fd, [view[done:]], offset + done)
        if not n:
            return False
        done += n
    return True


def _crcs(view: memoryview, lengths: list[int]) -> Iterator[int]:
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        yield crc32c(view[start:stop])
