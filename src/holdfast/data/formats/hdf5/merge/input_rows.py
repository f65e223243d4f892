"""Reads rows of a source in the file's own type: without the library where possible, and with every chunk checked."""

from __future__ import annotations

import os
import resource
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import h5py
import numpy as np

from ....._native import codec
from ....._util.atomic import pread_into
from ..chunks import read_unconverted
from ..filters import GZIP, SHUFFLE, unshuffle
from ..object_walk import reason_of
from .merge_model import NO_CRC, DatasetInfo, MergeError, MergeInput, Raw, codes_of

_OPEN_FILES, _LOW_LIMIT = 16, 256
_RUN_BYTES = 1 << 20
_MAX_AHEAD = 4


class OpenInputs:
    """Opens sources, a few of them at a time. For one thread. `folder`: the directory that a view's source names are
    relative to."""

    def __init__(self, sources: list[MergeInput], folder: str = "") -> None:
        self._sources, self._folder = sources, folder
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_open = _OPEN_FILES if soft == resource.RLIM_INFINITY or soft >= _LOW_LIMIT else max(1, soft // 16)
        self._fds: OrderedDict[int, int] = OrderedDict()
        self._files: OrderedDict[int, h5py.File] = OrderedDict()

    def fd(self, number: int) -> int:
        if number in self._fds:
            self._fds.move_to_end(number)
            return self._fds[number]
        if len(self._fds) >= self._max_open:
            os.close(self._fds.popitem(last=False)[1])
        try:
            self._fds[number] = os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unreadable(number, error) from error
        return self._fds[number]

    def _unreadable(self, number: int, error: OSError) -> MergeError:
        return MergeError("input", self.path(number), f"it cannot be read any more: {error.strerror}")

    def hdf5(self, number: int) -> h5py.File:
        if number not in self._files:
            if len(self._files) >= self._max_open:
                self._files.popitem(last=False)[1].close()
            self._files[number] = h5py.File(self.path(number), "r")
        self._files.move_to_end(number)
        return self._files[number]

    def path(self, number: int) -> str:
        return self._sources[number].path

    def view_name(self, number: int) -> bytes:
        """Escapes percent signs, which are patterns to the library."""
        return os.fsencode(os.path.relpath(os.path.realpath(self.path(number)), self._folder).replace("%", "%%"))

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        for file in self._files.values():
            file.close()
        self._fds.clear()
        self._files.clear()

    def read_into(self, number: int, view: memoryview, offset: int) -> None:
        fd = self.fd(number)
        try:
            n = pread_into(fd, view, offset)
        except OSError as error:
            raise self._unreadable(number, error) from error
        if n < len(view):
            text = "the file ends here: it was truncated while it was read"
            raise MergeError("corrupt", self.path(number), text, offset + n)


def check_crc(path: str, dataset: str, offset: int, got: int, expected: int) -> None:
    if expected not in (NO_CRC, got):
        text = f"dataset {dataset!r}: the crc32c of a chunk is {got:08x}, its record says {expected:08x}"
        raise MergeError("corrupt", path, text, offset)


class Rows:
    """`read` yields rows [start, stop) of a dataset in pieces. `pool` decodes ahead; None: no read-ahead."""

    def __init__(self, files: OpenInputs, pool: ThreadPoolExecutor | None = None) -> None:
        self._files, self._pool = files, pool

    def read(self, dataset: DatasetInfo, start: int, stop: int) -> Iterator[Raw]:
        if dataset.chunks and _is_decodable(dataset):
            yield from self._from_chunks(dataset, start, stop)
        elif dataset.chunks is None and dataset.offset is not None:
            yield from self._from_flat(dataset, start, stop)
        else:
            yield from self._through_library(dataset, start, stop)

    def _from_chunks(self, dataset: DatasetInfo, start: int, stop: int) -> Iterator[Raw]:
        assert dataset.chunks is not None
        size = dataset.chunks[0]
        first, last = start // size, -(-stop // size)
        low, high = np.searchsorted(dataset.extents[:, 0], [first, last])
        there = {int(row[0]): row.tolist() for row in dataset.extents[low:high]}

        def work() -> Iterator[Callable[[], Raw]]:
            for number in range(first, last):
                a, b = max(start - number * size, 0), min(stop - number * size, size)
                extent = there.get(number)
                if extent is None or extent[3]:
                    one = next(self._through_library(dataset, number * size + a, number * size + b))
                    yield lambda one=one: one  # type: ignore[misc]
                    continue
                data = self._load(dataset, extent)
                yield lambda data=data, offset=extent[1], a=a, b=b: self._unpack(dataset, data, offset)[a:b]  # type: ignore[misc]

        yield from run_ahead(self._pool, work())

    def _load(self, dataset: DatasetInfo, extent: list[int]) -> bytearray:
        _, offset, size, _, crc = extent
        data = bytearray(size)
        self._files.read_into(dataset.file, memoryview(data), offset)
        if crc != NO_CRC:
            check_crc(self._files.path(dataset.file), dataset.path, offset, codec.crc32c(data), crc)
        return data

    def _unpack(self, dataset: DatasetInfo, data: Any, offset: int) -> Raw:
        assert dataset.chunks is not None
        try:
            for code, _, _ in reversed(dataset.filters):
                data = zlib.decompress(data) if code == GZIP else unshuffle(data, dataset.item_bytes)
            if len(data) != dataset.chunk_bytes:
                raise ValueError(f"expected {dataset.chunk_bytes:,} bytes, got {len(data):,}")
        except (zlib.error, ValueError) as error:
            text = f"dataset {dataset.path!r}: a chunk cannot be decoded: {error}"
            raise MergeError("corrupt", self._files.path(dataset.file), text, offset) from None
        return np.frombuffer(data, f"V{dataset.item_bytes}").reshape(dataset.chunks)

    def _from_flat(self, dataset: DatasetInfo, start: int, stop: int) -> Iterator[Raw]:
        assert dataset.offset is not None
        step = max(1, _RUN_BYTES // max(dataset.row_bytes, 1))
        for at in range(start, stop, step):
            n = min(step, stop - at)
            rows = np.empty((n, *dataset.row_shape), f"V{dataset.item_bytes}")
            flat: Any = rows.reshape(-1).view(np.uint8)
            self._files.read_into(dataset.file, memoryview(flat), dataset.offset + at * dataset.row_bytes)
            yield rows

    def _through_library(self, dataset: DatasetInfo, start: int, stop: int) -> Iterator[Raw]:
        step = max(1, _RUN_BYTES // max(dataset.row_bytes, 1)) if dataset.chunks is None else dataset.chunks[0]
        try:
            there = self._files.hdf5(dataset.file)[dataset.path]
            for at in range(start, stop, step):
                self._check(dataset, at, min(at + step, stop))
                yield rows_of(there, at, min(at + step, stop))
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            text = f"dataset {dataset.path!r}: rows {start:,} to {stop:,} cannot be read: {reason_of(error)}"
            raise MergeError("corrupt", self._files.path(dataset.file), text) from error

    def _check(self, dataset: DatasetInfo, start: int, stop: int) -> None:
        if dataset.chunks is None or not len(dataset.extents) or dataset.extents[0, 4] == NO_CRC:
            return
        size = dataset.chunks[0]
        expected = [start // size * dataset.across, -(-stop // size) * dataset.across]
        low, high = np.searchsorted(dataset.extents[:, 0], expected)
        for row in dataset.extents[low:high].tolist():
            self._load(dataset, row)


def rows_of(dataset: h5py.Dataset, start: int, stop: int) -> Raw:
    """Reads rows [start, stop) with the library, without converting them."""
    return read_unconverted(dataset, (start, *[0] * (dataset.ndim - 1)), (stop - start, *dataset.shape[1:]))


def _is_decodable(dataset: DatasetInfo) -> bool:
    """Tells whether a chunk consists of full rows, and needs no library to decode."""
    whole_rows = dataset.chunks is not None and dataset.chunks[1:] == dataset.row_shape
    return whole_rows and (not dataset.filters or is_gzip(dataset))


def is_gzip(dataset: DatasetInfo) -> bool:
    return codes_of(dataset) in ((GZIP,), (SHUFFLE, GZIP))


def run_ahead(pool: ThreadPoolExecutor | None, work: Iterator[Callable[[], Any]]) -> Iterator[Any]:
    """Yields results in order, and computes a few of them ahead."""
    if pool is None:
        for one in work:
            yield one()
        return
    waiting: list[Future[Any]] = []
    try:
        for one in work:
            waiting.append(pool.submit(one))
            if len(waiting) >= _MAX_AHEAD:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()
    finally:
        for future in waiting:
            future.cancel()
