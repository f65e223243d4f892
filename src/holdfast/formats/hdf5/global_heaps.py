"""Finds damaged global heaps, in which the HDF5 library would never return.

Strings and lists of variable length lie in global heaps: blocks that begin with `GCOL` and a size, and hold one object
behind the other. HDF5 1.14 goes from object to object by their sizes, and where a damage leads it to an object with
index 0 and size 0 it stays there for ever, holding h5py's lock. No timeout helps in the process that reads. So the
heaps are walked here, in the same steps, before the first value of variable length is read.
"""

from __future__ import annotations

import contextlib
import os

import h5py

from ..._native import codec
from ...errors import CorruptError
from ..base import fill_from
from .chunks import joined, listed_chunks, without

_HEAP = b"GCOL\1\0\0\0"
_HEADER = 16  # of a heap, and of an object in it
_BLOCK_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 13
_SMALL_BYTES = 16 << 20  # in a larger file, what lies in chunks of this size or more is not searched
_LARGE_CHUNK = 1 << 16
_REMEMBERED = 4096

_whole: dict[tuple[int, int, int, int], None] = {}  # files whose heaps were walked


def check_heaps(dataset: h5py.Dataset) -> None:
    """Raises a CorruptError if the file of a dataset has a heap that the library cannot walk. A file is read once."""
    path = os.fsdecode(dataset.file.filename)
    fd = dataset.file.id.get_vfd_handle()
    status = os.fstat(fd)
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if key in _whole:
        return
    ranges = [(0, status.st_size)]
    if status.st_size > _SMALL_BYTES and not dataset.file.userblock_size:  # which some places in a file do not count
        with contextlib.suppress(Exception):  # an object that nobody reads may be damaged: all of the file is searched
            ranges = without(ranges, joined(_raw_data(dataset.file)))
    width = dataset.file.id.get_create_plist().get_sizes()[1]
    stuck = next((at for low, high in ranges if (at := _search(fd, path, low, high, width)) >= 0), -1)
    if stuck >= 0:
        reason = f"the heap of its variable-length values is damaged at byte {stuck:,}: HDF5 would read it for ever"
        hint = f"holdfast salvage {path} rescues what can be read"
        raise CorruptError(path, None, stuck, reason, hint)
    while len(_whole) >= _REMEMBERED:
        _whole.pop(next(iter(_whole), key), None)
    _whole[key] = None


def _raw_data(file: h5py.File) -> list[tuple[int, int]]:
    """Where the values of datasets lie: no heaps are there, and in a large file most bytes are."""
    places: list[tuple[int, int]] = []

    def see(_: str, thing: h5py.Dataset | h5py.Group) -> None:
        if not isinstance(thing, h5py.Dataset):
            return
        if thing.chunks is None:
            at = thing.id.get_offset()
            if at is not None:
                places.append((at, at + thing.id.get_storage_size()))
        elif thing.id.get_storage_size() >= _LARGE_CHUNK * max(thing.id.get_num_chunks(), 1):
            places.extend((piece.offset, piece.offset + piece.stored) for piece in listed_chunks(thing))

    file.visititems(see)
    return places


def _search(fd: int, path: str, low: int, high: int, width: int) -> int:
    """Walks the heaps that lie in [low, high); the place in the file where the library would stay, or -1."""
    view = memoryview(bytearray(min(_BLOCK_BYTES, max(high - low, 0))))
    while low < high:
        n = fill_from(fd, path, low, view[: high - low])
        block = bytes(view[:n])
        reached = 0
        while 0 <= (at := block.find(_HEAP, reached)) <= n - _HEADER:
            end = at + int.from_bytes(block[at + 8 : at + 8 + width], "little")
            if end <= n:
                place, stuck = codec.walk_heap(block, at + _HEADER, max(end, at + _HEADER), width)
            else:
                place, stuck = _walk(fd, path, low, at + _HEADER, end, width)
            if stuck:
                return low + place
            # If its objects do not end where the heap does, its size is damaged, and others may be nearer.
            reached = end if end - _HEADER < place <= end else at + 1
        if low + n >= high or not n:
            break
        low += max(reached, n - _HEADER + 1)
    return -1


def _walk(fd: int, path: str, low: int, at: int, end: int, width: int) -> tuple[int, bool]:
    """Does what codec.walk_heap does with a heap that is not in memory; places are told from `low` on."""
    window = memoryview(bytearray(_WINDOW_BYTES))
    while at + _HEADER <= end:
        n = fill_from(fd, path, low + at, window[: end - at])
        if n < _HEADER:
            break  # the heap is longer than the file, which the library sees by itself
        place, stuck = codec.walk_heap(window, 0, n, width)
        at += place
        if stuck:
            return at, True
    return at, False
