"""Plans a merge: which rows of which source go where, and which chunks of the result are copied and which rebuilt."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ..filters import GZIP, LZF, SHUFFLE, ZSTD, describe_filters, is_lossless, is_own, same_filters
from ..schema_layout import offsets_name, values_per_row
from .compatibility import MergeColumn, MergeSchema
from .merge_model import NO_CRC, DatasetInfo, Ints, MergeError, MergeTarget, RowRange, codes_of

_MIN_ALIGNED = 0.5  # a column's chunks are kept intact if at least this part of all rows stays in full chunks

SplitAt = Callable[[MergeTarget, int, int], int]  # an offset of a source, by its number


def assign_rows(schema: MergeSchema, order: str, given: list[RowRange] | None, split_at: SplitAt) -> None:
    """Gives every target its rows, the same for every column. `given`: the order that the caller asks for."""
    lengths = {tuple(column.rows) for column in schema.columns}
    for target in schema.targets.values():
        if target.shared:
            target.runs = [RowRange(0, 0, target.like.rows)]
    if len(lengths) > 1 and (given is not None or order == "any"):
        one, two = _different(schema.columns)
        lengths_text = f"{one.path!r} has {one.rows[0]:,} rows, {two.path!r} has {two.rows[0]:,}"
        if given is not None:
            raise MergeError("schema", schema.sources[0].path, f"datasets differ in length: {lengths_text}")
        schema.notes.append(
            f"datasets differ in length ({lengths_text}): the exact order is used, so that they still correspond"
        )
    for column in schema.columns:
        if given is not None:
            runs = _checked(schema, column, given)
        elif order == "any" and len(lengths) == 1:
            runs = _whole_chunks_first(schema)
        else:
            runs = [RowRange(file, 0, rows) for file, rows in enumerate(column.rows)]
        _assign(schema, column, [run for run in runs if run.rows], split_at)


def _different(columns: list[MergeColumn]) -> tuple[MergeColumn, MergeColumn]:
    first = columns[0]
    return first, next(column for column in columns if column.rows != first.rows)


def _checked(schema: MergeSchema, column: MergeColumn, given: list[RowRange]) -> list[RowRange]:
    for file, rows in enumerate(column.rows):
        at = 0
        for run in sorted(run for run in given if run.file == file):
            if run.start != at:
                break
            at = run.stop
        if at != rows:
            text = f"{column.path!r} has {rows:,} rows, but the runs in its record cover {at:,}"
            raise MergeError("corrupt", schema.sources[file].path, text)
    return given


def _whole_chunks_first(schema: MergeSchema) -> list[RowRange]:
    rows = schema.columns[0].rows
    step = _aligned_rows(schema, rows)
    heads = [n // step * step for n in rows]
    return [RowRange(file, 0, head) for file, head in enumerate(heads)] + [
        RowRange(file, head, n) for file, (head, n) in enumerate(zip(heads, rows, strict=True))
    ]


def _aligned_rows(schema: MergeSchema, rows: list[int]) -> int:
    """Returns a number of rows at which the chunks of as many columns as is sensible end, the largest first."""
    plain = [schema.targets[column.path] for column in schema.columns if column.column is None]
    chunked = [target for target in plain if target.like.chunks and not target.like.has_objects]
    step = 1
    for target in sorted(chunked, key=lambda one: -one.like.row_bytes):
        assert target.like.chunks is not None
        longer = math.lcm(step, target.like.chunks[0])
        if sum(n // longer * longer for n in rows) >= _MIN_ALIGNED * sum(rows):
            step = longer
    return step


def _assign(schema: MergeSchema, column: MergeColumn, runs: list[RowRange], split_at: SplitAt) -> None:
    if column.column is None:
        schema.targets[column.path].runs = runs
        return
    path, kind = column.path, column.column
    while True:
        times = values_per_row(kind)
        splits = schema.targets[f"{path}/{offsets_name(kind)}"]
        splits.splits = True
        splits.runs = [RowRange(run.file, run.start * times, run.stop * times) for run in runs]
        runs = [
            RowRange(run.file, split_at(splits, run.file, run.start), split_at(splits, run.file, run.stop))
            for run in splits.runs
        ]
        runs = [run for run in runs if run.rows]
        path = f"{path}/values"
        if f"{path}/offsets" not in schema.targets and f"{path}/row_splits" not in schema.targets:
            break
        kind = kind.inner
    values = schema.targets[path]
    for run in runs:
        if run.start < 0 or run.rows < 0 or run.stop > values.sources[run.file].rows:
            text = f"{path!r} has {values.sources[run.file].rows:,} values, but its offsets go up to {run.stop:,}"
            raise MergeError("corrupt", schema.sources[run.file].path, text)
    values.runs = runs


SPOOL, BUILT = -2, -3  # in place of a source's number
_GZIP = GZIP, 1, (4,)  # h5py's default level
_LZF, _ZSTD = (LZF, 1, ()), (ZSTD, 1, (3,))
PIECE_BYTES = 1 << 20  # of a dataset without chunks

# Columns of a job: the chunk's number in the grid (contiguous: its byte offset in the dataset), the source of its
# bytes, their offset there, their size, the filter mask, and their expected crc32c.
NUMBER, FILE, OFFSET, SIZE, MASK, CRC = range(6)


@dataclass(slots=True)
class CopyPlan:
    """`jobs` sorted by number. `packs`: row chunks [from, to) to be compressed before their size is known."""

    target: MergeTarget
    method: str  # "copy", "copy and build", "build", "objects", "nothing"
    jobs: Ints = field(default_factory=lambda: np.zeros((0, 6), np.int64))
    packs: list[tuple[int, int]] = field(default_factory=list)

    @property
    def flat(self) -> bool:
        return self.target.like.chunks is None


def make_plan(target: MergeTarget) -> CopyPlan:
    if target.like.has_objects:
        return CopyPlan(target, "objects" if target.rows else "nothing")
    if not target.rows or not target.like.row_bytes:
        return CopyPlan(target, "nothing")
    return _plan_flat(target) if target.like.chunks is None else _plan_chunks(target)


def choose_filters(target: MergeTarget, codec: str | None, notes: list[str]) -> None:
    """Gives a dataset the filters of `codec`, or those that most of its rows have; a note names sources that differ.

    Chunks with other filters are not copied: their rows are decoded and encoded again.
    """
    like = target.like
    if codec is not None and like.row_bytes:
        shuffle = (SHUFFLE, 1, (like.item_bytes,))
        pipeline = {"none": (), "gzip": (shuffle, _GZIP), "lzf": (shuffle, _LZF), "zstd": (shuffle, _ZSTD)}[codec]
        chunks = like.chunks
        if chunks is None and pipeline:  # only chunks have filters
            rows = max(1, min(sum(one.rows for one in target.sources), PIECE_BYTES // like.row_bytes))
            chunks = (rows, *like.row_shape)
        if [code for code, _, _ in pipeline] != list(codes_of(like)):
            target.like = replace(like, filters=pipeline, chunks=chunks)
    odd = [one for one in target.sources if one.rows and codes_of(one) != codes_of(target.like)]
    if odd:
        were = ", ".join(sorted({describe_filters(one.filters) for one in odd}))
        now = describe_filters(target.like.filters)
        which = f"{len(odd):,} of {len(target.sources):,} files"
        notes.append(f"dataset {target.path!r}: {which} had the filters {were}: compressed again with {now}")


def with_lossless_filters(plan: CopyPlan, notes: list[str]) -> CopyPlan:
    """Changes the filters of a dataset where encoding its rows again would change them, or cannot be done."""
    target, filters = plan.target, plan.target.like.filters
    if plan.packs and not is_lossless(filters):
        why = "may change values that are compressed again, as some chunks must be"
    elif plan.method == "objects" and not all(is_own(code) for code, _, _ in filters):
        why = f"cannot compress {target.like.type_name} that is written one by one"
    else:
        return plan
    was = describe_filters(target.like.filters)
    target.like = replace(target.like, filters=((SHUFFLE, 1, (target.like.item_bytes,)), _GZIP))
    now = describe_filters(target.like.filters)
    notes.append(f"dataset {target.path!r}: {was} {why}: it is compressed with {now} instead, which keeps every value")
    return make_plan(target)


def _method(copied: int, built: int) -> str:
    return "copy and build" if copied and built else "build" if built else "copy" if copied else "nothing"


def placed_runs(target: MergeTarget) -> Iterator[tuple[int, RowRange]]:
    """Yields each run with its first row in the result."""
    at = int(target.splits)
    for run in target.runs:
        yield at, run
        at += run.rows


def _plan_flat(target: MergeTarget) -> CopyPlan:
    jobs: list[tuple[int, ...]] = []
    width, copied, built = target.like.row_bytes, 0, 0
    step = max(1, PIECE_BYTES // width)
    if target.splits:  # every offset is shifted
        starts = range(0, target.rows, step)
        jobs = [(row * width, BUILT, 0, min(step, target.rows - row) * width, 0, NO_CRC) for row in starts]
        return CopyPlan(target, "build", np.array(jobs, np.int64))
    for at, run in placed_runs(target):
        source = target.sources[run.file]
        for row in range(0, run.rows, step):
            n = min(step, run.rows - row)
            here = (source.offset or 0) + (run.start + row) * width
            file = BUILT if source.offset is None else run.file
            jobs.append(((at + row) * width, file, here, n * width, 0, NO_CRC))
            copied, built = copied + (file != BUILT), built + (file == BUILT)
    return CopyPlan(target, _method(copied, built), np.array(jobs, np.int64).reshape(-1, 6))


def _plan_chunks(target: MergeTarget) -> CopyPlan:
    like = target.like
    assert like.chunks is not None
    size, total = like.chunks[0], target.rows
    across, copies, at = like.across, [], 0
    builds: list[tuple[int, int]] = []
    for first, last, run, start in _copyable(target, size, total):
        if at < first:
            builds.append((at, first))
        source = target.sources[run.file]
        low, high = np.searchsorted(source.extents[:, 0], [start * across, (start + last - first) * across])
        found = source.extents[low:high]
        shifted = found[:, 0] + (first - start) * across
        copies.append(np.column_stack([shifted, np.full(len(found), run.file), found[:, 1:]]))
        at = last
    if at * size < total:
        builds.append((at, -(-total // size)))
    method = _method(len(copies), len(builds))
    if like.filters:
        return CopyPlan(target, method, _joined(copies), builds)
    raw = [_raw_jobs(low * across, high * across, like.chunk_bytes) for low, high in builds]
    return CopyPlan(target, method, _joined(copies + raw))


def _copyable(target: MergeTarget, size: int, total: int) -> Iterator[tuple[int, int, RowRange, int]]:
    """Yields row chunks [first, last) of the result that a run has unchanged, and the first row chunk in its source."""
    if target.splits:
        return  # every offset is shifted
    for at, run in placed_runs(target):
        source = target.sources[run.file]
        if not same_packing(source, target.like) or (at - run.start) % size:
            continue
        first, end = -(-at // size), at + run.rows
        last = end // size
        if end == total and end % size and run.stop == source.rows:
            last += 1  # the last chunk of the result is the last one of its source
        if first < last:
            yield first, last, run, (run.start + first * size - at) // size


def same_packing(one: DatasetInfo, other: DatasetInfo) -> bool:
    """Tells whether chunks of the one can be copied into the other."""
    return one.chunks == other.chunks and same_filters(one.filters, other.filters)


def _raw_jobs(low: int, high: int, size: int) -> Ints:
    numbers = np.arange(low, high)
    jobs = np.zeros((len(numbers), 6), np.int64)
    jobs[:, NUMBER], jobs[:, FILE], jobs[:, SIZE], jobs[:, CRC] = numbers, BUILT, size, NO_CRC
    return jobs


def _joined(parts: list[Ints]) -> Ints:
    jobs: Ints = np.concatenate([np.zeros((0, 6), np.int64), *parts])
    return jobs[np.argsort(jobs[:, NUMBER], kind="stable")]


def with_packed(plan: CopyPlan, packed: Ints) -> Ints:
    """Returns the jobs with those for chunks that were compressed into the spool."""
    return _joined([plan.jobs, packed])
