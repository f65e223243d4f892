"""Which rows of which source come where: the same for every column, so that a sample stays one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ....schema import Ragged
from ..filters import GZIP, LZF, SHUFFLE, ZSTD, is_lossless, is_own, same_filters
from .chunk_filters import filters_said
from .compatibility import MergeColumn, MergeSchema
from .model import NO_CRC, DatasetInfo, Ints, MergeError, MergeTarget, RowRange, codes_of

EXACT, ANY = "exact", "any"
_WORTH = 0.5  # of all rows: what must stay in whole chunks for a column's chunks to be kept whole

EndAt = Callable[[MergeTarget, int, int], int]  # of ends in a source, the one with this number


def give_runs(made: MergeSchema, order: str, wanted: list[RowRange] | None, end_at: EndAt) -> None:
    """Every target gets its rows. `expected`: where the caller says in which order."""
    lengths = {tuple(column.rows) for column in made.columns}
    for target in made.targets.values():
        if target.kept:
            target.runs = [RowRange(0, 0, target.like.rows)]
    if len(lengths) > 1 and (wanted is not None or order == ANY):
        one, two = _unlike(made.columns)
        told = f"{one.path!r} has {one.rows[0]:,} rows, {two.path!r} has {two.rows[0]:,}"
        if wanted is not None:
            raise MergeError("schema", made.sources[0].path, f"datasets differ in length: {told}")
        made.notes.append(f"datasets differ in length ({told}): the order is kept, so that they still fit together")
    for column in made.columns:
        if wanted is not None:
            runs = _checked(made, column, wanted)
        elif order == ANY and len(lengths) == 1:
            runs = _whole_chunks_first(made)
        else:
            runs = [RowRange(file, 0, rows) for file, rows in enumerate(column.rows)]
        _give(made, column, [run for run in runs if run.rows], end_at)


def _unlike(columns: list[MergeColumn]) -> tuple[MergeColumn, MergeColumn]:
    first = columns[0]
    return first, next(column for column in columns if column.rows != first.rows)


def _checked(made: MergeSchema, column: MergeColumn, wanted: list[RowRange]) -> list[RowRange]:
    for file, rows in enumerate(column.rows):
        at = 0
        for run in sorted(run for run in wanted if run.file == file):
            if run.start != at:
                break
            at = run.stop
        if at != rows:
            text = f"{column.path!r} has {rows:,} rows, its record's runs speak of {at:,}"
            raise MergeError("corrupt", made.sources[file].path, text)
    return wanted


def _whole_chunks_first(made: MergeSchema) -> list[RowRange]:
    rows = made.columns[0].rows
    step = _step(made, rows)
    heads = [n // step * step for n in rows]
    return [RowRange(file, 0, head) for file, head in enumerate(heads)] + [
        RowRange(file, head, n) for file, (head, n) in enumerate(zip(heads, rows, strict=True))
    ]


def _step(made: MergeSchema, rows: list[int]) -> int:
    """So many rows that the chunks of all columns end together; of as many columns, by their bytes, as is sensible."""
    plain = [made.targets[column.path] for column in made.columns if column.mark is None]
    chunked = [target for target in plain if target.like.chunks and not target.like.has_objects]
    step = 1
    for target in sorted(chunked, key=lambda one: -one.like.row_bytes):
        assert target.like.chunks is not None
        longer = math.lcm(step, target.like.chunks[0])
        if sum(n // longer * longer for n in rows) >= _WORTH * sum(rows):
            step = longer
    return step


def _give(made: MergeSchema, column: MergeColumn, runs: list[RowRange], end_at: EndAt) -> None:
    if column.mark is None:
        made.targets[column.path].runs = runs
        return
    path, mark = column.path, column.mark
    while True:
        listed = isinstance(mark, Ragged)
        times = 1 if listed else mark.count
        ends = made.targets[f"{path}/{'row_splits' if listed else 'offsets'}"]
        ends.ends = True
        ends.runs = [RowRange(run.file, run.start * times, run.stop * times) for run in runs]
        runs = [
            RowRange(run.file, end_at(ends, run.file, run.start), end_at(ends, run.file, run.stop)) for run in ends.runs
        ]
        runs = [run for run in runs if run.rows]
        path = f"{path}/values"
        if f"{path}/offsets" not in made.targets and f"{path}/row_splits" not in made.targets:
            break
        mark = mark.inner
    values = made.targets[path]
    for run in runs:
        if run.start < 0 or run.rows < 0 or run.stop > values.sources[run.file].rows:
            text = f"{path!r} has {values.sources[run.file].rows:,} values, its ends speak of {run.stop:,}"
            raise MergeError("corrupt", made.sources[run.file].path, text)
    values.runs = runs


# Of each chunk of the result: is it a source's as it is, or to be built from rows?

SPOOL, BUILT = -2, -3  # in place of a source's number
_REPLACED_BY = GZIP, 1, (4,)  # the level that h5py takes by itself
_LZF, _ZSTD = (LZF, 1, ()), (ZSTD, 1, (3,))
PIECE_BYTES = 1 << 20  # of a dataset without chunks

# One job: the chunk's number in the grid (without chunks: where it begins, in bytes), whose bytes it gets, where they
# are there, how many they are, the filter mask, the crc32c they must have.
NUMBER, FILE, OFFSET, SIZE, MASK, CRC = range(6)


@dataclass(slots=True)
class CopyPlan:
    """`jobs` by number. `packs`: row chunks [from, to) that are to be packed anew before their size is known."""

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


def settle_filters(target: MergeTarget, codec: str | None, notes: list[str]) -> None:
    """Gives a dataset the filters of `codec`, or else those that most of its rows have; a note names those that differ.

    Chunks of other filters are not copied: their rows are unpacked and packed again.
    """
    like = target.like
    if codec is not None and like.row_bytes:
        shuffle = (SHUFFLE, 1, (like.item_bytes,))
        pipeline = {"none": (), "gzip": (shuffle, _REPLACED_BY), "lzf": (shuffle, _LZF), "zstd": (shuffle, _ZSTD)}[
            codec
        ]
        chunks = like.chunks
        if chunks is None and pipeline:  # only chunks have filters
            rows = max(1, min(sum(one.rows for one in target.sources), PIECE_BYTES // like.row_bytes))
            chunks = (rows, *like.row_shape)
        if [code for code, _, _ in pipeline] != list(codes_of(like)):
            target.like = replace(like, filters=pipeline, chunks=chunks)
    odd = [one for one in target.sources if one.rows and codes_of(one) != codes_of(target.like)]
    if odd:
        were = ", ".join(sorted({filters_said(one) for one in odd}))
        which = f"{len(odd):,} of {len(target.sources):,} files"
        notes.append(
            f"dataset {target.path!r}: {which} had the filters {were}: packed again with {filters_said(target.like)}"
        )


def with_lossless_filters(plan: CopyPlan, notes: list[str]) -> CopyPlan:
    """Gives a dataset other filters where packing rows once more would change them, or cannot be done."""
    target, filters = plan.target, plan.target.like.filters
    if plan.packs and not is_lossless(filters):
        why = "may change values that are packed again, and some chunks have to be"
    elif plan.method == "objects" and not all(is_own(code) for code, _, _ in filters):
        why = f"does not pack {target.like.words} that are written one by one"
    else:
        return plan
    was = filters_said(target.like)
    target.like = replace(target.like, filters=((SHUFFLE, 1, (target.like.item_bytes,)), _REPLACED_BY))
    now = filters_said(target.like)
    notes.append(f"dataset {target.path!r}: {was} {why}: all of it is packed with {now} instead, every value as it was")
    return make_plan(target)


def _method(copied: int, built: int) -> str:
    return "copy and build" if copied and built else "build" if built else "copy" if copied else "nothing"


def placed(target: MergeTarget) -> Iterator[tuple[int, RowRange]]:
    """Each run, and at which row of the result it begins."""
    at = int(target.ends)
    for run in target.runs:
        yield at, run
        at += run.rows


# ---- without chunks


def _plan_flat(target: MergeTarget) -> CopyPlan:
    jobs: list[tuple[int, ...]] = []
    width, copied, built = target.like.row_bytes, 0, 0
    step = max(1, PIECE_BYTES // width)
    if target.ends:  # every end is moved by what lies before it
        starts = range(0, target.rows, step)
        jobs = [(row * width, BUILT, 0, min(step, target.rows - row) * width, 0, NO_CRC) for row in starts]
        return CopyPlan(target, "build", np.array(jobs, np.int64))
    for at, run in placed(target):
        source = target.sources[run.file]
        for row in range(0, run.rows, step):
            n = min(step, run.rows - row)
            here = (source.offset or 0) + (run.start + row) * width
            file = BUILT if source.offset is None else run.file
            jobs.append(((at + row) * width, file, here, n * width, 0, NO_CRC))
            copied, built = copied + (file != BUILT), built + (file == BUILT)
    return CopyPlan(target, _method(copied, built), np.array(jobs, np.int64).reshape(-1, 6))


# ---- with chunks


def _plan_chunks(target: MergeTarget) -> CopyPlan:
    like = target.like
    assert like.chunks is not None
    size, total = like.chunks[0], target.rows
    across, copies, at = like.across, [], 0
    builds: list[tuple[int, int]] = []
    for first, last, run, start in _whole(target, size, total):
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


def _whole(target: MergeTarget, size: int, total: int) -> Iterator[tuple[int, int, RowRange, int]]:
    """Row chunks [first, last) of the result that a run has as they are, and which of its source's they begin with."""
    if target.ends:
        return  # every end is moved by what lies before it
    for at, run in placed(target):
        source = target.sources[run.file]
        if not same_packing(source, target.like) or (at - run.start) % size:
            continue
        first, end = -(-at // size), at + run.rows
        last = end // size
        if end == total and end % size and run.stop == source.rows:
            last += 1  # the last chunk of all ends where its source's does
        if first < last:
            yield first, last, run, (run.start + first * size - at) // size


def same_packing(one: DatasetInfo, other: DatasetInfo) -> bool:
    """Whether a chunk of the one is a chunk of the other."""
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
    """The jobs, and those for chunks that were packed into the spool."""
    return _joined([plan.jobs, packed])
