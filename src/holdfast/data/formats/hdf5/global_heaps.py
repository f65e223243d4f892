"""Detects corrupt global heaps, in which the HDF5 library would loop forever.

Strings and lists of variable length lie in global heaps: blocks that begin with `GCOL` and a size, and hold one object
after the other. HDF5 1.14 goes from object to object by their sizes, and at an object with index 0 and size 0 it loops
forever, holding h5py's lock, so no timeout in the same process helps. The heaps are therefore walked here, in the same
steps, before the first value of variable length is read. Verify and salvage, which go on after a corruption, show such
a heap to the library as one that ends before it.
"""

from __future__ import annotations

import contextlib
import os

import h5py

from ...._native import codec
from ....errors import CorruptError
from ..base import fill_from
from .chunks import listed_chunks, merge_ranges, subtract_ranges
from .file_state import HeapEnd

_HEAP = b"GCOL\1\0\0\0"
_HEADER = 16  # of a heap, and of an object in it
_BLOCK_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 13
_SMALL_BYTES = 16 << 20  # in a larger file, datasets with chunks of _LARGE_CHUNK or more are not searched
_LARGE_CHUNK = 1 << 16
_MAX_CHECKED = 4096
_CHECKS_INDICES = (1, 14, 6)  # this HDF5 raises an error for an object that its heap does not have

_checked: dict[tuple[int, int, int, int], None] = {}  # files without a corrupt heap


def check_heaps(dataset: h5py.Dataset) -> None:
    """Raises CorruptError if the file of a dataset has a heap that the library cannot walk. Reads each file once."""
    path = os.fsdecode(dataset.file.filename)
    fd = dataset.file.id.get_vfd_handle()
    status = os.fstat(fd)
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if key in _checked:
        return
    ranges = [(0, status.st_size)]
    if status.st_size > _SMALL_BYTES and not dataset.file.userblock_size:  # some offsets do not include it
        with contextlib.suppress(Exception):  # an unrelated object may be corrupt: then the whole file is searched
            ranges = subtract_ranges(ranges, merge_ranges(_raw_data(dataset.file)))
    width = dataset.file.id.get_create_plist().get_sizes()[1]
    stuck = next((at for low, high in ranges if (at := _search(fd, path, low, high, width)) >= 0), -1)
    if stuck >= 0:
        reason = f"the heap of its variable-length values is corrupt at byte {stuck:,}: HDF5 would loop forever"
        hint = f"`holdfast salvage {path} OUT` copies what can be read"
        raise CorruptError(path, None, stuck, reason, hint)
    while len(_checked) >= _MAX_CHECKED:
        _checked.pop(next(iter(_checked), key), None)
    _checked[key] = None


def find_heap_ends(path: str, width: int) -> list[HeapEnd]:
    """Returns where the heaps of a small file end in which the library would loop; none of a large one."""
    if h5py.version.hdf5_version_tuple < _CHECKS_INDICES or os.path.getsize(path) > _SMALL_BYTES:
        return []
    with open(path, "rb") as file:
        data = file.read()
    found, heap = [], -1
    while (heap := data.find(_HEAP, heap + 1)) >= 0:
        end = heap + int.from_bytes(data[heap + 8 : heap + 8 + width], "little")
        if end <= len(data) and codec.walk_heap(data, heap + _HEADER, max(end, heap + _HEADER), width)[1]:
            at = _last_object(data, heap + _HEADER, width)
            found.append(HeapEnd(heap, at, bytes(8) + (end - at).to_bytes(width, "little")))
    return found


def _last_object(data: bytes, at: int, width: int) -> int:
    """Returns the object before that at which the library would loop: its size may be what is corrupt."""
    last = at
    while True:
        size = int.from_bytes(data[at + 8 : at + 8 + width], "little")
        step = _HEADER + (size + 7) // 8 * 8 if any(data[at : at + 2]) else size
        if not step:
            return last
        last, at = at, at + step


def _raw_data(file: h5py.File) -> list[tuple[int, int]]:
    """Returns the byte ranges of dataset values: they hold no heaps, and are most of a large file."""
    ranges_found: list[tuple[int, int]] = []

    def see(_: str, thing: h5py.Dataset | h5py.Group) -> None:
        if not isinstance(thing, h5py.Dataset):
            return
        if thing.chunks is None:
            at = thing.id.get_offset()
            if at is not None:
                ranges_found.append((at, at + thing.id.get_storage_size()))
        elif thing.id.get_storage_size() >= _LARGE_CHUNK * max(thing.id.get_num_chunks(), 1):
            ranges_found.extend((piece.offset, piece.offset + piece.stored) for piece in listed_chunks(thing))

    file.visititems(see)
    return ranges_found


def _search(fd: int, path: str, low: int, high: int, width: int) -> int:
    """Walks the heaps in [low, high); returns the offset at which the library would loop, or -1."""
    view = memoryview(bytearray(min(_BLOCK_BYTES, max(high - low, 0))))
    while low < high:
        n = fill_from(fd, path, low, view[: high - low])
        block = bytes(view[:n])
        reached = 0
        while 0 <= (at := block.find(_HEAP, reached)) <= n - _HEADER:
            end = at + int.from_bytes(block[at + 8 : at + 8 + width], "little")
            if end <= n:
                reached_at, stuck = codec.walk_heap(block, at + _HEADER, max(end, at + _HEADER), width)
            else:
                reached_at, stuck = _walk(fd, path, low, at + _HEADER, end, width)
            if stuck:
                return low + reached_at
            # If its objects do not end where the heap does, its size is corrupt, and another heap may be nearer.
            reached = end if end - _HEADER < reached_at <= end else at + 1
        if low + n >= high or not n:
            break
        low += max(reached, n - _HEADER + 1)
    return -1


def _walk(fd: int, path: str, low: int, at: int, end: int, width: int) -> tuple[int, bool]:
    """Does what codec.walk_heap does, for a heap that is not in memory; offsets count from `low`."""
    window = memoryview(bytearray(_WINDOW_BYTES))
    while at + _HEADER <= end:
        n = fill_from(fd, path, low + at, window[: end - at])
        if n < _HEADER:
            break  # the heap is longer than the file, which the library detects
        reached_at, stuck = codec.walk_heap(window, 0, n, width)
        at += reached_at
        if stuck:
            return at, True
    return at, False
