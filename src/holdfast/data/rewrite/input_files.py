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
from ...errors import CorruptError, DecodeError, InputError, WriteError
from ...schema import Column
from ..formats.base import Shard, detect_format
from ..formats.tfrecord.shard import TFRecordShard
from ..formats.tfrecord.source import open_source
from ..formats.tfrecord.verify import verify_file
from ..formats.verify import VerifyReport
from ..loader.sources.discovery import find_sources
from ..writer.directory import SCHEMA_NAME
from .targets import Kind, renaming

_COPY_BYTES = 1 << 20


@contextmanager
def open_plain(
    path: str, kind: Kind, schema: dict[str, Column] | None, staging: Path, *, cache: bool
) -> Iterator[Shard]:
    """Opens a file for random access. `schema`: the columns to read, if known. `cache`: whether to store an index."""
    if kind == "hdf5":
        from ..formats.hdf5.shard import HDF5Shard

        with HDF5Shard(path, schema) as hdf5:
            yield hdf5
        return
    with _decompressed(path, kind, staging) as plain, renaming(re.escape(plain), path):
        with _open(plain, kind, cache and plain == path) as shard:
            yield shard


def _open(path: str, kind: Kind, cache: bool) -> Shard:
    if kind == "tfrecord":
        return TFRecordShard(path, cache=cache)
    from ..formats.tar import TarShard

    return TarShard(path, cache=cache)


@contextmanager
def _decompressed(path: str, kind: Kind, staging: Path) -> Iterator[str]:
    """Yields the path of a decompressed copy, or the path itself if it is not compressed."""
    copy = _decompress_tar(path, staging) if kind == "tar" else _decompress_tfrecord(path, staging)
    try:
        yield path if copy is None else str(copy)
    finally:
        if copy is not None:
            copy.unlink(missing_ok=True)


def _decompress_tar(path: str, staging: Path) -> Path | None:
    from ..formats.tar.source import decompress, detect_compression

    compression = detect_compression(path)
    if compression == "none":
        return None
    with decompress(path, compression) as source:
        return _copy(source.read_at, staging)


def _decompress_tfrecord(path: str, staging: Path) -> Path | None:
    with open_source(path) as source:
        if source.compression == "none":
            return None
        view = memoryview(bytearray(_COPY_BYTES))
        return _copy(lambda at, size: bytes(view[: source.read_at(at, view[:size])]), staging)


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
    kind: Kind
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
            raise InputError(f"{(spec.files or (spec.path,))[0]}: expected TFRecord, HDF5 or tar files, got others")
        run = _run_of(spec.path)
        schema = None if run is None else _schema_of(run)
        found.append(InputFile(spec.path, detect_format(spec.path), FileStamp.of(spec.path), run, schema))
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
        _CHECKS[source.kind](source.path, limit.advance)
        limit.finish()
    for run, parts in runs.items():
        limit = ProgressLimit(progress, sum(part.size_bytes for part in parts))
        _check_run(run, parts, limit)
        limit.finish()


def _check_tfrecord(path: str, progress: Progress) -> None:
    _raise_first(verify_file(path, progress))


def _check_hdf5(path: str, progress: Progress) -> None:
    from ..formats.hdf5.verify import verify_hdf5

    _raise_first(verify_hdf5(path, progress))


def _raise_first(report: VerifyReport) -> None:
    if not report.problems:
        return
    first = report.problems[0]
    if not report.readable:
        raise InputError(f"{report.path}: {first.reason}")
    chunk = f", chunk at {', '.join(map(str, first.chunk))}" if first.chunk else ""
    where = f"{first.dataset}{chunk}: " if first.dataset else ""
    reason = f"{where}{first.reason}{_more(len(report.problems))}"
    raise CorruptError(report.path, first.record, first.offset, reason, report.hint.replace("FILE", report.path))


def _check_tar(path: str, progress: Progress) -> None:
    """Opens the tar, which reads all headers; the data of a tar have no checksums."""
    from ..formats.tar import TarShard

    with TarShard(path, cache=False) as shard:
        incomplete = shard.first_incomplete() if shard.marked else None
        if incomplete is not None:
            raise DecodeError(path, incomplete, None, "the sample lacks a member of the tar's own schema")


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


_CHECKS = {"tfrecord": _check_tfrecord, "hdf5": _check_hdf5, "tar": _check_tar}
