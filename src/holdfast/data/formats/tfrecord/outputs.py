"""Writes TFRecord files for conversions and for dataset directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....schema import Column, Ragged
from ..base import FinishedFile
from ..row_buffers import buffers_of
from .writer import TFRecordWriter


def _is_nested(schema: dict[str, Column]) -> bool:
    return any(isinstance(column, Ragged) and column.depth > 1 for column in schema.values())


def converted_tfrecord(
    path: Path, schema: dict[str, Column], *, first: int = 0, compression: Any = "auto"
) -> TFRecordWriter:
    return TFRecordWriter(path, schema, compression=compression, sequence=_is_nested(schema))


class TFRecordPart:
    """The file of a part."""

    def __init__(self, path: Path, schema: dict[str, Column], chunk_rows: int | None, codec: Any) -> None:
        self._schema = schema
        self._writer = TFRecordWriter(path, schema, sequence=_is_nested(schema))
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


def check_part(schema: dict[str, Column], chunk_rows: int | None, codec: Any) -> None:
    """Raises a ValueError for options that only HDF5 has."""
    if codec is not None or chunk_rows is not None:
        raise ValueError("chunk_rows and codec are for HDF5: a packed TFRecord could be read from its start only")
