"""A dataset as pieces that are read one by one: its chunks, or runs of rows where it has none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import h5py
import numpy.typing as npt

RUN_BYTES = 4 << 20
_MOST_GUESSED = 1_000_000  # pieces of a dataset whose chunks cannot be listed


class Piece(NamedTuple):
    """`offset` and `stored` are its place in the file; -1 where it has none of its own."""

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


def listed_chunks(dataset: h5py.Dataset) -> list[Piece]:
    """The chunks that are in the file. Raises what the library raises when it cannot list them."""
    shape, chunks = dataset.shape, dataset.chunks
    found: list[Piece] = []

    def see(info: Any) -> None:
        start = tuple(map(int, info.chunk_offset))
        sizes = tuple(max(0, min(c, n - at)) for at, c, n in zip(start, chunks, shape, strict=True))
        found.append(Piece(start, sizes, int(info.byte_offset), int(info.size), int(info.filter_mask)))

    dataset.id.chunk_iter(see)
    found.sort(key=lambda piece: piece.start)
    return found


def guessed_chunks(dataset: h5py.Dataset) -> list[Piece]:
    """Every chunk that the shape has room for."""
    shape, chunks = dataset.shape, dataset.chunks
    grids = [range(0, n, c) for n, c in zip(shape, chunks, strict=True)]
    starts = itertools.islice(itertools.product(*grids), _MOST_GUESSED)
    return [
        Piece(start, tuple(min(c, n - at) for at, c, n in zip(start, chunks, shape, strict=True))) for start in starts
    ]


def runs(dataset: h5py.Dataset) -> Iterator[Piece]:
    """Runs of rows, about as long as a buffer; a dataset of one value is one piece."""
    shape = dataset.shape
    if not shape:
        yield Piece((), ())
        return
    if not math.prod(shape):
        return
    row_bytes = math.prod(shape[1:]) * dataset.id.get_type().get_size()  # numpy may not have the type
    rows = max(1, RUN_BYTES // max(row_bytes, 1))
    base = dataset.id.get_offset()
    for at in range(0, shape[0], rows):
        n = min(rows, shape[0] - at)
        offset = -1 if base is None else base + at * row_bytes
        yield Piece((at, *[0] * (len(shape) - 1)), (n, *shape[1:]), offset, n * row_bytes)


def read_piece(dataset: h5py.Dataset, piece: Piece) -> npt.NDArray[Any] | Any:
    """Read and decoded, as every other reader would."""
    return dataset[piece.slices] if piece.start else dataset[()]
