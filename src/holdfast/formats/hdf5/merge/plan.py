"""Of each chunk of the result: is it a source's as it is, or to be built from rows?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ..filters import GZIP, LZF, SHUFFLE, ZSTD, is_lossless, is_own, same_filters
from .encode import filters_said
from .facts import NO_CRC, Dataset, Ints, Run, Target, codes_of

SPOOL, BUILT = -2, -3  # in place of a source's number
_REPLACED_BY = GZIP, 1, (4,)  # the level that h5py takes by itself
_LZF, _ZSTD = (LZF, 1, ()), (ZSTD, 1, (3,))
PIECE_BYTES = 1 << 20  # of a dataset without chunks

# One job: the chunk's number in the grid (without chunks: where it begins, in bytes), whose bytes it gets, where they
# are there, how many they are, the filter mask, the crc32c they must have.
NUMBER, FILE, OFFSET, SIZE, MASK, CRC = range(6)


@dataclass(slots=True)
class Plan:
    """`jobs` by number. `packs`: row chunks [from, to) that are to be packed anew before their size is known."""

    target: Target
    method: str  # "copy", "copy and build", "build", "objects", "nothing"
    jobs: Ints = field(default_factory=lambda: np.zeros((0, 6), np.int64))
    packs: list[tuple[int, int]] = field(default_factory=list)

    @property
    def flat(self) -> bool:
        return self.target.like.chunks is None


def make_plan(target: Target) -> Plan:
    if target.like.has_objects:
        return Plan(target, "objects" if target.rows else "nothing")
    if not target.rows or not target.like.row_bytes:
        return Plan(target, "nothing")
    return _plan_flat(target) if target.like.chunks is None else _plan_chunks(target)


def settle_filters(target: Target, codec: str | None, notes: list[str]) -> None:
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


def with_lossless_filters(plan: Plan, notes: list[str]) -> Plan:
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


def placed(target: Target) -> Iterator[tuple[int, Run]]:
    """Each run, and at which row of the result it begins."""
    at = int(target.ends)
    for run in target.runs:
        yield at, run
        at += run.rows


# ---- without chunks


def _plan_flat(target: Target) -> Plan:
    jobs: list[tuple[int, ...]] = []
    width, copied, built = target.like.row_bytes, 0, 0
    step = max(1, PIECE_BYTES // width)
    if target.ends:  # every end is moved by what lies before it
        starts = range(0, target.rows, step)
        jobs = [(row * width, BUILT, 0, min(step, target.rows - row) * width, 0, NO_CRC) for row in starts]
        return Plan(target, "build", np.array(jobs, np.int64))
    for at, run in placed(target):
        source = target.sources[run.file]
        for row in range(0, run.rows, step):
            n = min(step, run.rows - row)
            here = (source.offset or 0) + (run.start + row) * width
            file = BUILT if source.offset is None else run.file
            jobs.append(((at + row) * width, file, here, n * width, 0, NO_CRC))
            copied, built = copied + (file != BUILT), built + (file == BUILT)
    return Plan(target, _method(copied, built), np.array(jobs, np.int64).reshape(-1, 6))


# ---- with chunks


def _plan_chunks(target: Target) -> Plan:
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
        return Plan(target, method, _joined(copies), builds)
    raw = [_raw_jobs(low * across, high * across, like.chunk_bytes) for low, high in builds]
    return Plan(target, method, _joined(copies + raw))


def _whole(target: Target, size: int, total: int) -> Iterator[tuple[int, int, Run, int]]:
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


def same_packing(one: Dataset, other: Dataset) -> bool:
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


def with_packed(plan: Plan, packed: Ints) -> Ints:
    """The jobs, and those for chunks that were packed into the spool."""
    return _joined([plan.jobs, packed])
