"""Finds the input files of a conversion, checks that they are intact, and opens them as shards.

A compressed file is decompressed beside the target first: otherwise every block would be decompressed from the start.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..._util.atomic import FileStamp
from ..._util.progress import Progress, ProgressLimit
from ...errors import CorruptError, InputError, WriteError
from ...schema import Column
from ..formats.base import Format, Shard, VerifiedFile
from ..formats.registry import find_format, titles
from ..formats.targets import renaming
from ..inputs import find_sources
from ..writer.directory import SCHEMA_NAME

_COPY_BYTES = 1 << 20


@contextmanager
def open_plain(
    path: str, kind: Format, schema: dict[str, Column] | None, staging: Path, *, cache: bool
) -> Iterator[Shard]:
    """Opens a file for random access. `schema`: the columns to read, if known. `cache`: whether to store an index."""
    with _unpacked(path, kind, staging) as plain, renaming(re.escape(plain), path):
        with kind.open(plain, schema, cache=cache and plain == path) as shard:
            yield shard


@contextmanager
def _unpacked(path: str, kind: Format, staging: Path) -> Iterator[str]:
    """Yields the path of a decompressed copy, or the path itself if it is not compressed."""
    copy = None
    if kind.unpack is not None:
        with kind.unpack(path) as read_at:
            copy = None if read_at is None else _copy(read_at, staging)
    try:
        yield path if copy is None else str(copy)
    finally:
        if copy is not None:
            copy.unlink(missing_ok=True)


def _copy(read_at: Callable[[int, int], bytes], staging: Path) -> Path:
    copy, at = staging / "unpacked", 0
    try:
        with open(copy, "wb") as file:
            while data := read_at(at, _COPY_BYTES):
                file.write(data)
                at += len(data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise WriteError(f"cannot decompress into {staging.parent}: {error.strerror}") from error
    return copy


# ---- finding the files

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file. `run` is the dataset directory that it is a part of, `schema` that dataset's."""

    path: str
    kind: Format
    stamp: FileStamp
    run: Path | None = None
    schema: dict[str, Column] | None = None

    @property
    def size_bytes(self) -> int:
        return self.stamp.size


def find(what: PathLike | Iterable[PathLike]) -> list[InputFile]:
    """Returns the files in order; those of a glob or folder sorted by name, those of a dataset directory by task."""
    found = []
    for spec in find_sources(what):
        if spec.is_remote:
            raise InputError(f"{spec.path}: expected a local file, got a URL; download it first")
        if spec.is_files:
            raise InputError(f"{(spec.files or (spec.path,))[0]}: expected {titles()} files, got others")
        run = _run_of(spec.path)
        schema = None if run is None else _schema_of(run)
        found.append(InputFile(spec.path, find_format(spec.path), FileStamp.of(spec.path), run, schema))
    return found


def _run_of(path: str) -> Path | None:
    parts = Path(os.path.abspath(path)).parent
    return parts.parent if parts.name == "parts" and (parts.parent / SCHEMA_NAME).is_file() else None


def _schema_of(run: Path) -> dict[str, Column]:
    from ..writer.directory import read_schema  # imports h5py, which is slow

    return read_schema(run)


# ---- checking them


def check_intact(sources: Sequence[InputFile], progress: Progress) -> None:
    """Verifies every file as `holdfast verify` does, and raises the first problem as an error. `progress` counts every
    byte once."""
    runs: dict[Path, list[InputFile]] = {}
    for source in sources:
        if source.run is not None:
            runs.setdefault(source.run, []).append(source)
            continue
        limit = ProgressLimit(progress, source.size_bytes)
        _raise_first(source.kind.verify(source.path, limit.advance))
        limit.finish()
    for run, parts in runs.items():
        limit = ProgressLimit(progress, sum(part.size_bytes for part in parts))
        _check_run(run, parts, limit)
        limit.finish()


def _raise_first(report: VerifiedFile) -> None:
    if report.error is not None:
        raise report.error
    if not report.problems:
        return
    first = report.problems[0]
    if not report.readable:
        raise InputError(f"{report.path}: {first.reason}")
    chunk = f", chunk at {', '.join(map(str, first.chunk))}" if first.chunk else ""
    where = f"{first.dataset}{chunk}: " if first.dataset else ""
    reason = f"{where}{first.reason}{_more(len(report.problems))}"
    raise CorruptError(report.path, first.record, first.offset, reason, report.hint.replace("FILE", report.path))


def _check_run(run: Path, parts: Sequence[InputFile], limit: ProgressLimit) -> None:
    from ..writer.dataset_writer import DatasetWriter

    schema = parts[0].schema
    assert schema is not None
    total = limit.left
    report = DatasetWriter(run, schema).verify(lambda _, count: limit.advance(total / max(count, 1)))
    if report.problems:
        first = report.problems[0]
        inside = f"dataset {first.dataset!r}, chunk {first.chunk}: " if first.dataset is not None else ""
        reason = f"{inside}{first.reason}{_more(len(report.problems))}"
        raise CorruptError(first.path, None, first.offset, reason, f"`holdfast verify {run}` lists all")


def _more(count: int) -> str:
    return f" (and {count - 1:,} more)" if count > 1 else ""
