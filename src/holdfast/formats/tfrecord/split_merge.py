"""Splits TFRecord files into parts, and merges them into one file. Every record keeps its order.

Batches of frames are copied and their CRCs checked. The CRC over all frames of a new file is computed, and must
be the same when the file is read back. Only then do new files get their names: split writes its parts to a hidden
directory and moves them at the end, merge renames its one file. The manifest is written last.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..._native import codec
from ..._util.atomic import FileStamp, check_absent, publish_files, staging_dir
from ..._util.parallel import Stop, run_all
from ..._util.text import format_bytes
from ...errors import DataError, InputError, WriteError
from ..columns import Ints
from .frame_stream import FrameBatches, Progress, Put
from .manifest import MANIFEST_NAME, FileEntry, read_manifest, renew_in_manifest, write_manifest
from .source import open_source
from .writer import PackWith, TFRecordWriter

Files = Sequence[str | os.PathLike[str]]

MOST_PARTS = 99_999  # part numbers have five digits, so that names sort


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
    by_size = None if part_bytes is None else _BySize(part_bytes)

    def find_marks(number: int) -> tuple[list[SplitMark], int]:
        return _marks(number, files[number], by_size, tick)

    # Where a part of a given size ends depends on all records before, so files are read one after the other.
    found_in_files = run_all(find_marks, range(len(files)), 1 if by_size else jobs, stop)
    bases = list(accumulate((count for _, count in found_in_files), initial=0))
    marks = [
        mark._replace(record=base + mark.record)
        for base, (found, _) in zip(bases, found_in_files, strict=False)
        for mark in found
    ]
    if by_size:
        counts = by_size.counts
    else:
        assert parts is not None
        base, more = divmod(bases[-1], parts)
        counts = [base + (i < more) for i in range(parts)]
    return SplitPlan(files, marks, counts, list(accumulate(counts, initial=0))[:-1])


def _marks(
    number: int, file: str | os.PathLike[str], by_size: _BySize | None, tick: Progress
) -> tuple[list[SplitMark], int]:
    """Returns where the batches of one file begin, and how many records it has. Checks the CRCs of lengths only."""
    marks: list[SplitMark] = []
    put = by_size or (lambda frames, starts: None)
    with FrameBatches(file, verify="header", progress=tick) as batches:
        while True:
            mark = SplitMark(batches.record, number, batches.record, batches.offset)
            records = batches.next(put)
            if records is None:
                return marks, batches.record
            if records:
                marks.append(mark)


class _BySize:
    """Assigns records to parts of at most `part_bytes`, in order."""

    def __init__(self, part_bytes: int) -> None:
        self.counts = [0]
        self._part_bytes = part_bytes
        self._size = 0  # bytes in the last part

    def __call__(self, frames: memoryview, starts: Ints) -> None:
        ends = np.append(starts[1:], len(frames))
        done = done_bytes = 0
        while True:
            room = self._part_bytes - self._size
            fit = int(np.searchsorted(ends, done_bytes + room, side="right")) - done
            if not fit and not self._size:
                fit = 1  # a record larger than a part gets one of its own
            if fit:
                done += fit
                self.counts[-1] += fit
                self._size += int(ends[done - 1]) - done_bytes
                done_bytes = int(ends[done - 1])
            if done == len(ends):
                return
            self._next_part()

    def _next_part(self) -> None:
        if len(self.counts) == MOST_PARTS:
            size = format_bytes(self._part_bytes)
            raise ValueError(f"expected a size that gives at most {MOST_PARTS:,} files, got {size}")
        self.counts.append(0)
        self._size = 0


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


# ---- the two operations

MERGE_PASSES = 2  # how often `progress` counts every byte of the input: copy, read back
SPLIT_PASSES = 3  # count, copy, read back

_SUFFIXES = {"gzip": ".tfrecord.gz", "zlib": ".tfrecord.zlib"}


def merge_files(
    files: Files,
    out: str | os.PathLike[str],
    *,
    compression: PackWith = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> FileEntry:
    """Writes all records of all files, in the order given, to one new file. Corrupt input is an error."""
    inputs = _look_at(files)
    _check_not_input(files, [Path(out)])
    writer = TFRecordWriter(out, compression=compression, overwrite=overwrite)
    try:
        copied = _FrameCopier(writer)
        for file in files:
            with FrameBatches(file, progress=progress) as batches:
                while batches.next(copied) is not None:
                    pass
        partial, entry = writer.finalize()
        _verify_output(partial, entry, copied, _scaled(progress, _total(inputs), entry.bytes))
        _check_unchanged(files, inputs)
        entry = writer.close()
    finally:
        writer.discard()
    renew_in_manifest(entry)
    return entry


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
    own. `jobs` threads write at the same time, unless the input is compressed.
    """
    stem = _checked_stem(files, parts, part_bytes, name)
    inputs = _look_at(files)
    stop = Stop()
    tick = _stoppable(progress, stop)
    jobs = 1 if any(one.compressed for one in inputs) else jobs
    folder = Path(folder)
    with staging_dir(folder, f"{stem}.split", busy=f"another split into {folder} under the name {stem}") as staging:
        plan = make_plan(files, parts, part_bytes, jobs, stop, tick)
        suffix = _SUFFIXES.get(compression, ".tfrecord")
        names = [f"{stem}-{i:05d}-of-{len(plan.counts):05d}{suffix}" for i in range(len(plan.counts))]
        check_absent(folder, names, "remove it, or choose another folder or name")
        if (folder / MANIFEST_NAME).exists():
            read_manifest(folder / MANIFEST_NAME)  # a manifest that cannot be extended is better found now
        work = _Split(plan, staging, names, compression, _total(inputs), tick)
        lanes = lanes_of(len(names), jobs)
        entries = [entry for lane in run_all(work.write_parts, lanes, jobs, stop) for entry in lane]
        _check_unchanged(files, inputs)
        return _publish(entries, folder)


def _publish(entries: Sequence[FileEntry], folder: Path) -> list[FileEntry]:
    """Moves finished parts to their names and adds them to the manifest; on an error none of them stays."""
    finished = [entry._replace(path=str(folder / os.path.basename(entry.path))) for entry in entries]
    publish_files([Path(entry.path) for entry in entries], folder)
    try:
        write_manifest(folder, finished)
    except BaseException as error:
        for entry in finished:
            Path(entry.path).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise WriteError(f"cannot write into {folder}: {error.strerror}") from error
        raise
    return finished


def _checked_stem(files: Files, parts: int | None, part_bytes: int | None, name: str | None) -> str:
    if (parts is None) == (part_bytes is None):
        raise ValueError("expected either parts= or part_bytes=")
    if parts is not None and not 1 <= parts <= MOST_PARTS:
        raise ValueError(f"expected from 1 to {MOST_PARTS:,} parts, got {parts:,}")
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
    return re.sub(r"-\d{5}-of-\d{5}$", "", Path(file).name.split(".")[0]) or "part"


class _FrameCopier:
    """Copies frames into one file, counts them and computes the CRC over them."""

    def __init__(self, writer: TFRecordWriter) -> None:
        self.records = 0
        self.crc = 0
        self._writer = writer

    def __call__(self, frames: memoryview, starts: Ints) -> None:
        self.crc = codec.crc32c(frames, self.crc)
        self.records += len(starts)
        self._writer.write_frames(frames, len(starts))


class _Split(NamedTuple):
    plan: SplitPlan
    folder: Path
    names: list[str]
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
        path, count = self.folder / self.names[part], self.plan.counts[part]
        with TFRecordWriter(path, compression=self.compression) as writer:
            copied = _FrameCopier(writer)
            cursor.copy(self.plan.firsts[part], count, copied)
        assert writer.entry is not None
        share = self.input_bytes * count // max(sum(self.plan.counts), 1)
        _verify_output(path, writer.entry, copied, _scaled(self.tick, share, writer.entry.bytes))
        return writer.entry


def _verify_output(path: Path, entry: FileEntry, copied: _FrameCopier, progress: Progress | None) -> None:
    """Reads a new file back: it must have the same records in the same order, and the size and CRC of its entry."""
    records, frames_crc, file_crc = 0, 0, 0

    def put(frames: memoryview, starts: Ints) -> None:
        nonlocal records, frames_crc
        records += len(starts)
        frames_crc = codec.crc32c(frames, frames_crc)

    def on_bytes(data: memoryview) -> None:
        nonlocal file_crc
        file_crc = codec.crc32c(data, file_crc)

    with FrameBatches(path, progress=progress, on_bytes=on_bytes) as batches:
        while batches.next(put) is not None:
            pass
        size = batches.file_bytes
    if (records, frames_crc) != (copied.records, copied.crc):
        text = f"expected the {copied.records:,} records that were written, got {records:,} or others when reading back"
        raise DataError(entry.path, None, None, f"{text}. Is the disk, or the memory, failing?")
    if (size, file_crc, records) != (entry.bytes, entry.crc32c, entry.records):
        raise DataError(entry.path, None, None, "it reads back differently than it was written. Is the disk failing?")


def _scaled(progress: Progress | None, total: int, size: int) -> Progress | None:
    """Returns a progress callback for a pass over `size` bytes that counts as `total`."""
    if progress is None:
        return None
    return lambda n: progress(n * total // max(size, 1))


def _stoppable(progress: Progress | None, stop: Stop) -> Progress:
    def tick(n: int) -> None:
        stop.check()
        if progress:
            progress(n)

    return tick


class _Input(NamedTuple):
    stamp: FileStamp
    compressed: bool


def _look_at(files: Files) -> list[_Input]:
    """Opens every input file once, so that one that cannot be read is an error before anything is written."""
    return [_look_at_one(file) for file in files]


def _look_at_one(file: str | os.PathLike[str]) -> _Input:
    with open_source(file) as source:
        return _Input(FileStamp.of(source.fd), source.compression != "none")


def _total(inputs: list[_Input]) -> int:
    return sum(one.stamp.size for one in inputs)


def _check_unchanged(files: Files, inputs: list[_Input]) -> None:
    for file, before in zip(files, inputs, strict=True):
        if _look_at_one(file) != before:
            raise InputError(f"{os.fspath(file)}: it changed while it was read; nothing was kept. Wait for its writer")


def _check_not_input(files: Files, outputs: Sequence[Path]) -> None:
    for out in outputs:
        if out.exists() and any(os.path.samefile(file, out) for file in files):
            raise WriteError(f"{out} is also an input; name another output")
