"""Reads a tar as a shard. Members that are near each other are read together, with what is between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ...._util.atomic import FileStamp
from ...._util.text import names_there
from ....errors import CorruptError, DecodeError, SchemaError
from ....schema import Bytes, Column, Ragged, Schema, Value, check_schema, found_in_file
from ..base import Conversion, GivenSchema, Rows, Shard, check_range, check_rows
from ..columns import Batch, BytesColumn, ColumnData, Ints, ZeroCopyBytesColumn
from ..gather import default_bytes, fill
from .index import TarIndex, build_index, find_index, headers_of, pack_index
from .scan import BLOCK_BYTES, BadHeader, number_in
from .source import PlainBytes, TarBytes, decompress
from .values import (
    HEAD_BYTES,
    KEY,
    Unfit,
    extensions_of,
    is_nested,
    marked_schema,
    nested_column,
    npy_column,
    numbers_column,
)

_SIZE_AT = 124  # in a header
_NEAR_BYTES = 1 << 14  # reading this much for nothing costs less than another system call
_BORROW_MIN_BYTES = 1 << 14  # larger members stay in the buffer: a copy costs more than the memory it frees


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """Bytes of some members in one buffer. `members` are sorted; the i-th has `sizes[i]` bytes from `starts[i]` on."""

    buffer: npt.NDArray[np.uint8]
    members: Ints
    starts: Ints
    sizes: Ints

    def spans(self, members: Ints) -> tuple[Ints, Ints]:
        """Returns where these members begin and end in the buffer; [0, 0) for a member of -1."""
        if not len(self.members):
            return np.zeros(len(members), np.int64), np.zeros(len(members), np.int64)
        at = np.searchsorted(self.members, members)
        there = members >= 0
        starts = np.where(there, self.starts[at], 0)
        return starts, np.where(there, starts + self.sizes[at], 0)

    def items(self, members: Ints) -> list[memoryview]:
        starts, ends = self.spans(members)
        view = self.buffer.data
        return [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def column(self, members: Ints, default: bytes = b"") -> BytesColumn:
        """Returns these members as strings, `default` for a member of -1. Large ones are not copied."""
        starts, ends = self.spans(members)
        sizes = ends - starts
        total = int(sizes.sum())
        complete = not len(members) or int(members.min()) >= 0
        if complete and total >= _BORROW_MIN_BYTES * len(members) and 2 * total >= len(self.buffer) and len(members):
            return ZeroCopyBytesColumn(self.buffer, np.stack([starts, ends], axis=1))
        items: list[memoryview | bytes] = list(self.items(members))
        if not complete and default:
            for i in np.flatnonzero(members < 0):
                items[i] = default
                sizes[i] = len(default)
        offsets = np.zeros(len(members) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        return BytesColumn(np.frombuffer(b"".join(items), np.uint8), offsets)


def fetch(members: Ints, index: TarIndex, fill: Callable[[int, memoryview], None]) -> Fetched:
    """Reads these members (sorted, without -1), each with its header, with few calls of `fill`."""
    begins, lengths = index.offsets[members] - BLOCK_BYTES, index.sizes[members]
    ends = begins + BLOCK_BYTES + lengths
    if not len(members):
        return Fetched(np.zeros(0, np.uint8), members, begins, lengths)
    heads = np.flatnonzero(np.concatenate([[True], begins[1:] - ends[:-1] > _NEAR_BYTES]))
    run_begins, run_ends = begins[heads], ends[np.concatenate([heads[1:], [len(members)]]) - 1]
    places = np.concatenate([[0], np.cumsum(run_ends - run_begins)])
    buffer = np.empty(int(places[-1]), np.uint8)
    view = buffer.data
    for offset, start, end in zip(run_begins.tolist(), places[:-1].tolist(), places[1:].tolist(), strict=True):
        fill(offset, view[start:end])
    shift = np.repeat(places[:-1] - run_begins, np.diff(np.concatenate([heads, [len(members)]])))
    return Fetched(buffer, members, begins + shift + BLOCK_BYTES, lengths)


def _sizes_fit(fetched: Fetched) -> bool:
    """Whether every member's header has the size that the index has."""
    fields = fetched.buffer[(fetched.starts - BLOCK_BYTES + _SIZE_AT)[:, None] + np.arange(12)]
    digits = fields[:, :11].astype(np.int64) - ord("0")
    sizes = digits @ (8 ** np.arange(10, -1, -1))
    odd = np.flatnonzero((sizes != fetched.sizes) | (digits < 0).any(axis=1) | (digits > 7).any(axis=1))
    try:
        return all(number_in(fields[i].tobytes()) == fetched.sizes[i] for i in odd.tolist())
    except BadHeader:
        return False


_SCHEMA_SAMPLES = 100  # the schema is inferred from so many samples
_Parse = Callable[[list[bytes], Column], ColumnData]


class TarShard:
    """Columns are members by extension: `Bytes(key="jpg")` is the content of `<key>.jpg`, `key="jpg;png"` of the first
    of both that exists.

    Without a schema every extension of the first samples is a column: .npy members are Array of their dtype and shape,
    or Ragged if only their first size differs, all others are Bytes; `__key__` is the sample's key. Array columns, also
    Ragged, are read from text, JSON lists or .npy; lists of strings and lists of lists from .npz. A tar that stores the
    schema it was written with (see values.py) has that one.

    A plain tar holds one descriptor. A compressed one (gzip, bzip2, xz) holds none, and every read decompresses it from
    its start, so it is best read in one go.
    """

    rows_per_chunk = 1

    def __init__(self, path: str | os.PathLike[str], *, cache: bool = True, fd: int | None = None) -> None:
        """`fd`: the file, already open; the shard takes it over."""
        self.path = os.fsdecode(path)
        self._closed = self._has_pax_sizes = False
        file = PlainBytes(self.path, fd)
        self._file: PlainBytes | None = file
        try:
            self.compression = file.compression()
            self.seekable = self.compression == "none"
            self._stamp = file.stamp()
            if self.seekable:
                self.index = find_index(file, cache)
                self._headers = headers_of(file, self.index)
                self._marked = marked_schema(file.read_at)
        except BaseException:
            file.close()
            raise
        if not self.seekable:
            file.close()
            self._file = None
            with decompress(self.path, self.compression) as source:
                self.index = build_index(source)
            with decompress(self.path, self.compression) as source:
                self._marked = marked_schema(source.read_at)
        self._schema: dict[str, Column] | None = None
        self._kinds = {name: kind for kind, name in enumerate(self.index.extensions)}
        blocks = self.index.sizes + 2 * BLOCK_BYTES - 1
        self._ends = np.concatenate([[0], np.cumsum(blocks // BLOCK_BYTES * BLOCK_BYTES)])

    def __len__(self) -> int:
        return len(self.index)

    @property
    def schema(self) -> dict[str, Column]:
        if self._schema is None:
            self._schema = found_in_file(self.infer_schema(_SCHEMA_SAMPLES) if self._marked is None else self._marked)
        return dict(self._schema)

    def infer_schema(self, samples: int) -> dict[str, Column]:
        """Infers columns from the first samples: .npy members in their dtype, all others as Bytes."""
        first = self.index.kinds[: self.index.first[min(len(self), samples)]]
        names = {KEY: Bytes()} | {self.index.extensions[kind]: Bytes() for kind in np.unique(first)}
        return {
            name: self._npy_column(name, first) if name.rpartition(".")[2] == "npy" else column
            for name, column in names.items()
        }

    def _npy_column(self, name: str, kinds: Ints) -> Column:
        members = np.flatnonzero(kinds == self._kinds[name])
        samples = int(np.searchsorted(self.index.first, len(kinds)))
        with decompress(self.path, self.compression) if self._file is None else nullcontext(self._file) as source:
            places = zip(self.index.offsets[members].tolist(), self.index.sizes[members].tolist(), strict=True)
            column = npy_column([source.read_at(offset, min(size, HEAD_BYTES)) for offset, size in places])
        # Bytes if a sample lacks the member: an empty list would be a guess.
        return Bytes() if isinstance(column, Ragged) and len(members) < samples else column

    @property
    def places(self) -> bytes:
        """What the index of its folder stores."""
        return b"" if self._file is None else pack_index(self._file, self.index)

    @property
    def marked(self) -> bool:
        """Whether the tar stores the schema it was written with."""
        return self._marked is not None

    @property
    def extensions(self) -> list[str]:
        """The extensions of all members of all samples, in lower case."""
        return list(self.index.extensions)

    def dropped_members(self) -> list[str]:
        """Describes the members that belong to no sample."""
        count, names = self.index.strays, ", ".join(self.index.first_strays)
        if not count:
            return []
        more = ", …" if count > len(self.index.first_strays) else ""
        return [f"{count:,} member{'s' * (count != 1)} of no sample dropped: {names}{more}"]

    def first_incomplete(self) -> int | None:
        """Returns the first sample that lacks a member which others have; None if all have the same extensions."""
        counts = np.diff(self.index.first)
        incomplete = np.flatnonzero(counts != len(self.index.extensions))
        return int(incomplete[0]) if len(incomplete) else None

    def stamp(self) -> FileStamp | None:
        return None if self._file is None or self._closed else FileStamp.of(self._file.fd)

    def bytes_of(self, start: int, stop: int) -> int:
        check_range(self.path, len(self), start, stop)
        return int(self._ends[self.index.first[stop]] - self._ends[self.index.first[start]])

    def read(self, start: int, stop: int, schema: GivenSchema | None = None) -> Batch:
        check_range(self.path, len(self), start, stop)
        return self._read(np.arange(start, stop), schema)

    def read_rows(self, rows: Rows, schema: GivenSchema | None = None) -> Batch:
        return self._read(np.array(check_rows(self.path, len(self), rows), np.int64), schema)

    def _read(self, rows: Ints, schema: GivenSchema | None) -> Batch:
        if self._closed:
            raise ValueError(f"{self.path}: the shard is closed")
        columns = self.schema if schema is None else check_schema(schema)
        members, positions = self.index.members_of(rows)
        found = {name: self._find(name, column, rows, members, positions) for name, column in columns.items()}
        needed = np.unique(np.concatenate([np.zeros(0, np.int64), *found.values()]))
        fetched = self._fetch(needed[needed >= 0])
        return {name: self._column(name, column, rows, found[name], fetched) for name, column in columns.items()}

    def _find(self, name: str, column: Column, rows: Ints, members: Ints, positions: Ints) -> Ints:
        """Returns each sample's member for this column, -1 if it is missing and the column has a default."""
        self._check_column(name, column)
        found = np.full(len(rows), -1, np.int64)
        key = self._key(name, column)
        if key == KEY:
            return found
        for extension in reversed(self._extensions_of(key)):  # the first replaces the others
            if extension in self._kinds:
                these = self.index.kinds[members] == self._kinds[extension]
                found[positions[these]] = members[these]
        missing = np.flatnonzero(found < 0)
        if len(missing) and isinstance(column, Value) and column.default is None:
            raise self._missing(name, key, int(rows[missing[0]]))
        return found

    def _key(self, name: str, column: Column) -> str:
        """Returns a column's extension; without a key its name, or as the writer names it: `x.npy` and so on."""
        if column.key is not None:
            return column.key
        if name == KEY or any(one in self._kinds for one in self._extensions_of(name)):
            return name
        if self._marked is not None and name in self._marked:
            return self._marked[name].key or name
        written = extensions_of({name: column})[name]
        return written if written in self._kinds else name

    def _check_column(self, name: str, column: Column) -> None:
        value = column.value if isinstance(column, Ragged) else column
        listed = isinstance(value, Bytes) and (value.shape or isinstance(column, Ragged))
        key = self._key(name, column)
        if listed and not _is_npz(key):
            text = "a tar's member is one byte string, so expected Bytes()"
            raise SchemaError(f"column {name!r}: {text}, got {column!r}")
        if key == KEY and not isinstance(column, Bytes):
            raise SchemaError(f"column {name!r}: a sample's key is Bytes(), got {column!r}")

    def present(self, schema: Schema, start: int, stop: int) -> tuple[set[str], list[str]]:
        kinds = np.unique(self.index.kinds[self.index.first[start] : self.index.first[stop]])
        there = [KEY, *(self.index.extensions[kind] for kind in kinds.tolist())]
        wanted = {name: self._extensions_of(self._key(name, column)) for name, column in schema.items()}
        found = {name for name, extensions in wanted.items() if set(extensions) & set(there)}
        return found, list(self._marked or there)

    def _extensions_of(self, key: str) -> list[str]:
        """Returns the extensions that a key lists, unless it is itself an extension with a semicolon or space."""
        lower = key.lower()
        return [lower] if lower in self._kinds else [part.strip() for part in lower.split(";")]

    def _missing(self, name: str, key: str, row: int) -> DecodeError:
        first, last = self.index.first[row], self.index.first[row + 1]
        there = [self.index.extensions[kind] for kind in self.index.kinds[first:last]]
        reason = f"sample {self.index.key(row)!r} has no member {key!r} for column {name!r}"
        hint = f"{names_there(key, there, 'It has')}. A default in the schema fills what is missing"
        return DecodeError(self.path, row, int(self.index.offsets[first]) - BLOCK_BYTES, reason, hint)

    def _column(self, name: str, column: Column, rows: Ints, found: Ints, fetched: Fetched) -> ColumnData:
        if self._key(name, column) == KEY:
            return self._keys(rows)
        if isinstance(column, Bytes) and not column.shape:
            return fetched.column(found, b"" if column.default is None else default_bytes(name, column))
        there = found >= 0
        if isinstance(column, Ragged) or is_nested(column):
            return self._lists(name, column, rows, [bytes(item) for item in fetched.items(found)])
        items = [bytes(item) for item in fetched.items(found[there])]
        numbers = self._numbers(name, column, rows[there], items)
        if there.all():
            return numbers
        filled: Any = fill(name, column, len(rows))
        filled[there] = numbers
        return filled  # type: ignore[no-any-return]

    def _lists(self, name: str, column: Column, rows: Ints, items: list[bytes]) -> ColumnData:
        """Parses lists from .npz or .npy, or numbers from JSON. A missing member is an empty list."""
        if is_nested(column) and (_is_npz(self._key(name, column)) or any(item.startswith(b"PK") for item in items)):
            return self._numbers(name, column, rows, items, nested_column)
        return self._numbers(name, column, rows, [item or b"[]" for item in items])

    def _numbers(
        self, name: str, column: Column, rows: Ints, items: list[bytes], parse: _Parse = numbers_column
    ) -> ColumnData:
        try:
            return parse(items, column)
        except Unfit as error:
            row = int(rows[error.place])
            reason = f"sample {self.index.key(row)!r}, column {name!r}: {error.reason}"
            hint = "" if self.marked else "A schema says how to read it; Bytes() takes any member as it is"
            raise DecodeError(self.path, row, None, reason, hint) from None

    def _keys(self, rows: Ints) -> BytesColumn:
        keys = self.index.keys
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            return keys.rows(int(rows[0]), int(rows[-1]) + 1)
        items = [keys._item(row) for row in rows.tolist()]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(item) for item in items], out=offsets[1:])
        return BytesColumn(np.frombuffer(b"".join(items), np.uint8), offsets)

    def _fetch(self, members: Ints) -> Fetched:
        if self._file is not None:
            self._check_unchanged(self._file)
            fetched = fetch(members, self.index, self._filler(self._file))
            if not self._has_pax_sizes and not _sizes_fit(fetched):
                self._check_index(self._file)
            return fetched
        with decompress(self.path, self.compression) as source:
            if (stamp := source.stamp()) != self._stamp:  # touched, or a copy of a URL that was downloaded again
                with decompress(self.path, self.compression) as same:
                    self._check_index(same)
                self._stamp = stamp
            return fetch(members, self.index, self._filler(source))

    def _check_index(self, file: TarBytes) -> None:
        """Scans the tar again and raises an error if it is another one. A size in a header may be wrong, where a pax
        header has the right one."""
        fresh = build_index(file)
        if not (np.array_equal(fresh.offsets, self.index.offsets) and np.array_equal(fresh.sizes, self.index.sizes)):
            raise self._changed()
        self._has_pax_sizes = True

    def _filler(self, source: Any) -> Any:
        def fill_all(offset: int, view: memoryview) -> None:
            if source.fill(offset, view) < len(view):
                raise self._changed()

        return fill_all

    def _check_unchanged(self, file: PlainBytes) -> None:
        """Raises an error if the file has changed: its data have no checksums, so reading would not notice it."""
        stamp = file.stamp()
        if stamp != self._stamp:
            if stamp["size"] < self._stamp["size"] or headers_of(file, self.index) != self._headers:
                raise self._changed()
            self._stamp = stamp  # touched, or appended to

    def _changed(self) -> CorruptError:
        return CorruptError(self.path, None, None, "the file has changed since it was opened", "Open it again")

    def close(self) -> None:
        self._closed = True
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _is_npz(key: str) -> bool:
    return key.lower().endswith("npz")


def open_tar(
    path: str | os.PathLike[str],
    schema: GivenSchema | None = None,
    *,
    verify: str = "all",
    allow_external: bool = False,
    cache: bool = True,
    fd: int | None = None,
) -> TarShard:
    """Opens a tar. `schema`, `verify` and `allow_external` concern other formats."""
    return TarShard(path, cache=cache, fd=fd)


class TarConversion(Conversion):
    may_drop = True

    def schema_of(self, shard: Shard) -> dict[str, Column]:
        assert isinstance(shard, TarShard)
        if shard.marked:
            return shard.schema
        if not len(shard):
            raise SchemaError(f"{shard.path}: there are no samples to take columns from; give a schema")
        if KEY in shard.extensions:
            text = f"members of the extension {KEY!r} cannot be distinguished from the samples' keys"
            raise SchemaError(f"{shard.path}: {text}. Give a schema, which leaves them out")
        # Of all samples, so that a member that only some of them have is not dropped silently.
        return found_in_file(shard.infer_schema(len(shard)))

    def check(self, shard: Shard, path: str, read: dict[str, Column], cast: bool) -> Iterator[str]:
        assert isinstance(shard, TarShard)
        yield from (f"{path}: {what}" for what in shard.dropped_members())
