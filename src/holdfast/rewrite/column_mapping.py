"""What of an HDF5 file its columns do not hold: for who must not lose it without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py

from ..errors import FormatError, SchemaError
from ..formats.columns import dtype_of
from ..formats.hdf5.ragged_columns import PackedColumn
from ..formats.hdf5.schema_layout import SCHEMA_ATTRIBUTE, key_of
from ..formats.hdf5.shard import HDF5Shard
from ..formats.tfrecord import TFRecordReader
from ..formats.tfrecord.column_encoding import is_cast, stored_as, value_of
from ..formats.tfrecord.schema_inference import Inferred, NotAnExample, infer_schema
from ..schema import Array, Column, Float32, Ragged, Schema, check_schema, first_difference, found_in_file
from .input_files import InputFile, Progress, Told, open_plain
from .targets import Kind


def rounded(shard: HDF5Shard, schema: Mapping[str, Column]) -> Iterator[tuple[str, str]]:
    """Columns whose numbers have more digits than the column does, and the type they have."""
    for name, column in schema.items():
        key = key_of(name, column)
        if key not in shard._file():
            continue  # it has a default
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


def left_behind(shard: HDF5Shard) -> list[str]:
    """Attributes and single values, which no sample has."""
    attributes: list[str] = []
    values: list[str] = []

    def see(name: str, thing: Any) -> None:
        attributes.extend(f"{name}@{one}" for one in thing.attrs if one != SCHEMA_ATTRIBUTE)
        if isinstance(thing, h5py.Dataset) and not thing.shape:
            values.append(name)

    file = shard._file()
    see("", file)
    file.visititems(see)
    found = [("attribute", attributes), ("single value", values)]
    return [_counted(what, names) for what, names in found if names]


def _counted(what: str, names: list[str]) -> str:
    some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names):,} {what}{'s' * (len(names) != 1)} left behind: {some}"


# Which columns there are, and in which a target would hold less than its sources do: those are refused.

_OR_CAST = "or cast, to have that done"


@dataclass(slots=True)
class Columns:
    """`schema` is the target's; `reads` are what to read each source with: keys and defaults are a source's own."""

    schema: dict[str, Column]
    reads: list[dict[str, Column]]
    notes: list[str] = field(default_factory=list)


def must_look(sources: Sequence[InputFile], given: Schema | None) -> bool:
    """Whether only the records themselves show which columns there are."""
    return given is None and any(_is_silent(source) for source in sources)


def _is_silent(source: InputFile) -> bool:
    return source.kind == "tfrecord" and source.schema is None


def decide(
    sources: Sequence[InputFile], given: Schema | None, staging: Path, target: Kind, *, cast: bool, progress: Progress
) -> Columns:
    """SchemaError: sources differ, or something of them would be lost, and which column that is."""
    notes: list[str] = []
    if given is not None:
        columns = check_schema(given) if cast else found_in_file(check_schema(given))  # nothing is rounded
        reads = [columns] * len(sources)
    else:
        reads = _own(sources, staging, cast, notes, progress)
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
            notes += _left_in_tar(source, staging)
    for name in schema:
        if not _is_text(name):
            raise SchemaError(f"column {name!r}: expected a name of characters that UTF-8 has")
    return Columns(schema, reads, list(dict.fromkeys(notes)))


def _for_tfrecord(name: str, column: Column, cast: bool, notes: list[str]) -> Column:
    """The column as it is to be read for a TFRecord, which has not all dtypes. What it stores is said in a note."""
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
        return Ragged(_as_float32(column.inner), **options)
    return Float32(*column.shape, default=column.default, **options)


def plain_schema(schema: Schema) -> dict[str, Column]:
    """Without keys and defaults; how it is to be written stays."""
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


def _own(
    sources: Sequence[InputFile], staging: Path, cast: bool, notes: list[str], progress: Progress
) -> list[dict[str, Column]]:
    """What the sources themselves say, or show."""
    unknown = [source for source in sources if _is_silent(source)]
    shown = _shown(unknown, cast, notes, progress) if unknown else {}
    return [source.schema or (shown if source in unknown else _said(source, staging)) for source in sources]


def _said(source: InputFile, staging: Path) -> dict[str, Column]:
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
            text = f"members of the extension {KEY!r} cannot be told from the samples' keys"
            raise SchemaError(f"{source.path}: {text}. Give a schema, which leaves them out")
        # Of all samples: a member that only some have must not be left out, it is missed then.
        return found_in_file(shard.look(len(shard)))


# ---- TFRecord


def _shown(sources: Sequence[InputFile], cast: bool, notes: list[str], progress: Progress) -> dict[str, Column]:
    """Of all records: what only a few have would be lost else."""
    first = sources[0].path
    try:
        found = infer_schema(_records(sources, progress), with_examples=False)
    except NotAnExample as error:
        raise FormatError(first, None, None, str(error), "Only Examples can be read as columns") from None
    if not found.records:
        raise SchemaError(f"{first}: there are no records to take columns from; give a schema")
    _check_shown(found, first, cast, notes)
    if not found.schema:
        raise SchemaError(f"{first}: its records have no features to take columns from")
    return found.schema


def _records(sources: Sequence[InputFile], progress: Progress) -> Iterator[bytes]:
    for source in sources:
        told = Told(progress, source.size_bytes)
        with TFRecordReader(source.path) as reader:
            for record in reader:
                yield record
                told.tell(len(record))
        told.rest()


def _check_shown(found: Inferred, first: str, cast: bool, notes: list[str]) -> None:
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
    from ..formats.hdf5 import HDF5Shard

    with open_plain(source.path, "hdf5", read, staging, cache=False) as shard:
        assert isinstance(shard, HDF5Shard)
        for name, kind in rounded(shard, read):
            if not cast:
                text = f"column {name!r} is {kind}, which {read[name]!r} holds only rounded"
                raise SchemaError(f"{source.path}: {text}. Leave it out with a schema, {_OR_CAST}")
            notes.append(f"{name!r} is rounded from {kind} to {read[name]!r}")
        notes += [f"{source.path}: {what}" for what in left_behind(shard)]


# ---- tar


def _left_in_tar(source: InputFile, staging: Path) -> list[str]:
    from ..formats.tar import TarShard

    with open_plain(source.path, "tar", None, staging, cache=True) as shard:
        assert isinstance(shard, TarShard)
        return [f"{source.path}: {what}" for what in shard.left_behind()]
