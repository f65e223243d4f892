"""Writes HDF5 files for conversions and for dataset directories."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....schema import Column
from ..base import FileEntry
from ..row_buffers import buffers_of
from .schema_layout import check_keys
from .writer import HDF5Writer, packings


class ConvertedHDF5:
    """A file that a conversion writes."""

    def __init__(self, path: Path, schema: dict[str, Column], *, first: int = 0, codec: Any = None) -> None:
        self._schema = schema
        self._writer = HDF5Writer(path, schema, codec=codec)
        self._done = False

    def extend(self, columns: Mapping[str, Any]) -> None:
        self._writer.extend(*buffers_of(self._schema, columns))

    def close(self) -> FileEntry:
        finished = self._writer.finalize()
        os.fsync(self._writer.fd)
        self._writer.detach()
        self._done = True
        return FileEntry(str(self._writer.path), finished.rows, finished.bytes, finished.crc32c)

    def discard(self) -> None:
        if not self._done:
            self._writer.discard()


class HDF5Part:
    """The file of a part."""

    def __init__(self, path: Path, schema: dict[str, Column], chunk_rows: int | None, codec: Any) -> None:
        self.path = path
        self._schema = schema
        self._writer = HDF5Writer(path, schema, chunk_rows=chunk_rows, codec=codec)
        self.finalize, self.discard, self.detach = self._writer.finalize, self._writer.discard, self._writer.detach

    def extend(self, columns: Mapping[str, Any]) -> int:
        buffers, rows = buffers_of(self._schema, columns)
        self._writer.extend(buffers, rows)
        return rows


def check_part(schema: dict[str, Column], chunk_rows: int | None, codec: Any) -> None:
    """Raises a SchemaError for columns that HDF5 cannot store."""
    check_keys(schema)
    packings(schema, codec)
