"""Many files from one, and one from many: every record in its order, read again before it is called done.

Whole runs of frames are copied, their CRCs checked on the way; the CRC of all of a part's frames is kept, and
must come out again when the part is read back from disk. Only then do the new files get their names: split
writes its parts in a hidden folder and moves them at the end, merge names its one file.
The manifest comes last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..._base.threads import Stop, run_all
from ..._native import codec
from ...errors import DataError, InputError, WriteError
from ..columns import Ints
from .manifest import FileEntry, renew_in_manifest
from .runs import Progress, Runs
from .source import open_source
from .split_plan import MOST_PARTS, Cursor, Files, Plan, lanes_of, make_plan
from .staging import publish, refuse_present, staging_folder
from .writer import PackWith, TFRecordWriter

MERGE_PASSES = 2  # how often `progress` hears of every byte of the input: copy, read again
SPLIT_PASSES = 3  # count, copy, read again

_SUFFIXES = {"gzip": ".tfrecord.gz", "zlib": ".tfrecord.zlib"}


def merge_files(
    files: Files,
    out: str | os.PathLike[str],
    *,
    compression: PackWith = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> FileEntry:
    """All records of all files, in the order given, in one new file. Refuses damaged input."""
    stamps = _stamps(files)
    _refuse_own_output(files, [Path(out)])
    writer = TFRecordWriter(out, compression=compression, overwrite=overwrite)
    try:
        copied = _Copied(writer)
        for file in files:
            with Runs(file, progress=progress) as runs:
                while runs.next(copied) is not None:
                    pass
        partial, entry = writer.settle()
        _prove(partial, entry, copied, _in_step(progress, _total(stamps), entry.bytes))
        _refuse_changed(files, stamps)
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
    """All records of all files, in order, in `parts` new files of about as many each, or of `part_bytes`.

    Files are named NAME-00000-of-00004.tfrecord, so that sorted names keep the order. None of them is there
    before all are; the folder's manifest comes last. `part_bytes` counts a part before it is packed; a record
    larger than that has a part of its own. `jobs` threads write at the same time, unless the input is packed.
    """
    stem = _checked_stem(files, parts, part_bytes, name)
    stamps = _stamps(files)
    stop = Stop()
    tick = _stoppable(progress, stop)
    jobs = jobs if all(stamp.plain for stamp in stamps) else 1
    with staging_folder(Path(folder), stem) as staging:
        plan = make_plan(files, parts, part_bytes, jobs, stop, tick)
        suffix = _SUFFIXES.get(compression, ".tfrecord")
        names = [f"{stem}-{i:05d}-of-{len(plan.counts):05d}{suffix}" for i in range(len(plan.counts))]
        refuse_present(staging.parent, names)
        work = _Split(plan, staging, names, compression, _total(stamps), tick)
        lanes = lanes_of(len(names), jobs)
        entries = [entry for lane in run_all(work.write_parts, lanes, jobs, stop) for entry in lane]
        _refuse_changed(files, stamps)
        return publish(entries, staging.parent)


def _checked_stem(files: Files, parts: int | None, part_bytes: int | None, name: str | None) -> str:
    if (parts is None) == (part_bytes is None):
        raise ValueError("say either how many parts or how large one may be")
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


# ---- copying and proving


class _Copied:
    """What goes into one file: counted, and the CRC of its frames kept."""

    def __init__(self, writer: TFRecordWriter) -> None:
        self.records = 0
        self.crc = 0
        self._writer = writer

    def __call__(self, frames: memoryview, starts: Ints) -> None:
        self.crc = codec.crc32c(frames, self.crc)
        self.records += len(starts)
        self._writer.write_frames(frames, len(starts))


class _Split(NamedTuple):
    plan: Plan
    folder: Path
    names: list[str]
    compression: PackWith
    input_bytes: int
    tick: Progress

    def write_parts(self, parts: range) -> list[FileEntry]:
        cursor = Cursor(self.plan, self.tick)
        try:
            return [self._write_part(part, cursor) for part in parts]
        finally:
            cursor.close()

    def _write_part(self, part: int, cursor: Cursor) -> FileEntry:
        path, count = self.folder / self.names[part], self.plan.counts[part]
        with TFRecordWriter(path, compression=self.compression) as writer:
            copied = _Copied(writer)
            cursor.copy(self.plan.firsts[part], count, copied)
        assert writer.entry is not None
        share = self.input_bytes * count // max(sum(self.plan.counts), 1)
        _prove(path, writer.entry, copied, _in_step(self.tick, share, writer.entry.bytes))
        return writer.entry


def _prove(path: Path, entry: FileEntry, copied: _Copied, progress: Progress | None) -> None:
    """What was written is read again: the same records in the same order, in the file its writer meant."""
    records, frames_crc, file_crc = 0, 0, 0

    def put(frames: memoryview, starts: Ints) -> None:
        nonlocal records, frames_crc
        records += len(starts)
        frames_crc = codec.crc32c(frames, frames_crc)

    def on_bytes(data: memoryview) -> None:
        nonlocal file_crc
        file_crc = codec.crc32c(data, file_crc)

    with Runs(path, progress=progress, on_bytes=on_bytes) as runs:
        while runs.next(put) is not None:
            pass
        size = runs.file_bytes
    if (records, frames_crc) != (copied.records, copied.crc):
        said = f"{copied.records:,} records went in, {records:,} came out when it was read again"
        raise DataError(entry.path, None, None, f"{said}, or others. Is the disk, or the memory, failing?")
    if (size, file_crc, records) != (entry.bytes, entry.crc32c, entry.records):
        raise DataError(entry.path, None, None, "reads otherwise than it was written: is the disk failing?")


def _in_step(progress: Progress | None, whole: int, size: int) -> Progress | None:
    """For a pass over `size` bytes that should count as `whole`."""
    if progress is None:
        return None
    return lambda n: progress(n * whole // max(size, 1))


def _stoppable(progress: Progress | None, stop: Stop) -> Progress:
    def tick(n: int) -> None:
        stop.check()
        if progress:
            progress(n)

    return tick


# ---- before and after


class _Stamp(NamedTuple):
    bytes: int
    mtime_ns: int
    inode: int
    plain: bool


def _stamps(files: Files) -> list[_Stamp]:
    """All files can be read, and which they are."""
    return [_stamp(file) for file in files]


def _stamp(file: str | os.PathLike[str]) -> _Stamp:
    with open_source(file) as source:
        info = os.fstat(source.fd)
        return _Stamp(info.st_size, info.st_mtime_ns, info.st_ino, source.compression == "none")


def _total(stamps: list[_Stamp]) -> int:
    return sum(stamp.bytes for stamp in stamps)


def _refuse_changed(files: Files, stamps: list[_Stamp]) -> None:
    for file, stamp in zip(files, stamps, strict=True):
        if _stamp(file) != stamp:
            raise InputError(f"{os.fspath(file)}: it changed while it was read; nothing was kept. Wait for its writer")


def _refuse_own_output(files: Files, outputs: Sequence[Path]) -> None:
    for out in outputs:
        if out.exists() and any(os.path.samefile(file, out) for file in files):
            raise WriteError(f"{out} is also an input; name another output")
