"""Common interface of HDF5 and TFRecord part files: `extend`, `finalize`, `discard`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from .._util.atomic import sync_file
from ..formats.hdf5.writer import FinishedFile, HDF5Writer
from ..formats.tfrecord.column_encoding import buffers_of
from ..formats.tfrecord.writer import TFRecordWriter
from ..schema import Column, Ragged
from .directory import SUFFIXES, Format
from .workspace import Workspace


class PartFile(Protocol):
    path: Path  # in the workspace

    def extend(self, columns: Mapping[str, Any]) -> int:
        """Writes columns, and returns their rows. SchemaError: they do not fit, and nothing was written."""

    def finalize(self) -> FinishedFile: ...

    def discard(self) -> None: ...

    def detach(self) -> None:
        """Releases the file without touching it: in a forked child, the parent still writes it."""


def make_file(
    workspace: Workspace, schema: dict[str, Column], kind: Format, chunk_rows: int | None, codec: Any
) -> PartFile:
    path = workspace.path(f"data{SUFFIXES[kind]}")
    return _HDF5PartFile(path, schema, chunk_rows, codec) if kind == "hdf5" else _TFRecordPartFile(path, schema)


class _HDF5PartFile:
    def __init__(self, path: Path, schema: dict[str, Column], chunk_rows: int | None, codec: Any) -> None:
        self.path = path
        self._schema = schema
        self._writer = HDF5Writer(path, schema, chunk_rows=chunk_rows, codec=codec)
        self.finalize, self.discard, self.detach = self._writer.finalize, self._writer.discard, self._writer.detach

    def extend(self, columns: Mapping[str, Any]) -> int:
        buffers, rows = buffers_of(self._schema, columns)
        self._writer.extend(buffers, rows)
        return rows


class _TFRecordPartFile:
    def __init__(self, path: Path, schema: dict[str, Column]) -> None:
        nested = any(isinstance(column, Ragged) and column.depth > 1 for column in schema.values())
        self._schema = schema
        self._writer = TFRecordWriter(path, schema, sequence=nested)
        self.path = path.with_name(f".{path.name}.partial")

    def extend(self, columns: Mapping[str, Any]) -> int:
        buffers, rows = buffers_of(self._schema, columns)
        self._writer.extend_buffers(buffers, rows)
        return rows

    def finalize(self) -> FinishedFile:
        self.path, entry = self._writer.finalize()
        return FinishedFile(entry.records, entry.bytes, entry.crc32c, {})

    def discard(self) -> None:
        self._writer.discard()

    def detach(self) -> None:
        pass  # TFRecordWriter handles forks itself


@contextmanager
def synced_beside(path: Path) -> Iterator[None]:
    """Syncs a file while the block runs: syncs at the same time share the disk's work."""
    failed: list[OSError] = []

    def sync() -> None:
        try:
            sync_file(path)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=sync, name="holdfast-sync")
    try:
        thread.start()
    except RuntimeError:  # no thread can be started: one sync after the other
        sync()
    try:
        yield
    finally:
        if thread.ident is not None:
            thread.join()
    if failed:
        raise failed[0]
