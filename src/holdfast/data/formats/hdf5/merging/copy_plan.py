"""Plans a merge: which rows of which source go where, which chunks are copied, and which rows are written anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ..filters import GZIP, LZF, SHUFFLE, ZSTD, describe_filters, is_lossless, is_own, same_filters
from ..schema_layout import offsets_name, values_per_row
from .compatibility import MergeColumn, MergeSchema, type_name
from .merge_model import NO_CRC, DatasetInfo, Ints, MergeError, MergeTarget, RowRange

SplitAt = Callable[[MergeTarget, int, int], int]  # an offset of a source, by its number

_MIN_ALIGNED = 0.5  # a column's chunks are kept intact if at least this part of all rows stays in full chunks
_PIECE_BYTES = 1 << 20  # of a dataset without chunks
SHUFFLE_ITEMS = (SHUFFLE, 1, ())  # the library adds the size of an item, which it alone knows for strings
_CODECS = {"none": (), "gzip": ((GZIP, 1, (4,)),), "lzf": ((LZF, 1, ()),), "zstd": ((ZSTD, 1, (3,)),)}

# Columns of a copy: the chunk's number in the grid (contiguous: its byte offset in the dataset), the source of its
# bytes, their offset there, their size, the filter mask, and their expected crc32c.
NUMBER, FILE, OFFSET, SIZE, MASK, CRC = range(6)


@dataclass(slots=True)
class CopyPlan:
    """`copies` sorted by number. `builds`: rows [from, to) of the result that the library writes."""

    target: MergeTarget
    copies: Ints = field(default_factory=lambda: np.zeros((0, 6), np.int64))
    builds: list[tuple[int, int]] = field(default_factory=list)
    view: bool = False

    @property
    def method(self) -> str:
        if self.view:
            return "view"
        if self.target.like.dtype.hasobject and self.builds:
            return "objects"
        return " and ".join(["copy"] * bool(len(self.copies)) + ["build"] * bool(self.builds)) or "nothing"

    def inflated(self, *, decode: bool) -> Ints:
        """Returns the size of each copied chunk after gzip, if zlib alone can check it, and 0 otherwise."""
        like = self.target.like
        if not decode or like.codes not in ((GZIP,), (SHUFFLE, GZIP)) or like.chunks is None:
            return np.zeros(len(self.copies), np.int64)
        is_alone = (self.copies[:, CRC] == NO_CRC) & (self.copies[:, MASK] == 0)
        return np.where(is_alone, math.prod(like.chunks) * int(like.type.get_size()), 0)

    @property
    def built_rows(self) -> int:
        return sum(high - low for low, high in self.builds)

    @property
    def built_chunks(self) -> int:
        size, across = self.target.like.chunk_rows, self.target.like.across
        return sum(-(-high // size) - low // size for low, high in self.builds) * across


def assign_rows(schema: MergeSchema, order: str, given: list[RowRange] | None, split_at: SplitAt) -> None:
    """Gives every target its rows, the same for every column. `given`: the order that the caller asks for."""
    for target in schema.targets.values():
        if target.shared:
            target.runs = [RowRange(0, 0, target.like.rows)]
    odd = next((column for column in schema.columns if column.rows != schema.columns[0].rows), None)
    if odd is not None and (given is not None or order == "any"):
        first = schema.columns[0]
        lengths = f"{first.path!r} has {first.rows[0]:,} rows, {odd.path!r} has {odd.rows[0]:,}"
        if given is not None:
            raise MergeError("schema", schema.sources[0].path, f"datasets differ in length: {lengths}")
        schema.notes.append(
            f"datasets differ in length ({lengths}): the exact order is used, so that they still correspond"
        )
    for column in schema.columns:
        if given is not None:
            _check_given(schema, column, given)
            runs = given
        elif order == "any" and odd is None:
            runs = _whole_chunks_first(schema)
        else:
            runs = [RowRange(file, 0, rows) for file, rows in enumerate(column.rows)]
        _assign(schema, column, [run for run in runs if run.rows], split_at)


def _check_given(schema: MergeSchema, column: MergeColumn, given: list[RowRange]) -> None:
    for file, rows in enumerate(column.rows):
        at = 0
        for run in sorted(run for run in given if run.file == file):
            if run.start != at:
                break
            at = run.stop
        if at != rows:
            text = f"{column.path!r} has {rows:,} rows, but the runs in its record cover {at:,}"
            raise MergeError("corrupt", schema.sources[file].path, text)


def _whole_chunks_first(schema: MergeSchema) -> list[RowRange]:
    rows = schema.columns[0].rows
    step = _aligned_rows(schema, rows)
    heads = [n // step * step for n in rows]
    whole = [RowRange(file, 0, head) for file, head in enumerate(heads)]
    return whole + [RowRange(file, heads[file], n) for file, n in enumerate(rows)]


def _aligned_rows(schema: MergeSchema, rows: list[int]) -> int:
    """Returns a number of rows at which the chunks of as many columns as is sensible end, the largest first."""
    likes = [schema.targets[column.path].like for column in schema.columns if column.column is None]
    step = 1
    for like in sorted(likes, key=lambda one: -one.row_bytes):
        longer = math.lcm(step, like.chunk_rows)
        if not like.dtype.hasobject and sum(n // longer * longer for n in rows) >= _MIN_ALIGNED * sum(rows):
            step = longer
    return step


def _assign(schema: MergeSchema, column: MergeColumn, runs: list[RowRange], split_at: SplitAt) -> None:
    path, kind = column.path, column.column
    while kind is not None and path not in schema.targets:
        times = values_per_row(kind)
        splits = schema.targets[f"{path}/{offsets_name(kind)}"]
        splits.splits = True
        splits.runs = [RowRange(run.file, run.start * times, run.stop * times) for run in runs]
        ends = [(run.file, *(split_at(splits, run.file, row) for row in run[1:])) for run in splits.runs]
        runs = [RowRange(*one) for one in ends if one[1] != one[2]]
        path, kind = f"{path}/values", getattr(kind, "inner", None)
    target = schema.targets[path]
    for run in runs:
        rows = target.sources[run.file].rows
        if run.start < 0 or run.rows < 0 or run.stop > rows:
            text = f"{path!r} has {rows:,} values, but its offsets go up to {run.stop:,}"
            raise MergeError("corrupt", schema.sources[run.file].path, text)
    target.runs = runs


def choose_filters(target: MergeTarget, codec: str | None, notes: list[str]) -> None:
    """Gives a dataset the filters of `codec`, or those that most of its rows have; a note names sources that differ.

    Chunks with other filters are not copied: their rows are decoded and encoded again.
    """
    like = target.like
    if codec is not None and like.row_bytes:
        packing = _CODECS[codec]
        pipeline = (SHUFFLE_ITEMS, *packing) if packing else ()
        chunks = like.chunks
        if chunks is None and pipeline:  # only chunks have filters
            rows = max(1, min(sum(one.rows for one in target.sources), _PIECE_BYTES // like.row_bytes))
            chunks = (rows, *like.row_shape)
        codes = tuple(code for code, _, _ in pipeline)
        if codes != like.codes:
            there = next((one.filters for one in target.sources if one.codes == codes), pipeline)
            target.like = replace(like, filters=there, chunks=chunks)
    odd = [one for one in target.sources if one.rows and one.codes != target.like.codes]
    if odd:
        were = ", ".join(sorted({describe_filters(one.filters) for one in odd}))
        which = f"{len(odd):,} of {len(target.sources):,} files had the filters {were}"
        notes.append(f"dataset {target.path!r}: {which}: compressed again with {describe_filters(target.like.filters)}")


def make_plan(target: MergeTarget, notes: list[str], *, view: bool = False) -> CopyPlan:
    """Changes the filters of the dataset where encoding its rows again would change them, or cannot be done.

    In a view only offsets and shared datasets are stored.
    """
    if view and not target.splits and not target.shared:
        return CopyPlan(target, view=True)
    like = target.like
    if not target.rows or not like.row_bytes:
        return CopyPlan(target)
    copies, at, builds = [np.zeros((0, 6), np.int64)], 0, []
    for first, last, found in [] if target.splits or like.dtype.hasobject else _copyable(target):
        builds += [(at, first)] * (at < first)
        copies.append(found)
        at = last
    builds += [(at, target.rows)] * (at < target.rows)
    if builds and like.dtype.hasobject and not all(is_own(code) for code in like.codes):
        why = f"cannot compress {type_name(like)} that is written one by one"
    elif builds and not like.dtype.hasobject and not is_lossless(like.filters):
        why = "may change values that are compressed again, as some chunks must be"
    else:
        return CopyPlan(target, np.concatenate(copies), builds)
    target.like = replace(like, filters=(SHUFFLE_ITEMS, *_CODECS["gzip"]))
    was, now = describe_filters(like.filters), describe_filters(target.like.filters)
    notes.append(f"dataset {target.path!r}: {was} {why}: it is compressed with {now} instead, which keeps every value")
    return make_plan(target, notes)


def _copyable(target: MergeTarget) -> Iterator[tuple[int, int, Ints]]:
    """Yields rows [first, last) of the result that a run has as they must be stored, and the copies for them."""
    like, size = target.like, target.like.chunk_rows
    for at, run in target.placed_runs():
        source, end = target.sources[run.file], at + run.rows
        if like.chunks is None:
            if source.offset is not None:
                yield at, end, _flat_copies(source, at, run)
            continue
        is_same = source.chunks == like.chunks and same_filters(source.filters, like.filters)
        if not is_same or source.has_unfiltered_edges or (at - run.start) % size:
            continue
        first, last = -(-at // size), end // size
        if end == target.rows and run.stop == source.rows:
            last = -(-end // size)  # the last chunk of the result is the last one of its source
        if first < last:
            start, across = (run.start + first * size - at) // size, like.across
            low, high = np.searchsorted(source.extents[:, 0], [start * across, (start + last - first) * across])
            found = source.extents[low:high]
            numbers = found[:, 0] + (first - start) * across
            copies = np.column_stack([numbers, np.full(len(found), run.file), found[:, 1:]])
            yield first * size, min(last * size, end), copies


def _flat_copies(source: DatasetInfo, at: int, run: RowRange) -> Ints:
    assert source.offset is not None
    width, step = source.row_bytes, max(1, _PIECE_BYTES // source.row_bytes)
    rows = np.arange(0, run.rows, step)
    copies = np.zeros((len(rows), 6), np.int64)
    copies[:, NUMBER], copies[:, OFFSET] = (at + rows) * width, source.offset + (run.start + rows) * width
    copies[:, FILE], copies[:, CRC] = run.file, NO_CRC
    copies[:, SIZE] = np.minimum(step, run.rows - rows) * width
    return copies
