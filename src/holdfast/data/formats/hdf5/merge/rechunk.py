"""Builds chunks that no source has from rows, and encodes them as their dataset's filters do."""

from __future__ import annotations

import io
import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ....._native import codec
from ....._util.atomic import pwrite_all
from ..filters import (
    GZIP,
    SHUFFLE,
    Filter,
    add_filters,
    describe_filters,
    filters_of,
    same_filters,
    shuffle,
    verbatim_parameters,
)
from .copy_plan import SPOOL, CopyPlan, placed_runs
from .input_rows import Rows, is_gzip, run_ahead
from .merge_model import DatasetInfo, Ints, MergeError, MergeInput, MergeTarget, Raw, RowRange

_ENTRY_NUMBERS = 6
_GZIP_LEVEL = 4


class SplitReader:
    """Reads single offsets of ragged columns, each once."""

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
    """Yields rows of one dataset of the result, in its order."""

    def __init__(self, target: MergeTarget, sources: list[MergeInput], rows: Rows, splits: SplitReader) -> None:
        self._target, self._sources, self._rows, self._splits = target, sources, rows, splits
        self._runs = list(placed_runs(target))
        self._bases: list[int] = []
        if target.splits:
            sizes = [
                splits.at(target, run.file, run.stop) - splits.at(target, run.file, run.start) for run in target.runs
            ]
            self._bases = [0, *itertools.accumulate(sizes)]

    def rows(self, low: int, high: int) -> Iterator[Raw]:
        """Yields rows [low, high) of the result, in pieces."""
        if self._target.splits and low == 0 and high > 0:
            yield np.zeros(1, "<i8").view("V8")
        for number, (at, run) in enumerate(self._runs):
            first, last = max(low - at, 0), min(high - at, run.rows)
            if first >= last:
                continue
            source = self._target.sources[run.file]
            if self._target.splits:
                yield from self._shifted(number, run, first, last)
            else:
                yield from self._rows.read(source, run.start + first, run.start + last)

    def _shifted(self, number: int, run: RowRange, first: int, last: int) -> Iterator[Raw]:
        base = self._bases[number] - self._splits.at(self._target, run.file, run.start)
        before = self._splits.at(self._target, run.file, run.start + first)
        for piece in self._rows.read(self._target.sources[run.file], run.start + first + 1, run.start + last + 1):
            splits = piece.view("<i8")
            if (np.diff(splits, prepend=before) < 0).any():
                text = f"dataset {self._target.path!r} has offsets that decrease: the file is corrupt"
                raise MergeError("corrupt", self._sources[run.file].path, text)
            before = int(splits[-1])
            yield (splits + base).view("V8")

    def row_chunks(self, first: int, last: int) -> Iterator[tuple[int, Raw]]:
        """Yields chunks with their number in the grid, of row chunks [first, last); padded after the dataset's end."""
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
    """Encoded chunks that wait for the file to be created: `data`, and an index with an entry for each complete one.

    Chunks are always spooled in the same order: a resumed merge skips as many as the index has.
    """

    def __init__(self, data: Path, index: Path) -> None:
        self._index_path = index
        known = np.fromfile(index, "<i8") if index.exists() else np.zeros(0, "<i8")
        self.entries: Ints = known[: len(known) // _ENTRY_NUMBERS * _ENTRY_NUMBERS].reshape(-1, _ENTRY_NUMBERS)
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
        self.entries = np.fromfile(self._index_path, "<i8").reshape(-1, _ENTRY_NUMBERS)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._index)


def pack_all(
    plans: list[CopyPlan],
    spool: Spool,
    builder_of: Callable[[CopyPlan], Builder],
    pool: ThreadPoolExecutor | None,
    progress: Callable[[int], None],
) -> None:
    """Spools all chunks that must be encoded."""
    for target, plan in enumerate(plans):
        if not plan.packs:
            continue
        done = int((spool.entries[:, 0] == target).sum())
        encoder = ChunkEncoder(plan.target.like)
        threads = pool if encoder.threads else None
        for number, (data, mask), size in run_ahead(threads, _packing(plan, builder_of(plan), encoder, done)):
            spool.put(target, number, data, mask)
            progress(size)
    spool.reload()


def _packing(plan: CopyPlan, builder: Builder, encoder: ChunkEncoder, done: int) -> Iterator[Callable[[], Any]]:
    across = plan.target.like.across
    for low, high in plan.packs:
        skipped = min(done // across, high - low)  # full row chunks
        done -= skipped * across
        for number, chunk in builder.row_chunks(low + skipped, high):
            if done:
                done -= 1
                continue
            yield lambda number=number, chunk=chunk: (number, encoder.encode(chunk), chunk.nbytes)  # type: ignore[misc]


def plist_of(like: DatasetInfo) -> Any:
    """Returns the creation property list for a dataset like this one; a copy would carry the format version of its
    file."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if like.chunks is not None:
        plist.set_chunk(like.chunks)
    add_filters(plist, like.filters)
    if like.fill is not None:
        plist.set_fill_value(fill_of(like, like.fill))
    return plist


def fill_of(like: DatasetInfo, fill: bytes) -> Any:
    """Returns the fill value as h5py takes it: a string must have variable length, since h5py takes a fixed one for a
    pointer."""
    dtype = h5py.h5t.decode(like.type).dtype
    value = np.frombuffer(fill, dtype)[0]
    text = h5py.check_string_dtype(dtype)
    return np.array(value, dtype if text is None else h5py.string_dtype(text.encoding))


class ChunkEncoder:
    """`encode(chunk)` returns its bytes in the file, and its filter mask.

    `threads`: whether any thread may call it. If it uses the library, only the thread that uses it for everything else
    may: h5py takes no lock for read_direct_chunk.
    """

    def __init__(self, like: DatasetInfo) -> None:
        self._like = like
        self.threads = is_gzip(like)
        self._level = next((values[0] for code, _, values in like.filters if code == GZIP and values), _GZIP_LEVEL)
        self._shuffled = any(code == SHUFFLE for code, _, _ in like.filters)
        # Created before anything is read: that is impossible while a dataset with the same filters is open.
        self._image = b"" if self.threads else _one_chunk_file(like)

    def encode(self, chunk: Raw) -> tuple[Any, int]:
        if self.threads:
            data: Any = chunk.reshape(-1).view(np.uint8)
            data = shuffle(data, self._like.item_bytes) if self._shuffled else data
            return zlib.compress(data, self._level), 0
        return self._through_library(chunk)

    def _through_library(self, chunk: Raw) -> tuple[Any, int]:
        """Encodes with any filters, in a file in memory that has one chunk.

        Each chunk gets a new copy of that file: where a chunk is overwritten, HDF5 1.14 keeps the old filter mask if
        the size is the same.
        """
        with h5py.File(io.BytesIO(self._image), "r+", libver=("v110", "latest")) as file:
            dataset = h5py.h5d.open(file.id, b"x")
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, chunk, h5py.h5t.decode(self._like.type))
            file.flush()
            mask, data = dataset.read_direct_chunk((0,) * chunk.ndim)
            return bytes(data), mask


def create_like(file: h5py.File, name: bytes, like: DatasetInfo, space: Any, plist: Any) -> None:
    """Creates a dataset whose filters are those of `like`. Call it within `verbatim_parameters`."""
    dataset = h5py.h5d.create(file.id, name, h5py.h5t.decode(like.type), space, plist)
    made = filters_of(dataset.get_create_plist())
    dataset.close()
    if not same_filters(made, like.filters):
        text = f"dataset {like.path!r}: its filters ({describe_filters(like.filters)}) cannot be recreated"
        raise MergeError("write", "", f"{text}: expected {_parameters(like.filters)}, got {_parameters(made)}")


def _parameters(filters: tuple[Filter, ...]) -> list[tuple[int, ...]]:
    return [(code, *values) for code, _, values in filters]


def _one_chunk_file(like: DatasetInfo) -> bytes:
    image = io.BytesIO()
    with verbatim_parameters(like.filter_names):
        with h5py.File(image, "w", libver=("v110", "latest")) as file:
            create_like(file, b"x", like, h5py.h5s.create_simple(like.chunks), plist_of(like))
    return image.getvalue()
