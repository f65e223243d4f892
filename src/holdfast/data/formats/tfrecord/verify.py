"""Verifies a file: checks every CRC, also after a corrupt record, and compares the counts with the manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from ...._native import codec
from ....errors import DataError, InputError
from ..base import FileEntry, Problem, VerifiedFile
from .diagnostics import TRUNCATED, check_is_tfrecord, error_for
from .frame_stream import FrameBatches, FrameStream, Progress
from .manifest import find_manifest
from .source import open_source

_MAX_PROBLEMS = 1000  # per file, to bound the memory


@dataclass(frozen=True, slots=True)
class TFRecordReport(VerifiedFile):
    records: int = 0  # intact

    @property
    def content(self) -> tuple[int, str]:
        return self.records, "record"

    def as_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "ok": self.ok,
            "records": self.records,
            "bytes": self.bytes,
            "problems": [problem.as_dict("offset", "record", "reason") for problem in self.problems],
        }


def verify_file(path: str | os.PathLike[str], progress: Progress | None = None) -> TFRecordReport:
    """Verifies a file. Problems with the file are not raised, but part of the report."""
    name = os.fspath(path)
    try:
        return _verify(name, progress)
    except DataError as error:
        problem = Problem(error.offset or 0, error.record, error.reason)
        return TFRecordReport(name, problems=[problem], hint=error.hint)
    except (InputError, OSError) as error:
        reason = str(error).removeprefix(f"{name}: ")
        if not isinstance(error, InputError):  # a failing disk, or no space to decompress a corrupt file
            reason = f"cannot check: {error.strerror}"
        return TFRecordReport(name, problems=[Problem(0, None, reason)], readable=False)


def _verify(name: str, progress: Progress | None) -> TFRecordReport:
    try:
        manifest, unreadable = find_manifest(name), None
    except InputError as error:
        manifest, unreadable = None, Problem(0, None, f"the manifest that lists it cannot be read: {error}")
    expected = manifest.entries.get(os.path.basename(name)) if manifest else None
    try:
        report = _scan(name, expected, progress, spool=False)
    except DataError:  # only raised for compressed files
        # Searching behind a corrupt record needs space to decompress the file, so only do it now.
        report = _scan(name, expected, None, spool=True)
    if unreadable is not None:
        return replace(report, problems=[*report.problems, unreadable])
    return report


def _scan(name: str, expected: FileEntry | None, progress: Progress | None, spool: bool) -> TFRecordReport:
    crc, good = 0, 0

    def on_bytes(data: memoryview) -> None:
        nonlocal crc
        crc = codec.crc32c(data, crc)

    with open_source(name) as source:
        check_is_tfrecord(source)
    see = on_bytes if expected else None
    with FrameBatches(name, on_corrupt="salvage", spool=spool, progress=progress, on_bytes=see) as batches:
        while (count := batches.count()) is not None:
            good += count
            if len(batches.problems) >= _MAX_PROBLEMS:
                reason = f"more than {_MAX_PROBLEMS:,} problems; the rest was not read"
                batches.problems.append(Problem(batches.offset, batches.record, reason))
                break
        error = explain(batches.stream)
        size, problems = batches.file_bytes, list(batches.problems)
    if expected and not problems:
        problems += _against(expected, good, size, crc)
    return TFRecordReport(name, size, problems, hint=error.hint if error else "", records=good)


def explain(stream: FrameStream) -> DataError | None:
    """Returns the first problem as the error a reader would raise: unfinished, not a TFRecord, or corrupt."""
    if not stream.problems:
        return None
    first = stream.problems[0]
    error = error_for(stream.source, first.record or 0, first.offset or 0, first.reason)
    if error.reason != first.reason and (first.reason.startswith(TRUNCATED) or first.offset == 0):
        stream.problems[0] = first._replace(reason=error.reason)
    return error


def _against(entry: FileEntry, records: int, size: int, crc: int) -> list[Problem]:
    """Compares the manifest's entry with the file."""
    wrong = []
    if entry.records != records:
        wrong.append(f"the manifest says {entry.records:,} records, the file has {records:,}")
    if entry.bytes != size:
        wrong.append(f"the manifest says {entry.bytes:,} bytes, the file has {size:,}")
    elif entry.crc32c != crc:
        differ = f"the manifest says crc32c {entry.crc32c:08x}, the file has {crc:08x}"
        wrong.append(f"{differ}: intact, but not the same file")
    return [Problem(size, None, reason) for reason in wrong]
