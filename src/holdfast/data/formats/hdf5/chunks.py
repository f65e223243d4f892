"""Splits a dataset into pieces that are read one by one: its chunks, or runs of rows if it is contiguous."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

RUN_BYTES = 4 << 20
_MIN_CHUNK_BYTES = 16  # its address and size in the index, and some data


class ChunkPiece(NamedTuple):
    """`offset` and `stored` are its position and size in the file; -1 and 0 if it has none of its own."""

    start: tuple[int, ...]
    sizes: tuple[int, ...]
    offset: int = -1
    stored: int = 0
    filter_mask: int = 0

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(at, at + n) for at, n in zip(self.start, self.sizes, strict=True))

    @property
    def rows(self) -> tuple[int, int]:
        return (self.start[0], self.start[0] + self.sizes[0]) if self.start else (0, 1)


def chunk_grid(shape: Iterable[int], chunks: Iterable[int]) -> list[int]:
    """Returns the number of chunks along each axis."""
    return [-(-n // c) for n, c in zip(shape, chunks, strict=True)]


def chunk_table(dataset: h5py.Dataset) -> npt.NDArray[np.int64]:
    """Returns a row for each chunk in the file: its number in the grid, offset, size and filter mask."""
    listed: list[tuple[int, ...]] = []
    dataset.id.chunk_iter(lambda one: listed.append((one.byte_offset, one.size, one.filter_mask, *one.chunk_offset)))
    table = np.array(listed, np.int64).reshape(len(listed), 3 + len(dataset.chunks))
    numbers = np.zeros(len(table), np.int64)
    for axis, (count, step) in enumerate(zip(chunk_grid(dataset.shape, dataset.chunks), dataset.chunks, strict=True)):
        numbers = numbers * count + table[:, 3 + axis] // step
    order = np.argsort(numbers, kind="stable")
    return np.column_stack([numbers, table[:, :3]])[order]


def listed_chunks(dataset: h5py.Dataset) -> list[ChunkPiece]:
    """Returns the chunks that are in the file. Raises what the library raises if it cannot list them."""
    shape, chunks = dataset.shape, dataset.chunks
    found: list[ChunkPiece] = []

    def see(info: Any) -> None:
        start = tuple(map(int, info.chunk_offset))
        sizes = tuple(max(0, min(c, n - at)) for at, c, n in zip(start, chunks, shape, strict=True))
        found.append(ChunkPiece(start, sizes, int(info.byte_offset), int(info.size), int(info.filter_mask)))

    dataset.id.chunk_iter(see)
    found.sort(key=lambda piece: piece.start)
    return found


def possible_chunks(dataset: h5py.Dataset, file_bytes: int) -> list[ChunkPiece]:
    """Returns the first chunk positions of the shape, as many as a file of that size can have chunks."""
    shape, chunks = dataset.shape, dataset.chunks
    counts = chunk_grid(shape, chunks)
    found: list[ChunkPiece] = []
    for number in range(min(math.prod(counts), file_bytes // _MIN_CHUNK_BYTES)):
        start: tuple[int, ...] = ()
        for count, step in zip(reversed(counts), reversed(chunks), strict=True):
            number, position = divmod(number, count)
            start = (position * step, *start)
        found.append(ChunkPiece(start, tuple(min(c, n - at) for at, c, n in zip(start, chunks, shape, strict=True))))
    return found


def runs(dataset: h5py.Dataset) -> Iterator[ChunkPiece]:
    """Yields runs of rows of about RUN_BYTES; a scalar dataset is one piece."""
    shape = dataset.shape
    if not shape:
        yield ChunkPiece((), ())
        return
    if not math.prod(shape):
        return
    row_bytes = math.prod(shape[1:]) * dataset.id.get_type().get_size()  # numpy may lack the type
    rows = max(1, RUN_BYTES // max(row_bytes, 1))
    base = dataset.id.get_offset()
    for at in range(0, shape[0], rows):
        n = min(rows, shape[0] - at)
        offset = -1 if base is None else base + at * row_bytes
        yield ChunkPiece((at, *[0] * (len(shape) - 1)), (n, *shape[1:]), offset, n * row_bytes)


def read_piece(dataset: h5py.Dataset, piece: ChunkPiece) -> npt.NDArray[Any] | Any:
    return dataset[piece.slices] if piece.start else dataset[()]


def read_unconverted(dataset: h5py.Dataset, start: tuple[int, ...], sizes: tuple[int, ...]) -> npt.NDArray[Any]:
    """Reads and decodes values in the file's own type, which numpy may lack, as items of a void dtype."""
    kind, there = dataset.id.get_type(), dataset.id.get_space()
    here = h5py.h5s.create(h5py.h5s.SCALAR)
    if start:
        there.select_hyperslab(start, sizes)
        here = h5py.h5s.create_simple(sizes)
    values = np.empty(sizes, f"V{kind.get_size()}")
    dataset.id.read(here, there, values, mtype=kind)
    return values


def merge_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorts ranges, and merges those that touch."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        elif low < high:
            found.append((low, high))
    return found


def subtract_ranges(ranges: list[tuple[int, int]], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns what is in none of the others. Both are sorted, and of ranges that do not touch."""
    found: list[tuple[int, int]] = []
    for low, high in ranges:
        for other_low, other_high in others:
            if other_high <= low or other_low >= high:
                continue
            if low < other_low:
                found.append((low, other_low))
            low = other_high
        if low < high:
            found.append((low, high))
    return found
