"""Is a file whole? Every CRC is checked, the walk goes on behind a damage, and the manifest's count is compared."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from ..._native import codec
from ...errors import DataError, InputError
from .manifest import FileEntry, find_manifest
from .problems import TRUNCATED, Problem, error_for
from .source import open_source
from .stream import FrameStream

_LISTED = 1000  # problems of one file; a file that is all damage must not fill the memory

Progress = Callable[[int], None]


class FileReport(NamedTuple):
    path: str
    ok: bool
    records: int
    bytes: int
    problems: list[Problem]
    hint: str = ""

    def as_dict(self) -> dict[str, object]:
        problems = [{"offset": p.offset, "record": p.record, "reason": p.reason} for p in self.problems]
        return {"path": self.path, "ok": self.ok, "records": self.records, "bytes": self.bytes, "problems": problems}


def verify_file(path: str | os.PathLike[str], progress: Progress | None = None) -> FileReport:
    """Never raises for what is wrong with the file: that is in the report."""
    name = os.fspath(path)
    try:
        return _verify(name, progress)
    except (InputError, DataError) as error:
        reason = error.reason if isinstance(error, DataError) else str(error).removeprefix(f"{name}: ")
        place = (error.offset or 0, error.record) if isinstance(error, DataError) else (0, None)
        hint = error.hint if isinstance(error, DataError) else ""
        return FileReport(name, False, 0, 0, [Problem(*place, reason)], hint)


def _verify(name: str, progress: Progress | None) -> FileReport:
    manifest = find_manifest(name)
    expected = manifest.entries.get(os.path.basename(name)) if manifest else None
    crc, good = 0, 0
    stream_source = open_source(name)
    with stream_source as source:
        size = source.file_bytes()
        if expected or progress:

            def on_bytes(data: memoryview) -> None:
                nonlocal crc
                crc = codec.crc32c(data, crc) if expected else 0
                if progress:
                    progress(len(data))

            source.on_bytes = on_bytes
        stream = FrameStream(source, on_corrupt="salvage")

        def feed(buf: bytearray, start: int, stop: int) -> tuple[int, int, int, int]:
            nonlocal good
            walk = codec.scan(buf, start, stop, True)
            good += walk[0]
            return walk

        try:
            while stream.pump(feed):
                if stream.problems:
                    source.on_bytes = None  # looking for the next record reads here and there: the CRC is lost anyway
                if len(stream.problems) >= _LISTED:
                    stream.problems.append(Problem(stream.offset, stream.record, f"more than {_LISTED:,} problems; not read on"))
                    break
            hint = _explain(stream)
        finally:
            stream.close()
    problems = list(stream.problems)
    if expected and not problems:
        problems += _against(expected, good, size, crc)
    return FileReport(name, not problems, good, size, problems, hint)


def _explain(stream: FrameStream) -> str:
    """The first problem as a reader would be told: unfinished, foreign, or damaged."""
    if not stream.problems:
        return ""
    first = stream.problems[0]
    error = error_for(stream.source, first.record or 0, first.offset, first.reason)
    if error.reason != first.reason and (first.reason.startswith(TRUNCATED) or first.offset == 0):
        stream.problems[0] = first._replace(reason=error.reason)
    return error.hint


def _against(entry: FileEntry, records: int, size: int, crc: int) -> list[Problem]:
    """What the manifest says against what is there."""
    wrong = []
    if entry.records != records:
        wrong.append(f"the manifest says {entry.records:,} records, the file has {records:,}")
    if entry.bytes != size:
        wrong.append(f"the manifest says {entry.bytes:,} bytes, the file has {size:,}")
    elif entry.crc32c != crc:
        wrong.append(f"the manifest says crc32c {entry.crc32c:08x}, the file has {crc:08x}: whole, but not the same file")
    return [Problem(size, None, reason) for reason in wrong]
