"""The public face of writing: a folder that many workers land parts in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..formats.hdf5.layout import check_keys
from ..formats.hdf5.sink import check_codec
from ..formats.schema_json import schema_digest
from ..schema import Column, Value, check_schema
from .folder import open_folder, record_paths, sweep
from .names import Format, check_attempt, check_format, check_task
from .part import Part
from .record import PartRecord, read_record
from .verify import Report, verify


def write(folder: str | os.PathLike[str], schema: Mapping[str, Column | type[Value]] | None = None) -> Out:
    """Makes a folder for a run's data, or reopens it: any number of processes may do so at once.

    Reopening checks the schema, a SchemaError names the column that differs; without a schema it is the folder's own.
    Commits that were interrupted are finished, and what dead attempts left is taken away.
    """
    name = os.fsdecode(folder)
    if "://" in name:
        raise InputError(f"{name}: wanted a folder on this machine, got a URL")
    path = Path(os.path.abspath(name))
    there = open_folder(path, None if schema is None else check_schema(schema))
    sweep(path)
    return Out(path, there)


class Out:
    """A run's folder. Holds no descriptor; pickles, so that workers can be given it."""

    def __init__(self, folder: Path, schema: dict[str, Column]) -> None:
        self.folder = folder
        self.schema = schema

    def part(
        self,
        task: str | int | None = None,
        format: Format = "hdf5",
        *,
        attempt: int | None = None,
        chunk_rows: int | None = None,
        codec: Any = None,
    ) -> Part:
        """The part of one task, the unit of commit and of retry; use it in a `with` block.

        task        the same name when the work is tried again; of two attempts the first to commit wins
        attempt     a number for it; None: the next that is free
        chunk_rows  rows in a chunk of an HDF5 part; None: as many as the widest column fills half a MiB with
        codec       of HDF5 chunks: None, "gzip", ("gzip", 0 to 9) or "lzf"
        """
        kind = check_format(format)
        check_codec(codec)
        if chunk_rows is not None and (
            isinstance(chunk_rows, bool) or not isinstance(chunk_rows, int) or chunk_rows < 1
        ):
            raise ValueError(f"wanted chunk_rows to be a number from 1 up, got {chunk_rows!r}")
        if kind == "tfrecord" and (codec is not None or chunk_rows is not None):
            raise ValueError("chunk_rows and codec are for HDF5: a packed TFRecord could be read from its start only")
        if kind == "hdf5":
            check_keys(self.schema)
        return Part(self.folder, self.schema, check_task(task), kind, check_attempt(attempt), chunk_rows, codec)

    def parts(self) -> list[PartRecord]:
        """The committed parts' records, by task and attempt."""
        return [read_record(path) for path in record_paths(self.folder / "parts")]

    def path_of(self, record: PartRecord) -> Path:
        """The file of a committed part."""
        return self.folder / "parts" / record.file

    @property
    def rows(self) -> int:
        """All that are committed."""
        return sum(record.rows for record in self.parts())

    def verify(self, tell: Callable[[int, int], None] | None = None) -> Report:
        """Reads every byte of every committed part again; changes nothing."""
        return verify(self.folder, self.schema, schema_digest(self.schema), tell)

    def __repr__(self) -> str:
        return f"<Out {self.folder}, {len(self.schema):,} columns>"
