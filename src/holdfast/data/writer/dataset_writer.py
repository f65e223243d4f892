"""`hold.write`: a dataset that many workers write parts of."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..._util.compression import check_codec
from ...errors import InputError
from ...schema import Column, Value, check_schema, schema_digest
from ..formats.base import Lazy
from ..formats.hdf5.schema_layout import check_keys
from ..formats.hdf5.writer import packings
from ..formats.part_record import PartRecord, parse_record
from ..formats.registry import FORMATS
from .commit import LocalLocation
from .directory import (
    Format,
    check_attempt,
    check_format,
    check_task,
    grow_schema,
    open_folder,
    read_schemas,
    records_in,
    remove_stale_files,
)
from .part import Location, Part
from .verify import Report, verify_folder

if TYPE_CHECKING:
    from ..formats.base import Merged
    from .consolidate import Consolidated, Sources
    from .server.server_process import Server

# What a part needs is loaded with this module: a process without a free descriptor can import nothing.
for _format in FORMATS.values():
    if isinstance(_format.part, Lazy):
        _format.part.load()


def write(
    folder: str | os.PathLike[str],
    schema: Mapping[str, Column | type[Value]] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> DatasetWriter:
    """Creates a dataset directory, or opens an existing one: any number of processes may do so at the same time.

    Opening checks the schema: a SchemaError names the column that differs. Without a schema, that of the directory is
    used. Codecs and chunk_rows are those it was created with. Interrupted commits are finished, and temporary files of
    dead attempts are removed.

    Args:
        storage_options: Options for a URL, as fsspec takes them.
    """
    name = os.fsdecode(folder).removeprefix("file://").removeprefix("local://")
    columns = None if schema is None else check_schema(schema)
    if "://" in name:
        from .remote.remote_dataset import open_remote

        return open_remote(name, columns, storage_options)
    path = Path(os.path.abspath(name))
    there = open_folder(path, columns)
    remove_stale_files(path)
    return DatasetWriter(path, there)


class DatasetWriter:
    """A dataset directory. It holds no descriptor, and can be pickled and sent to workers."""

    __module__ = "holdfast"

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
        """Returns the part of one task, the unit of commit and retry; use it in a `with` block.

        Args:
            task: A retry uses the same name; of two attempts, the first to commit wins. None: `rank3`, if a launcher
                started this process as rank 3.
            attempt: Its number; None: the next free one.
            chunk_rows: Rows in a chunk of an HDF5 part; None: as the schema says, or else as many as the widest column
                fills half a MiB with.
            codec: The codec of HDF5 chunks: "none", "gzip", ("gzip", 0 to 9), "lzf", "zstd" or ("zstd", 1 to 22), which
                needs the package hdf5plugin; None: as the schema says, column by column, or else none.
        """
        kind = check_format(format)
        check_codec(codec)
        if chunk_rows is not None and (
            isinstance(chunk_rows, bool) or not isinstance(chunk_rows, int) or chunk_rows < 1
        ):
            raise ValueError(f"chunk_rows must be a positive integer, got {chunk_rows!r}")
        check_part = FORMATS[kind].check_part
        if check_part is not None:
            check_part(self.schema, chunk_rows, codec)
        self._check_can_write(attempt)
        return Part(self._location(), self.schema, check_task(task), kind, check_attempt(attempt), chunk_rows, codec)

    def _check_can_write(self, attempt: int | None) -> None:
        """Checks what a subclass requires before a part is written."""

    def server(
        self,
        address: str | None = None,
        *,
        ack: Literal["process", "disk"] = "process",
        queue_bytes: str | int = "256MB",
        segment_bytes: str | int = "64MiB",
        backlog_bytes: str | int = "4GiB",
        seal_after: float | str = 60.0,
        seal: bool = True,
        token: str | None = None,
        take_over: bool = False,
        chunk_rows: int | None = None,
        codec: Any = None,
    ) -> Server:
        """Returns the central writer, in a process of its own: producers send it rows (hold.connect), and it makes
        parts of them. Use it in a `with` block.

        Args:
            address: None: a Unix socket in the directory; or "unix:/a/path.sock", "tcp://host:port" (0: any port).
            ack: A row is acknowledged when it is written ("process": it survives any kill), or when it is on disk as
                well ("disk": it survives a power cut).
            queue_bytes: Memory for received rows, over all producers.
            segment_bytes: Approximate size of a part.
            backlog_bytes: How much may wait for the sealer; beyond that, producers wait.
            seal_after: How long rows may wait before they become a part, in seconds or as a text such as "5min".
            seal: False: keep the journal; a later server makes the parts.
            token: A secret of the producers, required for tcp. None: HOLDFAST_TOKEN.
            take_over: Replace a running server, which is fenced off and ends.
        """
        from .server.server_process import Server, make_settings

        check_keys(self.schema)
        packings(self.schema, codec)
        settings = make_settings(
            address=address,
            ack=ack,
            queue_bytes=queue_bytes,
            segment_bytes=segment_bytes,
            backlog_bytes=backlog_bytes,
            seal_after=seal_after,
            seal=seal,
            token=token,
            take_over=take_over,
            chunk_rows=chunk_rows,
            codec=codec,
        )
        return Server(self.folder, settings)

    def _location(self) -> Location:
        return LocalLocation(self.folder)

    def parts(self) -> list[PartRecord]:
        """Returns the committed parts' records, sorted by task and attempt."""
        location = self._location()
        return [parse_record(location.read(name), location.shown(name)) for name in records_in(location.names())]

    def path_of(self, record: PartRecord) -> Path:
        """Returns the path of a committed part."""
        return self.folder / "parts" / record.file

    @property
    def rows(self) -> int:
        """The number of committed rows."""
        return sum(record.rows for record in self.parts())

    def grow(self, schema: dict[str, Column]) -> DatasetWriter:
        """Adds columns to a log. Returns the dataset with these columns, or with those another process added first.

        Committed parts do not change. So an added column needs a default for the parts without it, and a changed type
        must be readable from the values they have.
        """
        return DatasetWriter(self.folder, grow_schema(self.folder, self.schema, schema))

    def verify(self, progress: Callable[[int, int], None] | None = None) -> Report:
        """Reads every byte of every committed part, and changes nothing."""
        digests = {schema_digest(one) for one in read_schemas(self.folder)}
        return verify_folder(self.folder, self.schema, digests | {schema_digest(self.schema)}, progress)

    def consolidate(
        self,
        target: str | os.PathLike[str],
        *,
        order: Literal["exact", "any"] = "exact",
        overwrite: bool = False,
        delete_parts: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Consolidated:
        """Makes one file of all committed parts: `.h5` of HDF5 parts, `.tfrecord` of TFRecord parts. It appears when it
        is complete and verified against their records; a manifest says what went into it. After a kill, the same call
        continues.

        Args:
            order: "exact": by task (rank9 before rank10) and row; what the central writer took, by producer and number.
                "any": full chunks first, so that hardly any is compressed again; rows stay intact.
            overwrite: Replace a file of that name, once the new one is complete.
            delete_parts: Delete them after the file was read again; their tasks stay done.
            progress: Called with the number of bytes done, from time to time.
        """
        from .consolidate import consolidate, finish_deletion

        path = Path(os.path.abspath(os.fsdecode(target)))
        self._check_local()
        if delete_parts:
            made = finish_deletion(self.folder, self.parts(), path, order)
            if made is not None and not self.parts():
                return made
        sources = self._sources(order)
        return consolidate(sources, path, overwrite=overwrite, delete_parts=delete_parts, progress=progress)

    def plan(self, *, order: Literal["exact", "any"] = "exact") -> Consolidated:
        """Returns what consolidate would do: rows, bytes, and how each dataset would be merged. Writes nothing."""
        from .consolidate import plan

        return plan(self._sources(order))

    def view(self, target: str | os.PathLike[str], *, overwrite: bool = False) -> Merged:
        """Makes an HDF5 file of virtual datasets over all committed parts, in the exact order.

        It names the parts relative to itself, so they must not move. Every source is checked when the view is made.
        Later, HDF5 silently reads fill values where it cannot open a source: when one is gone, or when there are more
        parts than this process may have open files. So the soft limit is raised as needed, or the view is refused.
        """
        from .consolidate import make_view

        return make_view(self._sources("exact"), Path(os.path.abspath(os.fsdecode(target))), overwrite=overwrite)

    def _sources(self, order: Literal["exact", "any"]) -> Sources:
        from .consolidate import Sources

        self._check_local()
        return Sources(self.folder, self.schema, self.parts(), order)

    def _check_local(self) -> None:
        if not isinstance(self._location(), LocalLocation):
            raise InputError(f"{self.folder}: expected a folder on this machine; copy it here, then consolidate it")

    def __repr__(self) -> str:
        return f"<DatasetWriter {self.folder}, {len(self.schema):,} columns>"
