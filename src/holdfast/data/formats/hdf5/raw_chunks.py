"""Reads rows straight from the file: the bytes of each chunk, decoded by C code that needs neither the interpreter nor
the HDF5 library, which does one thing at a time.

For datasets whose values lie in the file as numpy has them, with filters that can be decoded here. The library reads
all others, chunks that were never written, and chunks that cannot be decoded: it knows what is wrong with them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product, repeat
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ...._native import c_modules
from .chunks import chunk_grid
from .filters import FLETCHER32, GZIP, LZ4, SHUFFLE, ZSTD, filters_of, plugin_library
from .object_walk import reason_of
from .raw_values import chunk_options

_MAX_CHUNK_BYTES = 64 << 20
_PIECE_BYTES = 1 << 18  # a dataset without chunks is read in pieces, which threads share
_KINDS = "iufbS"
_SMALL_BYTES = 1 << 15  # waking another thread takes longer
_CACHE_BYTES = 1 << 20  # of decoded chunks of a dataset, as the library has
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
    return any(path and c_modules.chunks.load_codec(name, path) for name, path in wanted)


class RawDataset:
    """Where the values of a dataset are. Has no handle of the library, so a forked child can use it too."""

    def __init__(
        self,
        dataset: h5py.Dataset,
        chunks: tuple[int, ...],
        filters: list[tuple[int, int]],
        places: Callable[[int, int], npt.NDArray[np.int64]],
    ) -> None:
        """places(low, high) returns the offset, size and filter mask of these chunks; size -1: it was not written."""
        self._dtype, self._shape, self._places = dataset.dtype, dataset.shape, places
        self._chunk_rows = chunks[0]
        self._beside = math.prod(chunk_grid(self._shape[1:], chunks[1:]))  # chunks with values of the same rows
        flat = [number for one in filters for number in one]
        self._layout = np.array([self._dtype.itemsize, len(self._shape), *self._shape, *chunks, *flat], np.int64)
        self._row_bytes = math.prod(self._shape[1:]) * self._dtype.itemsize
        self._is_cached = bool(filters) and chunks[0] * self._row_bytes <= _CACHE_BYTES
        self._decoded: dict[int, npt.NDArray[Any]] = {}  # by their first row

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> RawDataset | None:
        """Returns None for a dataset that only the library can read."""
        if c_modules.chunks is None or not math.prod(dataset.shape) or dataset.file.driver != "sec2":
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
        if math.prod(dataset.chunks) * dtype.itemsize > _MAX_CHUNK_BYTES or not all(
            _can_decode(code) for code, _ in filters
        ):
            return None
        table = _chunk_places(dataset)
        return None if table is None else cls(dataset, dataset.chunks, filters, lambda low, high: table[low:high])

    @classmethod
    def _contiguous(cls, dataset: h5py.Dataset) -> RawDataset | None:
        base, shape = dataset.id.get_offset(), dataset.shape
        row_bytes = math.prod(shape[1:]) * dataset.dtype.itemsize
        if base is None or row_bytes > _MAX_CHUNK_BYTES:  # nothing was written, or rows are huge
            return None
        rows = max(1, _PIECE_BYTES // row_bytes)

        def places(low: int, high: int) -> npt.NDArray[np.int64]:
            starts = np.arange(low, high) * rows
            sizes = np.minimum(rows, shape[0] - starts) * row_bytes
            return np.column_stack([base + starts * row_bytes, sizes, np.zeros_like(sizes)])

        return cls(dataset, (rows, *shape[1:]), [], places)

    def begin(self, fd: int, start: int, stop: int, pool: Any = None) -> FinishRaw:
        """Begins to read rows, in the threads of `pool` if that is given."""
        size = self._chunk_rows
        if self._is_cached and (-(-stop // size) - start // size) * size > 2 * (stop - start):
            return lambda: self._from_cache(fd, start, stop)
        job = self._job(start, stop)
        if job is None:
            return lambda: None
        if pool is None or (stop - start) * self._row_bytes < _SMALL_BYTES:
            return lambda: self._read(fd, start, stop, job)
        number = pool.begin(fd, *job)

        def finish() -> npt.NDArray[Any] | None:
            memory = pool.take(number)
            return None if memory is None else np.frombuffer(memory, self._dtype).reshape(-1, *self._shape[1:])

        return finish

    def _job(self, start: int, stop: int) -> tuple[Any, ...] | None:
        """Returns the arguments for reading rows. None: not all chunks were written."""
        low, high = start // self._chunk_rows * self._beside, -(-stop // self._chunk_rows) * self._beside
        places = self._places(low, high)
        return None if start == stop or places[:, 1].min() < 0 else (self._layout, places, low, start, stop)

    def _read(self, fd: int, start: int, stop: int, job: tuple[Any, ...] | None) -> npt.NDArray[Any] | None:
        out = np.empty((stop - start, *self._shape[1:]), self._dtype)
        given = () if job is None else (fd, *job, out.view(np.uint8).reshape(-1))
        return out if given and c_modules.chunks.read_rows(*given) else None

    def _from_cache(self, fd: int, start: int, stop: int) -> npt.NDArray[Any] | None:
        """Reads a small part of some chunks, and keeps these decoded: other parts of them are often read next."""
        parts = []
        for first in range(start - start % self._chunk_rows, stop, self._chunk_rows):
            found = self._decoded.get(first)
            if found is None:
                end = min(first + self._chunk_rows, self._shape[0])
                found = self._read(fd, first, end, self._job(first, end))
                if found is None:
                    return None
                self._keep(first, found)
            parts.append(found[max(start - first, 0) : stop - first])
        return np.concatenate(parts) if parts else None

    def _keep(self, first: int, rows: npt.NDArray[Any]) -> None:
        while self._decoded and sum(one.nbytes for one in list(self._decoded.values())) + rows.nbytes > _CACHE_BYTES:
            self._decoded.pop(min(list(self._decoded)), None)  # without a lock, which another thread may hold at a fork
        self._decoded[first] = rows


def _chunk_places(dataset: h5py.Dataset) -> npt.NDArray[np.int64] | None:
    """Returns the offset, size and filter mask of every chunk in row order, -1 for one that was not written. None: most
    were not, or the index has chunks that the shape does not, or one of them twice."""
    listed = array("q")
    dataset.id.chunk_iter(lambda one: listed.extend((one.byte_offset, one.size, one.filter_mask, *one.chunk_offset)))
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


# ---- through the library


class UnreadableChunkError(Exception):
    """The library cannot read a chunk; the message names it."""


def read_run(dataset: h5py.Dataset, start: int, stop: int) -> npt.NDArray[Any]:
    """Reads rows. If that fails because of a chunk, raises an UnreadableChunkError."""
    try:
        return np.asarray(dataset[start:stop])
    except MemoryError:
        raise
    except Exception as error:
        for at in _chunk_starts(dataset, start, stop):
            _check_chunk(dataset, at, error)
        raise


def _chunk_starts(dataset: h5py.Dataset, start: int, stop: int) -> Iterator[tuple[int, ...]]:
    """Yields where the chunks of these rows start."""
    if dataset.chunks:
        rows = range(start - start % dataset.chunks[0], stop, dataset.chunks[0])
        yield from product(rows, *map(range, repeat(0), dataset.shape[1:], dataset.chunks[1:]))


def _check_chunk(dataset: h5py.Dataset, start: tuple[int, ...], error: Exception) -> None:
    try:
        dataset[tuple(slice(at, at + n) for at, n in zip(start, dataset.chunks, strict=True))]
    except MemoryError:
        raise
    except Exception as found:  # noqa: BLE001 - for a corrupt file it may be any
        try:
            info = dataset.id.get_chunk_info_by_coord(start)
            where = f", {info.size:,} bytes at byte {info.byte_offset:,}"
        except (OSError, RuntimeError, ValueError):
            where = ""
        raise UnreadableChunkError(f"the chunk at {start}{where}: {reason_of(found)}") from error
