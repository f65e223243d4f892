"""Reads rows of the result from the sources, through the library."""

from __future__ import annotations

import bisect
import itertools
import os
import resource
from collections import OrderedDict
from collections.abc import Iterator

import h5py
import numpy as np

from ....._native import codec
from ..chunks import chunk_grid, read_unconverted
from ..object_walk import NEVER_WRITTEN, reason_of
from ..schema_layout import in_native_order
from .inputs import LIBRARY_ERRORS
from .merge_model import NO_CRC, MergeError, MergeInput, MergeTarget, RowRange, Values

_OPEN_FILES, _LOW_LIMIT = 16, 256
_PIECE_BYTES, _OBJECT_BYTES = 4 << 20, 1 << 20


class OpenInputs:
    """Opens sources, a few of them at a time."""

    def __init__(self, sources: list[MergeInput]) -> None:
        self.sources = sources
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_open = _OPEN_FILES if soft == resource.RLIM_INFINITY or soft >= _LOW_LIMIT else max(1, soft // 16)
        self._files: OrderedDict[int, h5py.File] = OrderedDict()

    def hdf5(self, number: int) -> h5py.File:
        if number not in self._files:
            if len(self._files) >= self._max_open:
                self._files.popitem(last=False)[1].close()
            self._files[number] = h5py.File(self.path(number), "r")
        self._files.move_to_end(number)
        return self._files[number]

    def path(self, number: int) -> str:
        return self.sources[number].path

    def split_at(self, target: MergeTarget, file: int, number: int) -> int:
        """Returns one offset of a ragged column of a source."""
        return int(self.read(target, file, number, number + 1).view("<i8")[0])

    def read(self, target: MergeTarget, file: int, start: int, stop: int, *, check: bool = False) -> Values:
        """Reads rows of one source. `check`: compares the chunks they lie in with their recorded checksums."""
        source, dataset = target.sources[file], self.hdf5(file)[target.path]
        rows = np.array([start // source.chunk_rows, -(-stop // source.chunk_rows)]) * source.across
        low, high = np.searchsorted(source.extents[:, 0], rows)
        for _, offset, size, _, crc in source.extents[low:high].tolist() if check else []:
            if crc != NO_CRC:
                data = os.pread(dataset.file.id.get_vfd_handle(), size, offset)
                check_crc(self.path(file), target.path, offset, codec.crc32c(data), crc)
        try:
            return read_rows(dataset, start, stop)
        except LIBRARY_ERRORS as error:
            for number, offset, *_ in source.extents[low:high].tolist():
                decode_chunk(dataset, number, self.path(file), offset)
            text = f"dataset {target.path!r}: rows {start:,} to {stop:,} cannot be read: {reason_of(error)}"
            raise MergeError("input" if NEVER_WRITTEN in str(error) else "corrupt", self.path(file), text) from error

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


def check_crc(path: str, dataset: str, offset: int, got: int, expected: int) -> None:
    if expected not in (NO_CRC, got):
        text = f"dataset {dataset!r}: the crc32c of a chunk is {got:08x}, its record says {expected:08x}"
        raise MergeError("corrupt", path, text, offset)


def decode_chunk(dataset: h5py.Dataset, number: int, path: str, offset: int) -> None:
    """Decodes a chunk, by its number in the grid. An error names where in which source it is."""
    cell = np.unravel_index(number, chunk_grid(dataset.shape, dataset.chunks))
    start = tuple(int(n) * size for n, size in zip(cell, dataset.chunks, strict=True))
    sizes = tuple(min(size, n - at) for at, size, n in zip(start, dataset.chunks, dataset.shape, strict=True))
    try:
        _read(dataset, start, sizes)
    except LIBRARY_ERRORS as error:
        text = f"dataset {dataset.name!r}: a chunk cannot be decoded: {reason_of(error)}"
        raise MergeError("corrupt", path, text, offset) from error


def read_rows(dataset: h5py.Dataset, start: int, stop: int) -> Values:
    """Reads rows with the library, without converting them; strings and lists as objects that h5py can write again."""
    return _read(dataset, (start, *[0] * (dataset.ndim - 1)), (stop - start, *dataset.shape[1:]))


def _read(dataset: h5py.Dataset, start: tuple[int, ...], sizes: tuple[int, ...]) -> Values:
    if not dataset.dtype.hasobject:
        return read_unconverted(dataset, start, sizes)
    values = np.empty(sizes, dataset.dtype)
    space = dataset.id.get_space()
    space.select_hyperslab(start, sizes)
    dataset.id.read(h5py.h5s.create_simple(sizes), space, values)
    return in_native_order(values, dataset.dtype)


def pieces(target: MergeTarget, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yields rows in steps of full chunks that fit into memory."""
    size, limit = target.like.chunk_rows, _OBJECT_BYTES if target.like.dtype.hasobject else _PIECE_BYTES
    step = max(1, limit // max(1, target.like.row_bytes * size)) * size
    return ((at, min(at + step, high)) for at in range(low, high, step))


class SourceRows:
    """Rows of one dataset of the result, in its order."""

    def __init__(self, target: MergeTarget, files: OpenInputs) -> None:
        self._target, self._files = target, files
        self._runs = list(target.placed_runs())
        self._starts = [at for at, _ in self._runs]
        self._shifts: list[int] = []  # what is added to the offsets of each run
        if target.splits:
            ends = [[files.split_at(target, run.file, row) for row in run[1:]] for run in target.runs]
            bases = itertools.accumulate((last - first for first, last in ends), initial=0)
            self._shifts = [base - first for base, (first, _) in zip(bases, ends, strict=False)]

    def read(self, low: int, high: int, *, check: bool = False) -> Values:
        found: list[Values] = []
        if self._target.splits and low == 0:
            found.append(np.zeros(1, "<i8").view("V8"))
        for number in range(max(0, bisect.bisect_right(self._starts, low) - 1), len(self._runs)):
            at, run = self._runs[number]
            first, last = max(low - at, 0) + run.start, min(high - at, run.rows) + run.start
            if at >= high:
                break
            if first < last and self._target.splits:
                found.append(self._shifted(number, run, first, last, check))
            elif first < last:
                found.append(self._files.read(self._target, run.file, first, last, check=check))
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _shifted(self, number: int, run: RowRange, first: int, last: int, check: bool) -> Values:
        """An offset belongs to the row that ends there."""
        splits = self._files.read(self._target, run.file, first, last + 1, check=check).view("<i8")
        if (np.diff(splits) < 0).any():
            text = f"dataset {self._target.path!r} has offsets that decrease: the file is corrupt"
            raise MergeError("corrupt", self._files.path(run.file), text)
        return (splits[1:] + self._shifts[number]).view("V8")
