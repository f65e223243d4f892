"""One file as a shard of which any part can be read. A packed one is unpacked beside the target first, on disk: else
every block would be unpacked from the file's start."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .._util.atomic import FileStamp
from ..errors import CorruptError, DataError, DecodeError, InputError, WriteError
from ..formats.base import Shard, detect_format
from ..formats.tfrecord.shard import TFRecordShard
from ..formats.tfrecord.source import open_source
from ..formats.tfrecord.verify import verify_file
from ..loader.sources.discovery import find_sources
from ..schema import Column
from ..writer.directory import SCHEMA_NAME
from .targets import Kind

_COPY_BYTES = 1 << 20


@contextmanager
def open_plain(
    path: str, kind: Kind, schema: dict[str, Column] | None, staging: Path, *, cache: bool
) -> Iterator[Shard]:
    """`schema`: the columns that will be read, if they are known. `cache`: an index may be kept for the next time."""
    if kind == "hdf5":
        from ..formats.hdf5 import HDF5Shard

        with HDF5Shard(path, schema) as hdf5:
            yield hdf5
        return
    with _unpacked(path, kind, staging) as plain, _naming(path, plain):
        shard = _open(plain, kind, cache and plain == path)
        with shard:
            yield shard


def _open(path: str, kind: Kind, cache: bool) -> Shard:
    if kind == "tfrecord":
        return TFRecordShard(path, cache=cache)
    from ..formats.tar import TarShard

    return TarShard(path, cache=cache)


@contextmanager
def _unpacked(path: str, kind: Kind, staging: Path) -> Iterator[str]:
    """The path itself, if it is not packed."""
    copy = _unpack_tar(path, staging) if kind == "tar" else _unpack_tfrecord(path, staging)
    try:
        yield path if copy is None else str(copy)
    finally:
        if copy is not None:
            copy.unlink(missing_ok=True)


def _unpack_tar(path: str, staging: Path) -> Path | None:
    from ..formats.tar.source import packing_of, unpack

    packing = packing_of(path)
    if packing == "none":
        return None
    with unpack(path, packing) as source:
        return _copy(source.read_at, staging)


def _unpack_tfrecord(path: str, staging: Path) -> Path | None:
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
        raise WriteError(f"cannot unpack into {staging.parent}: {error.strerror}") from error
    return copy


@contextmanager
def _naming(path: str, plain: str) -> Iterator[None]:
    """Errors name the file, not its copy."""
    try:
        yield
    except DataError as error:
        if error.path != plain or plain == path:
            raise
        raise type(error)(path, error.record, error.offset, error.reason, error.hint) from error
    except InputError as error:
        if plain == path or plain not in str(error):
            raise
        raise InputError(str(error).replace(plain, path)) from error


# What is to be converted: files, globs, folders, runs; and whether all of it is whole.

Given = str | os.PathLike[str]
Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file. `run` is the folder of the run that it is a part of, `schema` that run's."""

    path: str
    kind: Kind
    stamp: FileStamp
    run: Path | None = None
    schema: dict[str, Column] | None = None

    @property
    def size_bytes(self) -> int:
        return self.stamp.size


def find(what: Given | Iterable[Given]) -> list[InputFile]:
    """The files in their order; those of a glob or a folder by name, of a run its committed parts by task."""
    found = []
    for spec in find_sources(what):
        if spec.is_remote:
            raise InputError(f"{spec.path}: expected a file on this machine, got a URL; bring it here first")
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
    from ..writer.directory import read_schema  # with h5py, which takes a while to load

    return read_schema(run)


def refuse_changed(sources: Sequence[InputFile]) -> None:
    for source in sources:
        if FileStamp.of(source.path) != source.stamp:
            raise InputError(f"{source.path}: it changed while it was read; nothing was kept. Wait for its writer")


# ---- whole?


def check_whole(sources: Sequence[InputFile], progress: Progress) -> None:
    """As `holdfast verify` does it; the first damage is an error that says where it is. Every byte is told of once."""
    runs: dict[Path, list[InputFile]] = {}
    for source in sources:
        if source.run is not None:
            runs.setdefault(source.run, []).append(source)
            continue
        told = Told(progress, source.size_bytes)
        {"tfrecord": _check_tfrecord, "hdf5": _check_hdf5, "tar": _check_tar}[source.kind](source.path, told.tell)
        told.rest()
    for run, parts in runs.items():
        told = Told(progress, sum(part.size_bytes for part in parts))
        _check_run(run, parts, told)
        told.rest()


class Told:
    """Not every check tells of every byte, and some tell of some twice."""

    def __init__(self, progress: Progress, size_bytes: int) -> None:
        self._progress = progress
        self.left: float = size_bytes

    def tell(self, n: float) -> None:
        n = min(n, self.left)
        self.left -= n
        self._progress(n)

    def rest(self) -> None:
        self.tell(self.left)


def _check_tfrecord(path: str, progress: Progress) -> None:
    report = verify_file(path, progress)
    if not report.readable:
        raise InputError(f"{path}: {report.problems[0].reason}")
    if report.problems:
        first = report.problems[0]
        raise CorruptError(path, first.record, first.offset, first.reason + _more(len(report.problems)), report.hint)


def _check_hdf5(path: str, progress: Progress) -> None:
    from ..formats.hdf5.verify import verify_hdf5

    report = verify_hdf5(path, progress)
    if not report.readable:
        raise InputError(f"{path}: {report.problems[0].reason}")
    if report.problems:
        first = report.problems[0]
        chunk = f", chunk at {', '.join(map(str, first.chunk))}" if first.chunk else ""
        where = f"{first.dataset}{chunk}: " if first.dataset else ""
        reason = f"{where}{first.reason}{_more(len(report.problems))}"
        raise CorruptError(path, None, first.offset, reason, report.hint.replace("FILE", path))


def _check_tar(path: str, progress: Progress) -> None:
    """Opening it goes through all headers, without an index; what a tar holds has no checksums."""
    from ..formats.tar import TarShard

    with TarShard(path, cache=False) as shard:
        odd = shard.first_odd() if shard.marked else None
        if odd is not None:
            raise DecodeError(path, odd, None, "the sample lacks a member that the tar's own schema speaks of")


def _check_run(run: Path, parts: Sequence[InputFile], told: Told) -> None:
    from ..writer.dataset import DatasetWriter

    schema = parts[0].schema
    assert schema is not None
    whole = told.left
    report = DatasetWriter(run, schema).verify(lambda _, count: told.tell(whole / max(count, 1)))
    if report.problems:
        first = report.problems[0]
        inside = f"dataset {first.dataset!r}, chunk {first.chunk}: " if first.dataset is not None else ""
        reason = f"{inside}{first.reason}{_more(len(report.problems))}"
        raise CorruptError(first.path, None, first.offset, reason, f"`holdfast verify {run}` lists all")


def _more(count: int) -> str:
    return f" (and {count - 1:,} more)" if count > 1 else ""
