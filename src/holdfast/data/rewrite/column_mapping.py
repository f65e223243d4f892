"""Chooses the columns of a conversion, and raises an error or adds a note where the target would hold less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..._util.progress import Progress
from ...errors import SchemaError
from ...schema import Column, Ragged, Schema, check_schema, first_difference, found_in_file
from ..formats.base import Format, Lacking, find_lacking
from ..formats.columns import plain_column
from ..formats.registry import FORMATS
from .input_files import InputFile, open_plain


@dataclass(slots=True)
class Columns:
    """The target's schema, and for each source the schema to read it with: keys and defaults differ by source."""

    schema: dict[str, Column]
    reads: list[dict[str, Column]]
    notes: list[str] = field(default_factory=list)


def must_infer(sources: Sequence[InputFile], given: Schema | None) -> bool:
    """Returns whether the schema must be inferred from records."""
    return given is None and any(_has_no_schema(source) for source in sources)


def _has_no_schema(source: InputFile) -> bool:
    return source.schema is None and not source.kind.conversion().stores_schema


def choose_columns(
    sources: Sequence[InputFile], given: Schema | None, staging: Path, target: Format, *, cast: bool, progress: Progress
) -> Columns:
    """Raises a SchemaError that names a column if sources differ in it, or if a part of it would be lost."""
    notes: list[str] = []
    if given is not None:
        columns = check_schema(given) if cast else found_in_file(check_schema(given))  # rounds nothing
        reads = [columns] * len(sources)
        _check_present(sources, columns, staging)
    else:
        reads = _own_schemas(sources, staging, cast, notes, progress)
    fit = target.conversion().fit
    reads = [{name: fit(name, one, cast, notes) for name, one in read.items()} for read in reads]
    schema = plain_schema(reads[0])
    for source, read in zip(sources, reads, strict=True):
        difference = first_difference(schema, plain_schema(read))
        if difference is not None:
            name, first, other = difference
            text = f"{source.path}: column {name!r} is {other}, but {first} in {sources[0].path}"
            raise SchemaError(f"{text}. Give a schema that says how to read both")
    for source, read in zip(sources, reads, strict=True):
        conversion = source.kind.conversion()
        if conversion.may_drop:
            with open_plain(source.path, source.kind, read, staging, cache=True) as shard:
                notes += conversion.check(shard, source.path, read, cast)
    for name in schema:
        if not _is_text(name):
            raise SchemaError(f"column {name!r}: expected a name that can be encoded as UTF-8")
    return Columns(schema, reads, list(dict.fromkeys(notes)))


def _check_present(sources: Sequence[InputFile], columns: dict[str, Column], staging: Path) -> None:
    """Raises a SchemaError for a column that no sample has: filling it, even with a default, would invent data."""
    optional = {name: one for name, one in columns.items() if isinstance(one, Ragged) or one.default is not None}
    lacking = Lacking(optional, 0, [])
    for source in sources:
        if lacking.columns:
            with open_plain(source.path, source.kind, columns, staging, cache=True) as shard:
                lacking = find_lacking(shard, lacking.columns, len(shard), lacking.looked)
    if lacking.columns and lacking.looked:
        raise lacking.error("Leave the column out of the schema, or correct its key")


def plain_schema(schema: Schema) -> dict[str, Column]:
    """Returns the schema without keys and defaults, but with storage options."""
    return {name: plain_column(column) for name, column in schema.items()}


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _own_schemas(
    sources: Sequence[InputFile], staging: Path, cast: bool, notes: list[str], progress: Progress
) -> list[dict[str, Column]]:
    """Returns the sources' own schemas, declared or inferred."""
    unknown: dict[str, list[str]] = {}  # the files by the name of their format
    for source in sources:
        if _has_no_schema(source):
            unknown.setdefault(source.kind.name, []).append(source.path)
    inferred = {name: FORMATS[name].conversion().infer(paths, cast, notes, progress) for name, paths in unknown.items()}
    return [
        source.schema or (inferred[source.kind.name] if _has_no_schema(source) else _stored_schema(source, staging))
        for source in sources
    ]


def _stored_schema(source: InputFile, staging: Path) -> dict[str, Column]:
    with open_plain(source.path, source.kind, None, staging, cache=True) as shard:
        return source.kind.conversion().schema_of(shard)
