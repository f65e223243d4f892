"""hold.convert: from one format to another, proven."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .._util.atomic import check_absent, publish_files, staging_dir
from .._util.compression import check_codec
from .._util.text import parse_bytes
from ..errors import InputError, WriteError
from ..formats.base import GivenSchema
from ..formats.tfrecord.manifest import FileEntry, find_manifest, renew_in_manifest, write_manifest
from ..formats.tfrecord.split_merge import MOST_PARTS
from ..schema import Column, check_schema
from .column_mapping import decide, must_look
from .engine import OutputOptions, prove, write_targets
from .input_files import Given, InputFile, check_whole, find, refuse_changed
from .targets import TargetName, naming, parse_target, refuse_others

_PASSES = 3  # whole, copied, read again


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written. `checksum`: over all values of all samples in order; the same for the same data in any format.

    `notes`: what of the sources is not in the targets, or is other than it was.
    """

    rows: int
    schema: dict[str, Column]
    checksum: str
    files: list[FileEntry]
    notes: list[str]


def convert(
    source: Given | Iterable[Given],
    target: Given,
    schema: GivenSchema | None = None,
    *,
    shards: int | None = None,
    shard_bytes: str | int | None = None,
    codec: Any = None,
    compression: Literal["auto", "none", "gzip", "zlib"] = "auto",
    cast: bool = False,
    overwrite: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Converted:
    """All samples of TFRecord, HDF5 and tar files, in order, in one new file, or in several: the target's name says
    which format. The sources are verified first; the targets are read again, and appear when they are proven to hold
    the same columns, rows and values.

    source:       a path, a glob, a folder, a run.hold, or a list of them
    schema:       the columns to take; by default all that the sources have
    shards:       write so many files, NAME-00000-of-00008.tfrecord and so on, of about as many samples each
    shard_bytes:  write files of about so much: "256MB", by the size of their values
    codec:        of HDF5 chunks, as out.part() takes it; None: as the schema says, or else none
    compression:  of TFRecord files; "auto": by the target's name
    cast:         round float64 to Float32 where a TFRecord or the schema has no more digits, and fill features that
                  some records lack with 0 or b""
    overwrite:    replace targets that are there
    progress:     hears of so many bytes of the sources; of all of them once
    """
    name = parse_target(target)
    wanted = _wanted(name, shards, shard_bytes, codec, compression)
    columns = None if schema is None else check_schema(schema)
    sources = find(source)
    _refuse_own(sources, name, wanted)
    if wanted.shard_bytes is None:
        _refuse_targets(name, wanted, _names(name, wanted, wanted.shards or 1), overwrite)
    if name.kind == "tfrecord" and wanted.many:
        find_manifest(name.folder / name.whole)  # one that cannot be added to is better found now
    tick = _Ticker(sources, progress, _PASSES + must_look(sources, columns))
    busy = f"another conversion to {name.folder / name.whole}"
    with (
        staging_dir(name.folder, f"{name.whole}.convert", busy=busy) as staging,
        naming(staging, name.folder / name.whole),
    ):
        check_whole(sources, tick.of_source)
        found = decide(sources, columns, staging, name.kind, cast=cast, progress=tick.of_source)
        entries, checksum = write_targets(sources, found, wanted, staging, tick.of_source)
        rows = sum(entry.records for entry in entries)
        prove(entries, found, wanted, checksum, staging, tick.of_rows(rows))
        refuse_changed(sources)
        names = _names(name, wanted, len(entries))
        _refuse_targets(name, wanted, names, overwrite)
        publish_files([Path(entry.path) for entry in entries], name.folder, names, overwrite=overwrite)
    files = [entry._replace(path=str(name.folder / one)) for entry, one in zip(entries, names, strict=True)]
    if wanted.kind == "tfrecord":
        _note_in_manifest(name.folder, files, many=wanted.many)
    return Converted(rows, found.schema, checksum, files, found.notes)


def _wanted(
    name: TargetName, shards: int | None, shard_bytes: str | int | None, codec: Any, compression: Any
) -> OutputOptions:
    if shards is not None and shard_bytes is not None:
        raise ValueError("say either how many shards or how large one may be")
    if shards is not None and (type(shards) is not int or not 1 <= shards <= MOST_PARTS):
        raise ValueError(f"expected from 1 to {MOST_PARTS:,} shards, got {shards!r}")
    if codec is not None and name.kind != "hdf5":
        raise ValueError(f"a codec is for HDF5, got {codec!r} for {name.whole}")
    if codec is not None:
        check_codec(codec)
    if compression not in ("auto", "none", "gzip", "zlib"):
        raise ValueError(f"expected compression to be auto, none, gzip or zlib, got {compression!r}")
    if compression in ("gzip", "zlib") and name.kind != "tfrecord":
        raise ValueError(f"compression is for TFRecord, got {compression!r} for {name.whole}")
    size = None if shard_bytes is None else parse_bytes(shard_bytes)
    return OutputOptions(name.kind, name.suffix, codec, compression, shards, size)


def _names(name: TargetName, wanted: OutputOptions, count: int) -> list[str]:
    return [name.shard(i, count) for i in range(count)] if wanted.many else [name.whole]


def _refuse_targets(name: TargetName, wanted: OutputOptions, names: Sequence[str], overwrite: bool) -> None:
    if not overwrite:
        check_absent(name.folder, names)
    if wanted.many:
        refuse_others(name.folder, names, name.is_shard)


def _refuse_own(sources: Sequence[InputFile], name: TargetName, wanted: OutputOptions) -> None:
    """Shards of an earlier conversion, found in the folder that was given, would be taken in a second time."""
    if not sources:
        raise InputError("expected at least one file to convert")
    for source in sources:
        path = Path(os.path.realpath(source.path))
        beside = path.parent == Path(os.path.realpath(name.folder))
        if beside and (name.is_shard(path.name) if wanted.many else path.name == name.whole):
            raise WriteError(f"{source.path} is also an output; name another one, or leave it out")


def _note_in_manifest(folder: Path, files: list[FileEntry], *, many: bool) -> None:
    """Shards are listed where a missing one must be noticed; a single file only where one of its name was."""
    if many:
        write_manifest(folder, files)
    else:
        renew_in_manifest(files[0])


class _Ticker:
    """Passes over the sources, as one."""

    def __init__(self, sources: Sequence[InputFile], progress: Callable[[float], None] | None, passes: int) -> None:
        self._progress, self._passes = progress, passes
        self._total = sum(source.size_bytes for source in sources)

    def of_source(self, n: float) -> None:
        if self._progress is not None:
            self._progress(n / self._passes)

    def of_rows(self, rows: int) -> Callable[[float], None]:
        return lambda n: self.of_source(self._total * n / max(rows, 1))
