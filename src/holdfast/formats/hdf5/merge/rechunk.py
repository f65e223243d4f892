"""Chunks that no source has as they are: made of rows, and packed where their dataset is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ...._native import codec
from ...._util.atomic import pwrite_all
from .chunk_filters import ChunkEncoder, Rows, ahead
from .copy_plan import SPOOL, CopyPlan, placed
from .model import Ints, MergeError, MergeInput, MergeTarget, Raw, RowRange

_ENTRY = 6  # numbers in an entry of the spool's index


class Ends:
    """Single ends of packed columns, each read once."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._known: dict[tuple[str, int, int], int] = {}

    def at(self, target: MergeTarget, file: int, number: int) -> int:
        key = (target.path, file, number)
        if key not in self._known:
            one = next(self._rows.read(target.sources[file], number, number + 1))
            self._known[key] = int(one.view("<i8")[0])
        return self._known[key]


class Builder:
    """Rows of one dataset of the result, in its order."""

    def __init__(self, target: MergeTarget, sources: list[MergeInput], rows: Rows, ends: Ends) -> None:
        self._target, self._sources, self._rows, self._ends = target, sources, rows, ends
        self._places = list(placed(target))
        self._bases: list[int] = []
        if target.ends:
            sizes = [ends.at(target, run.file, run.stop) - ends.at(target, run.file, run.start) for run in target.runs]
            self._bases = [0, *itertools.accumulate(sizes)]

    def rows(self, low: int, high: int) -> Iterator[Raw]:
        """Rows [low, high) of the result, in pieces."""
        if self._target.ends and low == 0 and high > 0:
            yield np.zeros(1, "<i8").view("V8")
        for number, (at, run) in enumerate(self._places):
            first, last = max(low - at, 0), min(high - at, run.rows)
            if first >= last:
                continue
            source = self._target.sources[run.file]
            if self._target.ends:
                yield from self._moved(number, run, first, last)
            else:
                yield from self._rows.read(source, run.start + first, run.start + last)

    def _moved(self, number: int, run: RowRange, first: int, last: int) -> Iterator[Raw]:
        base = self._bases[number] - self._ends.at(self._target, run.file, run.start)
        before = self._ends.at(self._target, run.file, run.start + first)
        for piece in self._rows.read(self._target.sources[run.file], run.start + first + 1, run.start + last + 1):
            ends = piece.view("<i8")
            if (np.diff(ends, prepend=before) < 0).any():
                text = f"dataset {self._target.path!r} has ends that go backwards: the file is damaged"
                raise MergeError("corrupt", self._sources[run.file].path, text)
            before = int(ends[-1])
            yield (ends + base).view("V8")

    def row_chunks(self, first: int, last: int) -> Iterator[tuple[int, Raw]]:
        """Chunks by their number in the grid, of row chunks [first, last); whole, also behind the dataset's end."""
        like = self._target.like
        assert like.chunks is not None
        size = like.chunks[0]
        stop = min(last * size, self._target.rows)
        number, chunk, filled = first, self._empty(), 0
        for piece in self.rows(first * size, stop):
            at = 0
            while at < len(piece):
                n = min(size - filled, len(piece) - at)
                chunk[filled : filled + n] = piece[at : at + n]
                at, filled = at + n, filled + n
                if filled == size:
                    yield from self._split(number, chunk)
                    number, chunk, filled = number + 1, self._empty(), 0
        if filled:
            yield from self._split(number, chunk)

    def _empty(self) -> Raw:
        like = self._target.like
        assert like.chunks is not None
        kind = f"V{like.item_bytes}"
        if like.fill is None:
            return np.zeros((like.chunks[0], *like.row_shape), kind)
        return np.full((like.chunks[0], *like.row_shape), np.frombuffer(like.fill, kind)[0], kind)

    def _split(self, number: int, rows: Raw) -> Iterator[tuple[int, Raw]]:
        like = self._target.like
        assert like.chunks is not None
        if like.chunks[1:] == like.row_shape:
            yield number, rows
            return
        grids = [range(0, n, c) for n, c in zip(like.row_shape, like.chunks[1:], strict=True)]
        for inner, starts in enumerate(itertools.product(*grids)):
            chunk = np.zeros(like.chunks, rows.dtype)
            part = rows[(slice(None), *(slice(at, at + c) for at, c in zip(starts, like.chunks[1:], strict=True)))]
            chunk[tuple(slice(n) for n in part.shape)] = part
            yield number * like.across + inner, chunk


class Spool:
    """Packed chunks, until there is room for them: `data`, and an index with an entry for each that is whole there.

    Chunks come in one order only: as many as the index knows of are passed by when a killed merge goes on.
    """

    def __init__(self, data: Path, index: Path) -> None:
        self._index_path = index
        known = np.fromfile(index, "<i8") if index.exists() else np.zeros(0, "<i8")
        self.entries: Ints = known[: len(known) // _ENTRY * _ENTRY].reshape(-1, _ENTRY)
        self.fd = os.open(data, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._index = os.open(index, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._index, self.entries.nbytes)
        self.end = int(self.entries[-1, 2] + self.entries[-1, 3]) if len(self.entries) else 0

    def put(self, target: int, number: int, data: Any, mask: int) -> None:
        view, size = memoryview(data).cast("B"), len(data)
        pwrite_all(self.fd, view, self.end)
        entry: Any = np.array([target, number, self.end, size, mask, codec.crc32c(view)], "<i8")
        pwrite_all(self._index, memoryview(entry).cast("B"), os.fstat(self._index).st_size)
        self.end += size

    def jobs_of(self, target: int) -> Ints:
        found = self.entries[self.entries[:, 0] == target]
        return np.column_stack([found[:, 1], np.full(len(found), SPOOL), found[:, 2:]])

    def reload(self) -> None:
        self.entries = np.fromfile(self._index_path, "<i8").reshape(-1, _ENTRY)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._index)


def pack_all(
    plans: list[CopyPlan],
    spool: Spool,
    builder_of: Callable[[CopyPlan], Builder],
    pool: ThreadPoolExecutor | None,
    told: Callable[[int], None],
) -> None:
    """Fills the spool with all chunks that are packed anew."""
    for target, plan in enumerate(plans):
        if not plan.packs:
            continue
        done = int((spool.entries[:, 0] == target).sum())
        encoder = ChunkEncoder(plan.target.like)
        helpers = pool if encoder.threads else None
        for number, (data, mask), size in ahead(helpers, _packing(plan, builder_of(plan), encoder, done)):
            spool.put(target, number, data, mask)
            told(size)
    spool.reload()


def _packing(plan: CopyPlan, builder: Builder, encoder: ChunkEncoder, done: int) -> Iterator[Callable[[], Any]]:
    across = plan.target.like.across
    for low, high in plan.packs:
        passed = min(done // across, high - low)  # whole row chunks
        done -= passed * across
        for number, chunk in builder.row_chunks(low + passed, high):
            if done:
                done -= 1
                continue
            yield lambda number=number, chunk=chunk: (number, encoder.encode(chunk), chunk.nbytes)  # type: ignore[misc]
