"""What is to be converted: files, globs, folders, runs; and whether all of it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import CorruptError, DecodeError, InputError, cannot_open
from ..formats.shard import kind_of
from ..formats.tfrecord.verify import verify_file
from ..read.sources.find import find_sources
from ..schema import Column
from ..write.names import SCHEMA_NAME
from .names import Kind

Given = str | os.PathLike[str]
Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Source:
    """One file. `run` is the folder of the run that it is a part of, `schema` that run's."""

    path: str
    kind: Kind
    stamp: tuple[int, int, int]  # its size, mtime and inode
    run: Path | None = None
    schema: dict[str, Column] | None = None

    @property
    def size_bytes(self) -> int:
        return self.stamp[0]


def find(what: Given | Iterable[Given]) -> list[Source]:
    """The files in their order; those of a glob or a folder by name, of a run its committed parts by task."""
    found = []
    for spec in find_sources(what):
        if spec.is_remote:
            raise InputError(f"{spec.path}: expected a file on this machine, got a URL; bring it here first")
        if spec.is_files:
            raise InputError(f"{(spec.files or (spec.path,))[0]}: expected TFRecord, HDF5 or tar files, got others")
        run = _run_of(spec.path)
        schema = None if run is None else _schema_of(run)
        found.append(Source(spec.path, kind_of(spec.path), stamp_of(spec.path), run, schema))
    return found


def _run_of(path: str) -> Path | None:
    parts = Path(os.path.abspath(path)).parent
    return parts.parent if parts.name == "parts" and (parts.parent / SCHEMA_NAME).is_file() else None


def _schema_of(run: Path) -> dict[str, Column]:
    from ..write.folder import read_schema  # with h5py, which takes a while to load

    return read_schema(run)


def stamp_of(path: str) -> tuple[int, int, int]:
    try:
        info = os.stat(path)
    except OSError as error:
        raise cannot_open(path, error) from error
    return info.st_size, info.st_mtime_ns, info.st_ino


def refuse_changed(sources: Sequence[Source]) -> None:
    for source in sources:
        if stamp_of(source.path) != source.stamp:
            raise InputError(f"{source.path}: it changed while it was read; nothing was kept. Wait for its writer")


# ---- whole?


def check_whole(sources: Sequence[Source], progress: Progress) -> None:
    """As `holdfast verify` does it; the first damage is an error that says where it is. Every byte is told of once."""
    runs: dict[Path, list[Source]] = {}
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


def _check_run(run: Path, parts: Sequence[Source], told: Told) -> None:
    from ..write.out import Out

    schema = parts[0].schema
    assert schema is not None
    whole = told.left
    report = Out(run, schema).verify(lambda _, count: told.tell(whole / max(count, 1)))
    if report.problems:
        first = report.problems[0]
        inside = f"dataset {first.dataset!r}, chunk {first.chunk}: " if first.dataset is not None else ""
        reason = f"{inside}{first.reason}{_more(len(report.problems))}"
        raise CorruptError(first.path, None, first.offset, reason, f"`holdfast verify {run}` lists all")


def _more(count: int) -> str:
    return f" (and {count - 1:,} more)" if count > 1 else ""
