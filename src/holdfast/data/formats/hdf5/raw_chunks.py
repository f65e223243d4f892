"""Reads rows straight from the file: the bytes of each chunk, decoded by C code that needs neither the interpreter nor
the HDF5 library, which does one thing at a time.

For datasets whose values lie in the file as numpy has them, with filters that can be decoded here. The library reads
all others, chunks that were never written, and chunks that cannot be decoded: it knows what is wrong with them.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable
from functools import cache
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ...._native.c_modules import readahead
from .chunks import chunk_grid
from .filters import FLETCHER32, GZIP, LZ4, SHUFFLE, ZSTD, filters_of, plugin_library
from .raw_values import chunk_options

_PIECE_BYTES = 1 << 18  # a dataset without chunks is read in pieces, which threads share
_KINDS = "iufbS"
_CACHE_BYTES = 1 << 20  # decoded chunks of a dataset, for reads that need a small part of one; as the library has
_SPARSE = 4  # a table has at most this many times the chunks that are in the file

# Reads what was begun, in this thread what no other has done yet. None: the library must read it.
FinishRaw = Callable[[], npt.NDArray[Any] | None]


@cache
def _can_decode(code: int) -> bool:
    """Tells whether the C code can undo a filter, and loads the library that it uses."""
    match code:
        case _ if code in (SHUFFLE, FLETCHER32):
            return True
        case _ if code == GZIP:  # the fastest first; HDF5 itself needs the last
            wanted = [("libdeflate", "libdeflate.so.0"), ("zlib-ng", "libz-ng.so.2"), ("zlib", h5py.h5z.__file__)]
        case _ if code == LZ4:
            wanted = [("lz4", plugin_library(code))]
        case _ if code == ZSTD:
            wanted = [("zstd", plugin_library(code))]
        case _:
            return False
    return any(path and readahead.load_codec(name, path) for name, path in wanted)


class RawDataset:
    """Where the values of a dataset are. Has no handle of the library, so a forked child can use it too."""

    def __init__(
        self, dtype: np.dtype[Any], shape: tuple[int, ...], chunks: tuple[int, ...], filters: list[tuple[int, int]]
    ) -> None:
        self.dtype, self.shape, self._chunk_rows = dtype, shape, chunks[0]
        self._beside = math.prod(chunk_grid(shape[1:], chunks[1:]))  # chunks that have values of the same rows
        self._filtered = bool(filters)
        flat = [number for one in filters for number in one]
        self._layout = np.array([dtype.itemsize, len(shape), *shape, *chunks, *flat], np.int64)
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._table: npt.NDArray[np.int64] = np.zeros((0, 3), np.int64)  # offset, size and filter mask of each chunk
        self._decoded: dict[int, npt.NDArray[Any]] = {}  # by chunk row
        self._lock = threading.Lock()

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> RawDataset | None:
        """Returns None for a dataset that only the library can read."""
        if readahead is None or not math.prod(dataset.shape) or dataset.file.driver != "sec2":
            return None
        dtype, plist = dataset.dtype, dataset.id.get_create_plist()
        if dtype.kind not in _KINDS or not dataset.id.get_type().equal(h5py.h5t.py_create(dtype)):
            return None
        if dataset.file.userblock_size or plist.get_external_count():
            return None
        if plist.get_layout() == h5py.h5d.CONTIGUOUS:
            return cls._contiguous(dataset)
        if plist.get_layout() != h5py.h5d.CHUNKED or chunk_options(plist):
            return None
        filters = [(code, values[0] if values else 0) for code, _, values in filters_of(plist)]
        if not all(_can_decode(code) for code, _ in filters):
            return None
        made = cls(dtype, dataset.shape, dataset.chunks, filters)
        table = _chunk_places(dataset)
        if table is None:
            return None
        made._table = table
        return made

    @classmethod
    def _contiguous(cls, dataset: h5py.Dataset) -> RawDataset | None:
        base, shape = dataset.id.get_offset(), dataset.shape
        if base is None:  # nothing was written
            return None
        row_bytes = math.prod(shape[1:]) * dataset.dtype.itemsize
        rows = max(1, _PIECE_BYTES // row_bytes)
        made = cls(dataset.dtype, shape, (rows, *shape[1:]), [])
        starts = np.arange(0, shape[0], rows, dtype=np.int64)
        sizes = np.minimum(rows, shape[0] - starts) * row_bytes
        made._table = np.column_stack([base + starts * row_bytes, sizes, np.zeros_like(sizes)])
        return made

    def begin(self, fd: int, start: int, stop: int, reader: Any = None) -> FinishRaw:
        """Begins to read rows, in the threads of `reader` if that is given."""
        low, high = start // self._chunk_rows, -(-stop // self._chunk_rows)
        needed = (stop - start) * self._row_bytes
        if self._filtered and (high - low) * self._chunk_rows > 2 * (stop - start) and needed < _CACHE_BYTES // 4:
            return lambda: self._from_cache(fd, start, stop)
        table = self._table[low * self._beside : high * self._beside]
        if start == stop or table[:, 1].min() < 0:
            return lambda: None
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        job = (self._layout, table, low * self._beside, start, stop, out.view(np.uint8).reshape(-1))
        if reader is None:
            return lambda: out if readahead.read_rows(fd, *job) < 0 else None
        number = reader.begin_rows(fd, *job)
        return lambda: out if reader.take(number) < 0 else None

    def _from_cache(self, fd: int, start: int, stop: int) -> npt.NDArray[Any] | None:
        """Reads a small part of some chunks, and keeps these decoded: it is often followed by other parts of them."""
        parts = []
        for number in range(start // self._chunk_rows, -(-stop // self._chunk_rows)):
            first = number * self._chunk_rows
            found = self._decoded_rows(fd, number, first)
            if found is None:
                return None
            parts.append(found[max(start - first, 0) : stop - first])
        return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)

    def _decoded_rows(self, fd: int, number: int, first: int) -> npt.NDArray[Any] | None:
        found = self._decoded.get(number)
        if found is not None:
            return found
        table = self._table[number * self._beside : (number + 1) * self._beside]
        if table[:, 1].min() < 0:
            return None
        stop = min(first + self._chunk_rows, self.shape[0])
        out = np.empty((stop - first, *self.shape[1:]), self.dtype)
        if (
            readahead.read_rows(
                fd, self._layout, table, number * self._beside, first, stop, out.view(np.uint8).reshape(-1)
            )
            >= 0
        ):
            return None
        with self._lock:
            self._decoded[number] = out
            while len(self._decoded) > 1 and sum(one.nbytes for one in self._decoded.values()) > _CACHE_BYTES:
                del self._decoded[next(iter(self._decoded))]
        return out


def _chunk_places(dataset: h5py.Dataset) -> npt.NDArray[np.int64] | None:
    """Returns the offset, size and filter mask of every chunk in row order; size -1: it was not written. None: the index
    has chunks that the shape does not, or one of them twice."""
    listed = array("q")
    dataset.id.chunk_iter(
        lambda one: listed.extend((one.byte_offset, one.size, one.filter_mask, *one.chunk_offset))  # type: ignore[func-returns-value]
    )
    counts = chunk_grid(dataset.shape, dataset.chunks)
    total = math.prod(counts)
    found = np.frombuffer(listed, np.int64).reshape(-1, 3 + len(counts))
    if total > _SPARSE * len(found):
        return None
    numbers = np.zeros(len(found), np.int64)
    for axis, (count, step) in enumerate(zip(counts, dataset.chunks, strict=True)):
        position = found[:, 3 + axis] // step
        if (position >= count).any() or (position < 0).any():
            return None
        numbers = numbers * count + position
    if len(np.unique(numbers)) < len(numbers):
        return None
    table = np.full((total, 3), -1, np.int64)
    table[numbers] = found[:, :3]
    return table
