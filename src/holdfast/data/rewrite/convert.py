"""Defines hold.convert: converts between TFRecord, HDF5 and tar, and verifies the result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..._util.atomic import check_absent, check_not_input, check_unchanged, staging_dir
from ..._util.compression import check_codec
from ..._util.progress import scaled
from ..._util.text import parse_bytes
from ...errors import InputError
from ...schema import Column, check_schema
from ..formats.base import FileEntry, GivenSchema
from ..formats.parts_manifest import check_not_only_copy
from ..formats.targets import MAX_SHARDS, TargetName, check_no_other_shards, parse_target, publish, renaming
from ..formats.tfrecord.manifest import find_manifest
from .column_mapping import choose_columns, must_infer
from .engine import OutputOptions, verify_targets, write_targets
from .input_files import PathLike, check_intact, find

_PASSES = 3  # verify, copy, read back


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written.

    Attributes:
        checksum: Over all values of all samples in order; the same for the same data in any format.
        notes: What of the sources was dropped or changed.
    """

    __module__ = "holdfast"

    rows: int
    schema: dict[str, Column]
    checksum: str
    files: list[FileEntry]
    notes: list[str]

    def as_dict(self) -> dict[str, object]:
        """Returns what `holdfast convert --json` prints."""
        return {
            "rows": self.rows,
            "checksum": self.checksum,
            "schema": {name: repr(column) for name, column in self.schema.items()},
            "files": [entry.as_dict() for entry in self.files],
            "notes": self.notes,
        }


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

    Args:
        source: A path, a glob, a folder, a run.hold, or a list of them.
        schema: The columns to convert; by default all.
        shards: Write this many files of about equal length, named NAME-00000-of-00008.tfrecord and so on.
        shard_bytes: Write files of about this size, such as "256MB", measured by their values.
        codec: The codec of HDF5 chunks, as out.part() takes it; None: as the schema says, or none.
        compression: The compression of TFRecord files; "auto": by the target's name.
        cast: Round float64 to Float32 where the target has no float64, and fill features that some records lack with 0
            or b"".
        overwrite: Replace existing targets.
        progress: Called with numbers of bytes, which add up to the size of the sources.
    """
    name = parse_target(target)
    options = _output_options(name, shards, shard_bytes, codec, compression)
    columns = None if schema is None else check_schema(schema)
    sources = find(source)
    if not sources:
        raise InputError("expected at least one file to convert")
    outputs = name.existing_shards() if options.many else [name.name]  # of any number: it may not be known yet
    check_not_input([source.path for source in sources], [name.folder / one for one in outputs])
    if overwrite:
        check_not_only_copy([source.path for source in sources], [name.folder / one for one in outputs])
    if options.shard_bytes is None:
        _check_targets(options, options.names(options.shards or 1), overwrite)
    if name.kind.has_manifest and options.many:
        find_manifest(name.folder / name.name)  # raises now if the manifest cannot be extended
    size = sum(source.size_bytes for source in sources)
    tick = scaled(progress, 1 / (_PASSES + must_infer(sources, columns)))
    path = str(name.folder / name.name)
    with (
        staging_dir(name.folder, f"{name.name}.convert", busy=f"another conversion to {path}") as staging,
        renaming(rf"{re.escape(str(staging))}/[^ :,]+", path),
    ):
        check_intact(sources, tick)
        found = choose_columns(sources, columns, staging, name.kind, cast=cast, progress=tick)
        entries, checksum = write_targets(sources, found, options, staging, tick)
        rows = sum(entry.records for entry in entries)
        verify_targets(entries, found, options, checksum, staging, scaled(tick, size / max(rows, 1)))
        check_unchanged({source.path: source.stamp for source in sources})
        names = options.names(len(entries))
        _check_targets(options, names, overwrite)
        files = publish(entries, name, names, overwrite=overwrite)
    return Converted(rows, found.schema, checksum, files, found.notes)


def _output_options(
    name: TargetName, shards: int | None, shard_bytes: str | int | None, codec: Any, compression: Any
) -> OutputOptions:
    if shards is not None and shard_bytes is not None:
        raise ValueError("expected either shards= or shard_bytes=, got both")
    if shards is not None and (type(shards) is not int or not 1 <= shards <= MAX_SHARDS):
        raise ValueError(f"expected from 1 to {MAX_SHARDS:,} shards, got {shards!r}")
    if codec is not None and "codec" not in name.kind.write_options:
        raise ValueError(f"a codec is for HDF5, got {codec!r} for {name.name}")
    if codec is not None:
        check_codec(codec)
    if compression not in ("auto", "none", "gzip", "zlib"):
        raise ValueError(f"expected compression to be auto, none, gzip or zlib, got {compression!r}")
    if compression in ("gzip", "zlib") and "compression" not in name.kind.write_options:
        raise ValueError(f"compression is for TFRecord, got {compression!r} for {name.name}")
    size = None if shard_bytes is None else parse_bytes(shard_bytes)
    return OutputOptions(name, codec, compression, shards, size)


def _check_targets(options: OutputOptions, names: Sequence[str], overwrite: bool) -> None:
    if not overwrite:
        check_absent(options.target.folder, names)
    if options.many:
        check_no_other_shards(options.target, names)
