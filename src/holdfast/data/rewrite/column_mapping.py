"""Chooses the columns of a conversion, and raises an error or adds a note where the target would hold less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py

from ..._util.progress import Progress, ProgressLimit
from ...errors import FormatError, SchemaError
from ...schema import Array, Column, Float32, Ragged, Schema, check_schema, first_difference, found_in_file
from ..formats.base import Lacking, find_lacking
from ..formats.columns import dtype_of
from ..formats.hdf5.ragged_columns import PackedColumn
from ..formats.hdf5.schema_layout import SCHEMA_ATTRIBUTE, key_of
from ..formats.hdf5.shard import HDF5Shard
from ..formats.tfrecord import TFRecordReader
from ..formats.tfrecord.column_encoding import is_cast, stored_as, value_of
from ..formats.tfrecord.schema_inference import Inferred, NotAnExample, infer_schema
from .input_files import InputFile, open_plain
from .targets import Kind


def rounded(shard: HDF5Shard, schema: Mapping[str, Column]) -> Iterator[tuple[str, str]]:
    """Yields columns whose floats in the file are wider than in the schema, and their dtype in the file."""
    for name, column in schema.items():
        key = key_of(name, column)
        if key not in shard._file():
            continue  # the column has a default
        dataset = shard._dataset(key)
        value = column.value if isinstance(column, Ragged) else column
        if isinstance(dataset, PackedColumn):
            have = dataset.column
            dtype = dtype_of(have.value if isinstance(have, Ragged) else have)
        else:
            inner = h5py.check_vlen_dtype(dataset.dtype)
            dtype = inner if inner is not None and hasattr(inner, "kind") else dataset.dtype
        if dtype.kind == "f" and dtype.itemsize > dtype_of(value).itemsize:
            yield name, str(dtype)


def dropped_by_conversion(shard: HDF5Shard) -> list[str]:
    """Describes what a conversion drops: attributes and scalar datasets."""
    attributes: list[str] = []
    values: list[str] = []

    def visit(name: str, node: Any) -> None:
        attributes.extend(f"{name}@{one}" for one in node.attrs if one != SCHEMA_ATTRIBUTE)
        if isinstance(node, h5py.Dataset) and not node.shape:
            values.append(name)

    file = shard._file()
    visit("", file)
    file.visititems(visit)
    found = [("attribute", attributes), ("scalar dataset", values)]
    return [_counted(what, names) for what, names in found if names]


def _counted(what: str, names: list[str]) -> str:
    some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names):,} {what}{'s' * (len(names) != 1)} dropped: {some}"


_OR_CAST = "or cast, to have that done"


@dataclass(slots=True)
class Columns:
    """The target's schema, and for each source the schema to read it with: keys and defaults differ by source."""

    schema: dict[str, Column]
    reads: list[dict[str, Column]]
    notes: list[str] = field(default_factory=list)


def must_infer(sources: Sequence[InputFile], given: Schema | None) -> bool:
    """Tells whether the schema must be inferred from records."""
    return given is None and any(_has_no_schema(source) for source in sources)


def _has_no_schema(source: InputFile) -> bool:
    return source.kind == "tfrecord" and source.schema is None


def choose_columns(
    sources: Sequence[InputFile], given: Schema | None, staging: Path, target: Kind, *, cast: bool, progress: Progress
) -> Columns:
    """Raises a SchemaError that names a column if sources differ in it, or if a part of it would be lost."""
    notes: list[str] = []
    if given is not None:
        columns = check_schema(given) if cast else found_in_file(check_schema(given))  # rounds nothing
        reads = [columns] * len(sources)
        _check_present(sources, columns, staging)
    else:
        reads = _own_schemas(sources, staging, cast, notes, progress)
    if target == "tfrecord":
        reads = [{name: _for_tfrecord(name, one, cast, notes) for name, one in read.items()} for read in reads]
    schema = plain_schema(reads[0])
    for source, read in zip(sources, reads, strict=True):
        difference = first_difference(schema, plain_schema(read))
        if difference is not None:
            name, first, other = difference
            text = f"{source.path}: column {name!r} is {other}, but {first} in {sources[0].path}"
            raise SchemaError(f"{text}. Give a schema that says how to read both")
    for source, read in zip(sources, reads, strict=True):
        if source.kind == "hdf5":
            _check_hdf5(source, read, staging, cast, notes)
        elif source.kind == "tar":
            notes += _dropped_from_tar(source, staging)
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


def _for_tfrecord(name: str, column: Column, cast: bool, notes: list[str]) -> Column:
    """Returns the column to read for a TFRecord target, which lacks some dtypes, and notes what it stores instead."""
    value = value_of(column)
    if not isinstance(value, Array) or not is_cast(column):
        return column
    if cast and value.dtype == "float64":
        narrowed = _as_float32(column)
        notes.append(f"{name!r} is rounded from float64 to {narrowed!r}")
        return narrowed
    plain = _plain(column)
    notes.append(f"{name!r} is {value.dtype}, stored as {stored_as(column)}; reading it as {plain!r} gives it back")
    return column


def _as_float32(column: Column) -> Column:
    options: dict[str, Any] = {"key": column.key, "codec": column.codec, "chunk_rows": column.chunk_rows}
    if isinstance(column, Ragged):
        return Ragged(_as_float32(column.inner), default=column.default, **options)
    return Float32(*column.shape, default=column.default, **options)


def plain_schema(schema: Schema) -> dict[str, Column]:
    """Returns the schema without keys and defaults, but with storage options."""
    return {name: _plain(column) for name, column in schema.items()}


def _plain(column: Column) -> Column:
    stored: dict[str, Any] = {"codec": column.codec, "chunk_rows": column.chunk_rows}
    return Ragged(column.inner, **stored) if isinstance(column, Ragged) else column.alike(**stored)


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
    unknown = [source for source in sources if _has_no_schema(source)]
    inferred = _inferred_schema(unknown, cast, notes, progress) if unknown else {}
    return [
        source.schema or (inferred if source in unknown else _declared_schema(source, staging)) for source in sources
    ]


def _declared_schema(source: InputFile, staging: Path) -> dict[str, Column]:
    with open_plain(source.path, source.kind, None, staging, cache=True) as shard:
        schema = shard.schema
        if source.kind != "tar":
            return schema
        from ..formats.tar import TarShard
        from ..formats.tar.values import KEY

        assert isinstance(shard, TarShard)
        if shard.marked:
            return schema
        if not len(shard):
            raise SchemaError(f"{source.path}: there are no samples to take columns from; give a schema")
        if KEY in shard.extensions:
            text = f"members of the extension {KEY!r} cannot be distinguished from the samples' keys"
            raise SchemaError(f"{source.path}: {text}. Give a schema, which leaves them out")
        # Of all samples, so that a member that only some of them have is not dropped silently.
        return found_in_file(shard.infer_schema(len(shard)))


# ---- TFRecord


def _inferred_schema(
    sources: Sequence[InputFile], cast: bool, notes: list[str], progress: Progress
) -> dict[str, Column]:
    """Infers the schema from all records, so that a rare feature is not lost."""
    first = sources[0].path
    try:
        found = infer_schema(_records(sources, progress), with_examples=False)
    except NotAnExample as error:
        raise FormatError(first, None, None, str(error), "Only Examples can be read as columns") from None
    if not found.records:
        raise SchemaError(f"{first}: there are no records to take columns from; give a schema")
    _check_inferred(found, first, cast, notes)
    if not found.schema:
        raise SchemaError(f"{first}: its records have no features to take columns from")
    return found.schema


def _records(sources: Sequence[InputFile], progress: Progress) -> Iterator[bytes]:
    for source in sources:
        limit = ProgressLimit(progress, source.size_bytes)
        with TFRecordReader(source.path) as reader:
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
            raise SchemaError(f"{first}: {text}. Give a schema with a default, {_OR_CAST}")
        else:
            filled = "an empty list" if isinstance(column, Ragged) else repr(column.default)
            notes.append(f"{name!r} is {note}: there it is {filled}")


# ---- HDF5


def _check_hdf5(source: InputFile, read: dict[str, Column], staging: Path, cast: bool, notes: list[str]) -> None:
    from ..formats.hdf5.shard import HDF5Shard

    with open_plain(source.path, "hdf5", read, staging, cache=False) as shard:
        assert isinstance(shard, HDF5Shard)
        for name, kind in rounded(shard, read):
            if not cast:
                text = f"column {name!r} is {kind}, which {read[name]!r} holds only rounded"
                raise SchemaError(f"{source.path}: {text}. Leave it out with a schema, {_OR_CAST}")
            notes.append(f"{name!r} is rounded from {kind} to {read[name]!r}")
        notes += [f"{source.path}: {what}" for what in dropped_by_conversion(shard)]


# ---- tar


def _dropped_from_tar(source: InputFile, staging: Path) -> list[str]:
    from ..formats.tar import TarShard

    with open_plain(source.path, "tar", None, staging, cache=True) as shard:
        assert isinstance(shard, TarShard)
        return [f"{source.path}: {what}" for what in shard.dropped_members()]
