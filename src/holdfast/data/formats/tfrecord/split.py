"""Splits TFRecord files into parts. Every record keeps its order.

Batches of frames are copied and their CRCs checked. The parts are written to a hidden directory, read back, and appear
all together; the manifest is written last.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...._util.atomic import check_absent, check_unchanged, staging_dir
from ...._util.parallel import Stop, run_all
from ...._util.progress import Progress, scaled
from ....errors import InputError
from ..base import FileEntry
from ..columns import Ints
from ..targets import MAX_SHARDS, SHARD_NUMBER, ShardCut, TargetName, publish
from .format import TFRECORD
from .frame_stream import FrameBatches, Put
from .manifest import find_manifest
from .merge import Files, take_stamps, write_verified
from .writer import PackWith


class SplitMark(NamedTuple):
    """A position to begin reading at: a record's number over all files, and its file, number and offset there."""

    record: int
    file: int
    record_in_file: int
    offset: int


class SplitPlan(NamedTuple):
    files: Files
    marks: list[SplitMark]  # one for each batch of frames: some hundred bytes for half a megabyte of input
    counts: list[int]  # records in each part
    firsts: list[int]  # each part's first record


def make_plan(
    files: Files, parts: int | None, part_bytes: int | None, jobs: int, stop: Stop, tick: Progress
) -> SplitPlan:
    cut = None if part_bytes is None else ShardCut(shard_bytes=part_bytes)

    def find_marks(number: int) -> tuple[list[SplitMark], int]:
        return _marks(number, files[number], cut, tick)

    # Where a part of a given size ends depends on all records before, so files are read one after the other.
    found_in_files = run_all(find_marks, range(len(files)), 1 if cut else jobs, stop)
    bases = list(accumulate((count for _, count in found_in_files), initial=0))
    marks = [
        mark._replace(record=base + mark.record)
        for base, (found, _) in zip(bases, found_in_files, strict=False)
        for mark in found
    ]
    if cut:
        counts = cut.counts
    else:
        assert parts is not None
        base, more = divmod(bases[-1], parts)
        counts = [base + (i < more) for i in range(parts)]
    return SplitPlan(files, marks, counts, list(accumulate(counts, initial=0))[:-1])


def _marks(
    number: int, file: str | os.PathLike[str], cut: ShardCut | None, tick: Progress
) -> tuple[list[SplitMark], int]:
    """Returns where the batches of one file begin, and how many records it has. Checks the CRCs of lengths only."""
    marks: list[SplitMark] = []

    def put(frames: memoryview, starts: Ints) -> None:
        if cut is not None:
            for _ in cut.spans(len(starts), np.append(starts, len(frames))):
                pass  # it counts the records of each part

    with FrameBatches(file, verify="header", progress=tick) as batches:
        while True:
            mark = SplitMark(batches.record, number, batches.record, batches.offset)
            records = batches.next(put)
            if records is None:
                return marks, batches.record
            if records:
                marks.append(mark)


def lanes_of(parts: int, jobs: int) -> list[range]:
    """Divides the parts into ranges, which a thread writes one after the other while it reads forward.

    There are several ranges per thread, so that all threads finish at about the same time.
    """
    lanes = min(parts, 1 if jobs <= 1 else 4 * jobs)
    return [range(parts * i // lanes, parts * (i + 1) // lanes) for i in range(lanes)]


class RecordCursor:
    """Reads the input from any record on; continuing from the current one costs nothing. One file is open."""

    def __init__(self, plan: SplitPlan, tick: Progress) -> None:
        self._plan = plan
        self._tick = tick
        self._batches: FrameBatches | None = None
        self._file = -1
        self._record = -1

    def copy(self, first: int, count: int, put: Put) -> None:
        """Passes `count` records to `put`, from record `first` on, counted over all files."""
        if count and first != self._record:
            self._seek(first)
        self._take(count, put)

    def _seek(self, record: int) -> None:
        mark = self._plan.marks[bisect_right(self._plan.marks, record, key=lambda mark: mark.record) - 1]
        self._open(mark.file, mark.record_in_file, mark.offset)
        self._record = mark.record
        self._take(record - mark.record, lambda frames, starts: None)

    def _take(self, count: int, put: Put) -> None:
        while count:
            assert self._batches is not None
            taken = self._batches.next(put, count)
            if taken is None:
                self._open(self._file + 1, 0, 0)
            else:
                count -= taken
                self._record += taken

    def _open(self, file: int, record: int, offset: int) -> None:
        self.close()
        if file == len(self._plan.files):
            raise InputError(f"{os.fspath(self._plan.files[-1])}: it has fewer records than when they were counted")
        self._batches = FrameBatches(self._plan.files[file], record=record, offset=offset, progress=self._tick)
        self._file = file

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()


_PASSES = 3  # count, copy, read back
_SUFFIXES = {"gzip": ".tfrecord.gz", "zlib": ".tfrecord.zlib"}


def split_files(
    files: Files,
    folder: str | os.PathLike[str],
    *,
    parts: int | None = None,
    part_bytes: int | None = None,
    name: str | None = None,
    compression: PackWith = "none",
    progress: Progress | None = None,
    jobs: int = 1,
) -> list[FileEntry]:
    """Writes all records of all files, in order, to `parts` new files of about equal length, or of `part_bytes`.

    Files are named NAME-00000-of-00004.tfrecord, so that sorted names keep the order. They appear all together, and the
    folder's manifest is written last. `part_bytes` is the size before compression; a larger record gets a part of its
    own. `progress` is called with numbers of bytes, which add up to the size of the files. `jobs` threads write at the
    same time, unless the input is compressed.
    """
    stem = _checked_stem(files, parts, part_bytes, name)
    stamps, is_compressed = take_stamps(files)
    target = TargetName(Path(folder), stem, _SUFFIXES.get(compression, ".tfrecord"), TFRECORD)
    jobs = 1 if is_compressed else jobs
    stop = Stop()
    report = scaled(progress, 1 / _PASSES)

    def tick(n: float) -> None:
        stop.check()
        report(n)

    busy = f"another split into {target.folder} under the name {stem}"
    with staging_dir(target.folder, f"{stem}.split", busy=busy) as staging:
        plan = make_plan(files, parts, part_bytes, jobs, stop, tick)
        names = target.shards(len(plan.counts))
        check_absent(target.folder, names, "remove it, or choose another folder or name")
        find_manifest(target.folder / names[0])  # raises now if the manifest cannot be extended
        size = sum(stamp.size for stamp in stamps.values())
        work = _Split(plan, [staging / name for name in names], compression, size, tick)
        lanes = lanes_of(len(names), jobs)
        entries = [entry for lane in run_all(work.write_parts, lanes, jobs, stop) for entry in lane]
        check_unchanged(stamps)
        return publish(entries, target, names)


def _checked_stem(files: Files, parts: int | None, part_bytes: int | None, name: str | None) -> str:
    if (parts is None) == (part_bytes is None):
        raise ValueError("expected either parts= or part_bytes=")
    if parts is not None and not 1 <= parts <= MAX_SHARDS:
        raise ValueError(f"expected from 1 to {MAX_SHARDS:,} parts, got {parts:,}")
    if part_bytes is not None and part_bytes < 1:
        raise ValueError(f"expected parts of at least one byte, got {part_bytes:,}")
    if not files:
        raise ValueError("expected at least one file to split")
    stem = _stem(files[0]) if name is None else name
    if not stem or os.path.basename(stem) != stem or stem.startswith("."):
        raise ValueError(f"expected a name for the parts, without a folder, got {stem!r}")
    return stem


def _stem(file: str | os.PathLike[str]) -> str:
    """`data/train-00003-of-00010.tfrecord.gz` -> `train`."""
    return re.sub(rf"{SHARD_NUMBER}$", "", Path(file).name.split(".")[0]) or "part"


class _Split(NamedTuple):
    plan: SplitPlan
    paths: list[Path]
    compression: PackWith
    input_bytes: int
    tick: Progress

    def write_parts(self, parts: range) -> list[FileEntry]:
        cursor = RecordCursor(self.plan, self.tick)
        try:
            return [self._write_part(part, cursor) for part in parts]
        finally:
            cursor.close()

    def _write_part(self, part: int, cursor: RecordCursor) -> FileEntry:
        first, count = self.plan.firsts[part], self.plan.counts[part]
        return write_verified(
            self.paths[part],
            lambda put: cursor.copy(first, count, put),
            self.compression,
            progress=self.tick,
            counts_as=self.input_bytes * count / max(sum(self.plan.counts), 1),
        )
