"""Defines hold.convert: converts between TFRecord, HDF5 and tar, and verifies the result."""

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
from .column_mapping import choose_columns, must_infer
from .engine import OutputOptions, verify_targets, write_targets
from .input_files import InputFile, PathLike, check_intact, check_unchanged, find
from .targets import TargetName, check_no_other_shards, naming, parse_target

_PASSES = 3  # verify, copy, read back


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written.

    checksum: over all values of all samples in order; the same for the same data in any format
    notes:    what of the sources was dropped or changed
    """

    rows: int
    schema: dict[str, Column]
    checksum: str
    files: list[FileEntry]
    notes: list[str]


def convert(
    source: PathLike | Iterable[PathLike],
    target: PathLike,
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
    """Writes all samples of TFRecord, HDF5 and tar files, in order, to one or several new files. The suffix of the
    target decides the format. The sources are verified first. The targets are read back, and only appear if they have
    the same columns, rows and values.

    source:       a path, a glob, a folder, a run.hold, or a list of them
    schema:       the columns to convert; by default all
    shards:       write this many files of about equal length, named NAME-00000-of-00008.tfrecord and so on
    shard_bytes:  write files of about this size, such as "256MB", measured by their values
    codec:        of HDF5 chunks, as out.part() takes it; None: as the schema says, or none
    compression:  of TFRecord files; "auto": by the target's name
    cast:         round float64 to Float32 where the target has no float64, and fill features that some records lack
                  with 0 or b""
    overwrite:    replace existing targets
    progress:     called with numbers of bytes, which add up to the size of the sources
    """
    name = parse_target(target)
    options = _output_options(name, shards, shard_bytes, codec, compression)
    columns = None if schema is None else check_schema(schema)
    sources = find(source)
    _check_not_output(sources, name, options)
    if options.shard_bytes is None:
        _check_targets(name, options, _names(name, options, options.shards or 1), overwrite)
    if name.kind == "tfrecord" and options.many:
        find_manifest(name.folder / name.name)  # raises now if the manifest cannot be extended
    tick = _Ticker(sources, progress, _PASSES + must_infer(sources, columns))
    busy = f"another conversion to {name.folder / name.name}"
    with (
        staging_dir(name.folder, f"{name.name}.convert", busy=busy) as staging,
        naming(staging, name.folder / name.name),
    ):
        check_intact(sources, tick.of_source)
        found = choose_columns(sources, columns, staging, name.kind, cast=cast, progress=tick.of_source)
        entries, checksum = write_targets(sources, found, options, staging, tick.of_source)
        rows = sum(entry.records for entry in entries)
        verify_targets(entries, found, options, checksum, staging, tick.of_rows(rows))
        check_unchanged(sources)
        names = _names(name, options, len(entries))
        _check_targets(name, options, names, overwrite)
        publish_files([Path(entry.path) for entry in entries], name.folder, names, overwrite=overwrite)
    files = [entry._replace(path=str(name.folder / one)) for entry, one in zip(entries, names, strict=True)]
    if options.kind == "tfrecord":
        _note_in_manifest(name.folder, files, many=options.many)
    return Converted(rows, found.schema, checksum, files, found.notes)


def _output_options(
    name: TargetName, shards: int | None, shard_bytes: str | int | None, codec: Any, compression: Any
) -> OutputOptions:
    if shards is not None and shard_bytes is not None:
        raise ValueError("expected either shards= or shard_bytes=, got both")
    if shards is not None and (type(shards) is not int or not 1 <= shards <= MOST_PARTS):
        raise ValueError(f"expected from 1 to {MOST_PARTS:,} shards, got {shards!r}")
    if codec is not None and name.kind != "hdf5":
        raise ValueError(f"a codec is for HDF5, got {codec!r} for {name.name}")
    if codec is not None:
        check_codec(codec)
    if compression not in ("auto", "none", "gzip", "zlib"):
        raise ValueError(f"expected compression to be auto, none, gzip or zlib, got {compression!r}")
    if compression in ("gzip", "zlib") and name.kind != "tfrecord":
        raise ValueError(f"compression is for TFRecord, got {compression!r} for {name.name}")
    size = None if shard_bytes is None else parse_bytes(shard_bytes)
    return OutputOptions(name.kind, name.suffix, codec, compression, shards, size)


def _names(name: TargetName, options: OutputOptions, count: int) -> list[str]:
    return [name.shard(i, count) for i in range(count)] if options.many else [name.name]


def _check_targets(name: TargetName, options: OutputOptions, names: Sequence[str], overwrite: bool) -> None:
    if not overwrite:
        check_absent(name.folder, names)
    if options.many:
        check_no_other_shards(name.folder, names, name.is_shard)


def _check_not_output(sources: Sequence[InputFile], name: TargetName, options: OutputOptions) -> None:
    """Raises an error if a source would be overwritten, such as the shards of an earlier conversion."""
    if not sources:
        raise InputError("expected at least one file to convert")
    for source in sources:
        path = Path(os.path.realpath(source.path))
        beside = path.parent == Path(os.path.realpath(name.folder))
        if beside and (name.is_shard(path.name) if options.many else path.name == name.name):
            raise WriteError(f"{source.path} is also an output; name another one, or leave it out")


def _note_in_manifest(folder: Path, files: list[FileEntry], *, many: bool) -> None:
    """Lists shards, so that a missing one is noticed; updates a single file only if it was listed before."""
    if many:
        write_manifest(folder, files)
    else:
        renew_in_manifest(files[0])


class _Ticker:
    """Progress over several passes of the sources."""

    def __init__(self, sources: Sequence[InputFile], progress: Callable[[float], None] | None, passes: int) -> None:
        self._progress, self._passes = progress, passes
        self._total = sum(source.size_bytes for source in sources)

    def of_source(self, n: float) -> None:
        if self._progress is not None:
            self._progress(n / self._passes)

    def of_rows(self, rows: int) -> Callable[[float], None]:
        return lambda n: self.of_source(self._total * n / max(rows, 1))
