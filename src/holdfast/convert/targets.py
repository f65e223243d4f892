"""The three writers behind one face: batches in, and a file that is on disk for good."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..formats.tfrecord.encoding import buffers_of
from ..formats.tfrecord.manifest import FileEntry
from ..formats.tfrecord.writer import TFRecordWriter
from ..schema import Column, Ragged
from .names import Kind


class Target(Protocol):
    def extend(self, batch: Mapping[str, Any]) -> None: ...

    def finish(self) -> FileEntry:
        """It is whole and synced."""

    def discard(self) -> None:
        """Lets go of everything. Safe to call twice, and after finish()."""


def make_target(
    kind: Kind, path: Path, schema: dict[str, Column], *, first: int, codec: Any, compression: Any
) -> Target:
    """`path` must not exist; `first` is the number of its first sample."""
    if kind == "hdf5":
        return _HDF5(path, schema, codec)
    return _TFRecord(path, schema, compression) if kind == "tfrecord" else _Tar(path, schema, first)


class _TFRecord:
    def __init__(self, path: Path, schema: dict[str, Column], compression: Any) -> None:
        nested = any(isinstance(column, Ragged) and column.depth > 1 for column in schema.values())
        self._writer = TFRecordWriter(path, schema, compression=compression, sequence=nested)
        self.extend, self.finish, self.discard = self._writer.extend, self._writer.close, self._writer.discard


class _Tar:
    def __init__(self, path: Path, schema: dict[str, Column], first: int) -> None:
        from ..formats.tar.writer import TarWriter

        self._writer = TarWriter(path, schema, first=first)
        self.finish, self.discard = self._writer.close, self._writer.discard

    def extend(self, batch: Mapping[str, Any]) -> None:
        self._writer.extend(batch)


class _HDF5:
    def __init__(self, path: Path, schema: dict[str, Column], codec: Any) -> None:
        from ..formats.hdf5.writer import HDF5Writer

        self._schema = schema
        self._writer = HDF5Writer(path, schema, codec=codec)
        self._done = False

    def extend(self, batch: Mapping[str, Any]) -> None:
        self._writer.extend(*buffers_of(self._schema, batch))

    def finish(self) -> FileEntry:
        settled = self._writer.settle()
        os.fsync(self._writer.fd)
        self._writer.abandon()
        self._done = True
        return FileEntry(str(self._writer.path), settled.rows, settled.bytes, settled.crc32c)

    def discard(self) -> None:
        if not self._done:
            self._writer.discard()
