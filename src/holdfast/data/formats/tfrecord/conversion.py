"""Tells a conversion how TFRecord stores columns, and infers their schema, which a TFRecord does not store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from ...._util.progress import Progress, ProgressLimit
from ....errors import FormatError, SchemaError
from ....schema import Array, Column, Float32, Ragged
from ..base import OR_CAST, Conversion
from ..columns import plain_column
from ..row_buffers import value_of
from .column_encoding import is_cast, stored_as
from .reader import TFRecordReader
from .schema_inference import Inferred, NotAnExample, infer_schema


class TFRecordConversion(Conversion):
    stores_schema = False

    def infer(self, paths: Sequence[str], cast: bool, notes: list[str], progress: Progress) -> dict[str, Column]:
        """Infers the schema from all records, so that a rare feature is not lost."""
        first = paths[0]
        try:
            found = infer_schema(_records(paths, progress), with_examples=False)
        except NotAnExample as error:
            raise FormatError(first, None, None, str(error), "Only Examples can be read as columns") from None
        if not found.records:
            raise SchemaError(f"{first}: there are no records to take columns from; give a schema")
        _check_inferred(found, first, cast, notes)
        if not found.schema:
            raise SchemaError(f"{first}: its records have no features to take columns from")
        return found.schema

    def fit(self, name: str, column: Column, cast: bool, notes: list[str]) -> Column:
        """Returns the column to read for a TFRecord, which lacks some dtypes, and notes what it stores instead."""
        value = value_of(column)
        if not isinstance(value, Array) or not is_cast(column):
            return column
        if cast and value.dtype == "float64":
            narrowed = _as_float32(column)
            notes.append(f"{name!r} is rounded from float64 to {narrowed!r}")
            return narrowed
        plain = plain_column(column)
        notes.append(f"{name!r} is {value.dtype}, stored as {stored_as(column)}; reading it as {plain!r} gives it back")
        return column


def _as_float32(column: Column) -> Column:
    options: dict[str, Any] = {"key": column.key, "codec": column.codec, "chunk_rows": column.chunk_rows}
    if isinstance(column, Ragged):
        return Ragged(_as_float32(column.inner), default=column.default, **options)
    return Float32(*column.shape, default=column.default, **options)


def _records(paths: Sequence[str], progress: Progress) -> Iterator[bytes]:
    for path in paths:
        limit = ProgressLimit(progress, os.path.getsize(path))
        with TFRecordReader(path) as reader:
            for record in reader:
                yield record
                limit.advance(len(record))
        limit.finish()


def _check_inferred(found: Inferred, first: str, cast: bool, notes: list[str]) -> None:
    for name, note in found.notes.items():
        column = found.schema.get(name)
        if column is None and note != "always empty":
            raise SchemaError(f"{first}: feature {name!r}: {note}; give a schema with what is to be kept")
        if column is None:
            notes.append(f"{name!r} is always empty, and no column")
        elif not isinstance(column, Ragged) and not cast:
            filled = f"filling it up with {column.default!r} would change the data"
            text = f"column {name!r}: {note}; {filled}"
            raise SchemaError(f"{first}: {text}. Give a schema with a default, {OR_CAST}")
        else:
            filled = "an empty list" if isinstance(column, Ragged) else repr(column.default)
            notes.append(f"{name!r} is {note}: there it is {filled}")
