"""Is a file whole? Every CRC is checked, also behind a damage, and the manifest's count is compared."""

from __future__ import annotations

import os
from typing import NamedTuple

from ..._native import codec
from ...errors import DataError, InputError
from .diagnostics import TRUNCATED, Problem, error_for
from .frame_stream import FrameStream, Progress, Runs
from .manifest import FileEntry, find_manifest

_LISTED = 1000  # problems of one file; a file that is all damage must not fill the memory


class FileReport(NamedTuple):
    path: str
    ok: bool
    records: int
    bytes: int
    problems: list[Problem]
    hint: str = ""
    readable: bool = True  # False: it could not be looked at, so nothing is known of it

    def as_dict(self) -> dict[str, object]:
        problems = [{"offset": p.offset, "record": p.record, "reason": p.reason} for p in self.problems]
        return {
            "path": self.path,
            "ok": self.ok,
            "records": self.records,
            "bytes": self.bytes,
            "problems": problems,
        }


def verify_file(path: str | os.PathLike[str], progress: Progress | None = None) -> FileReport:
    """Never raises for what is wrong with the file: that is in the report."""
    name = os.fspath(path)
    try:
        return _verify(name, progress)
    except DataError as error:
        problem = Problem(error.offset or 0, error.record, error.reason)
        return FileReport(name, False, 0, 0, [problem], error.hint)
    except (InputError, OSError) as error:
        reason = str(error).removeprefix(f"{name}: ")
        if not isinstance(error, InputError):  # a disk that fails, or one too full to unpack a damaged file on
            reason = f"cannot check: {error.strerror}"
        return FileReport(name, False, 0, 0, [Problem(0, None, reason)], readable=False)


def _verify(name: str, progress: Progress | None) -> FileReport:
    try:
        manifest, unreadable = find_manifest(name), None
    except InputError as error:
        manifest, unreadable = None, Problem(0, None, f"what it should hold is not known: {error}")
    expected = manifest.entries.get(os.path.basename(name)) if manifest else None
    try:
        report = _walk(name, expected, progress, spool=False)
    except DataError:  # never of a plain file
        # Looking behind a damage of a packed one takes room to unpack it all: only now.
        report = _walk(name, expected, None, spool=True)
    if unreadable is not None:
        return report._replace(ok=False, problems=[*report.problems, unreadable])
    return report


def _walk(name: str, expected: FileEntry | None, progress: Progress | None, spool: bool) -> FileReport:
    crc, good = 0, 0

    def on_bytes(data: memoryview) -> None:
        nonlocal crc
        crc = codec.crc32c(data, crc)

    see = on_bytes if expected else None
    with Runs(name, on_corrupt="salvage", spool=spool, progress=progress, on_bytes=see) as runs:
        while (count := runs.count()) is not None:
            good += count
            if len(runs.problems) >= _LISTED:
                reason = f"more than {_LISTED:,} problems; not read on"
                runs.problems.append(Problem(runs.offset, runs.record, reason))
                break
        error = explain(runs.stream)
        size, problems = runs.file_bytes, list(runs.problems)
    if expected and not problems:
        problems += _against(expected, good, size, crc)
    return FileReport(name, not problems, good, size, problems, error.hint if error else "")


def explain(stream: FrameStream) -> DataError | None:
    """The first problem as a reader would be told of it: unfinished, foreign, or damaged."""
    if not stream.problems:
        return None
    first = stream.problems[0]
    error = error_for(stream.source, first.record or 0, first.offset, first.reason)
    if error.reason != first.reason and (first.reason.startswith(TRUNCATED) or first.offset == 0):
        stream.problems[0] = first._replace(reason=error.reason)
    return error


def _against(entry: FileEntry, records: int, size: int, crc: int) -> list[Problem]:
    """What the manifest says against what is there."""
    wrong = []
    if entry.records != records:
        wrong.append(f"the manifest says {entry.records:,} records, the file has {records:,}")
    if entry.bytes != size:
        wrong.append(f"the manifest says {entry.bytes:,} bytes, the file has {size:,}")
    elif entry.crc32c != crc:
        said = f"the manifest says crc32c {entry.crc32c:08x}, the file has {crc:08x}"
        wrong.append(f"{said}: whole, but not the same file")
    return [Problem(size, None, reason) for reason in wrong]
