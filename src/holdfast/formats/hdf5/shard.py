"""One HDF5 file as a shard."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import h5py
import numpy as np
import numpy.typing as npt

from ..._util.finalize import close_finalized
from ..._util.text import names_there
from ...errors import CorruptError, DecodeError, FormatError, HoldfastError
from ...schema import Column, Ragged, Value, check_schema, found_in_file
from ..base import GivenSchema, Rows, check_range, check_rows
from ..columns import Batch, ColumnData
from ..gather import fill
from .filters import PACKAGE, lacking_filter
from .global_heaps import check_heaps
from .handles import HANDLES
from .object_walk import raw_of, reason_of, text_of
from .ragged_columns import PackedColumn
from .schema_layout import (
    Damaged,
    Unfit,
    as_column,
    check_fit,
    column_of,
    in_native_order,
    marked_column,
    marked_schema,
)
from .schema_layout import key_of as _key

_NEAR_BYTES = 1 << 16  # of rows without chunks, those this near to each other are one read
_PLAUSIBLE_BYTES = 1 << 30  # a dataset up to this size is believed, and so is one that packs its values 64 to 1
_PLAUSIBLE_RATIO = 64
_LEAST_WRITTEN = 1024  # of a larger one, at least one value in this many must have been written
_KIND_OF_VLEN = 3  # the byte of an encoded type that tells a list of variable length from a string
_LEAVE_OUT = "Leave it out: name the columns you want in a schema"


class HDF5Shard:
    """Datasets of equal length: a row of each is a sample. A column's key, or name, is its dataset's path.

    Without a schema all datasets with rows are the columns. Numbers are Array of the dtype that they have in the file,
    in the machine's byte order; strings are Bytes, variable-length numbers Ragged. Bytes() reads a row of a uint8
    dataset as it is, and Array another dtype than the file's where every value fits. A file that says which schema it
    was written with (layout.py) has that one.
    """

    seekable = True

    def __init__(self, path: str | os.PathLike[str], schema: GivenSchema | None = None) -> None:
        self.path = os.fsdecode(path)
        self._given = None if schema is None else check_schema(schema)
        self._schema: dict[str, Column] | None = None
        self._marked = False  # the schema is the file's own word: what does not fit it is damaged
        self._closed = True  # for __del__ when what follows raises
        self._identity = HANDLES.take(self.path)
        self._closed = False
        try:
            self._names = self._find()
            self._rows, self.rows_per_chunk, self._row_bytes = self._measure()
        except BaseException:
            self.close()
            raise

    # ---- what there is

    def _file(self) -> h5py.File:
        if self._closed:
            raise ValueError(f"{self.path}: it was closed")
        return HANDLES.file(self._identity)

    @contextmanager
    def _opening(self, what: str) -> Iterator[None]:
        """Makes a CorruptError of what h5py raises inside: for damaged metadata that may be any exception."""
        self._file()  # that it was closed is no damage
        try:
            yield
        except (HoldfastError, MemoryError):
            raise
        except Exception as error:
            raise CorruptError(self.path, None, None, f"{what} cannot be read: {reason_of(error)}") from error

    def _has(self, key: str) -> bool:
        with self._opening(f"whether there is a dataset {key!r}"):
            return raw_of(key) in self._file()

    def _find(self) -> list[str]:
        """The datasets that are columns."""
        names: list[str] = []
        if self._given is not None:
            keys = [(_key(name, column), column) for name, column in self._given.items()]
            names = [key for key, column in keys if _is_needed(column) or self._has(key)]
        else:
            with self._opening("its attribute 'holdfast'"):
                marked = marked_schema(self._file())
            self._marked = marked is not None
            self._schema = None if marked is None else found_in_file(marked)
            names = [_key(name, column) for name, column in (self._schema or {}).items()]
            if not names:
                self._walk(names)
        if not names:
            raise FormatError(self.path, None, None, "it has no dataset with rows")
        return names

    def _walk(self, names: list[str]) -> None:
        seen: list[bytes] = []
        with self._opening("the list of its objects"):
            # Names first, objects by their names then: an error while the library visits them would name none. In the
            # order they are found in, because HDF5 1.14 crashes when it fails to sort the links of a damaged group.
            h5py.h5o.visit(self._file().id, seen.append, order=h5py.h5.ITER_NATIVE)
        packed: list[str] = []
        for name in map(text_of, sorted(seen, key=lambda one: one.split(b"/"))):
            with self._opening(f"object {name!r}"):
                thing = self._file()[raw_of(name)]
                if marked_column(thing) is not None:
                    packed.append(f"{name}/")
                    names.append(name)
                elif isinstance(thing, h5py.Dataset) and thing.shape:
                    names.append(name)
        names[:] = [name for name in names if not name.startswith(tuple(packed))]

    def _dataset(self, key: str) -> h5py.Dataset | PackedColumn:
        with self._opening(f"dataset {key!r}"):
            try:
                found = self._file()[raw_of(key)]
            except KeyError:
                if self._has(key):
                    raise
                missing = CorruptError if self._marked else DecodeError
                raise missing(self.path, None, None, f"dataset {key!r} is missing", self._those_there(key)) from None
            if marked_column(found) is not None:
                return PackedColumn(found)
            if not isinstance(found, h5py.Dataset) or not found.shape:
                what = "a single value" if isinstance(found, h5py.Dataset) else "a group"
                raise FormatError(self.path, None, None, f"expected a dataset with rows as {key!r}, this is {what}")
            if found.is_virtual:
                sources = sorted({source.file_name for source in found.virtual_sources()})
                reason = "is virtual: a source that cannot be opened would read as fill values, silently"
                hint = f"Read its sources: {', '.join(sources[:4])}"
                raise FormatError(self.path, None, None, f"dataset {key!r} {reason}", hint)
            return found

    def _check_type(self, key: str, dataset: h5py.Dataset) -> None:
        """Not all types of HDF5 are numpy's: times, integers of three bytes, floats of odd widths are not."""
        try:
            _ = dataset.dtype
        except Exception as error:
            reason = f"dataset {key!r} has a type that numpy has not: {reason_of(error)}"
            raise FormatError(self.path, None, None, reason, _LEAVE_OUT) from error
        kind = dataset.id.get_type()
        while isinstance(kind, h5py.h5t.TypeVlenID):
            # Strings are of another class in h5py, so this is a list. HDF5 1.14 takes the bits that say so as they are,
            # and crashes when it converts what is neither.
            if kind.encode()[_KIND_OF_VLEN] & 0x0F:
                raise CorruptError(self.path, None, None, f"the type of dataset {key!r} is damaged")
            kind = kind.get_super()

    def _check_size(self, key: str, dataset: h5py.Dataset) -> None:
        """A damaged shape, or a dataset that was made and never written, must not be taken for that many values."""
        said = math.prod(dataset.shape) * dataset.dtype.itemsize
        if said <= max(_PLAUSIBLE_BYTES, _PLAUSIBLE_RATIO * os.path.getsize(self.path)):
            return
        if dataset.chunks:
            held = dataset.id.get_num_chunks() * math.prod(dataset.chunks) * dataset.dtype.itemsize
        else:
            held = dataset.id.get_storage_size()
        if said > _LEAST_WRITTEN * held:
            shape = f"the shape {dataset.shape}, which is {said:,} bytes, of which at most {held:,} were ever written"
            reason = f"dataset {key!r} has {shape}: it is damaged, or was made to be filled later"
            raise FormatError(self.path, None, None, reason, _LEAVE_OUT)

    def _those_there(self, key: str) -> str:
        names: list[str] = []
        self._walk(names)
        return names_there(key, names)

    def _measure(self) -> tuple[int, int, int]:
        """Rows, rows in a chunk, and bytes a row will take, about."""
        first, rows, chunk, row_bytes = self._names[0], -1, 1, 0
        for name in self._names:
            dataset = self._dataset(name)
            with self._opening(f"dataset {name!r}"):
                self._check_filters(name)
                if isinstance(dataset, h5py.Dataset):
                    self._check_type(name, dataset)
                    self._check_size(name, dataset)
                    if dataset.dtype.hasobject:
                        check_heaps(dataset)
            if rows < 0:
                rows = len(dataset)
            if len(dataset) != rows:
                raise FormatError(
                    self.path,
                    None,
                    None,
                    f"datasets differ in length: {first!r} has {rows:,} rows, {name!r} has {len(dataset):,}",
                    "Name those that belong together in a schema",
                )
            if isinstance(dataset, PackedColumn):
                chunk = max(chunk, dataset.rows_per_chunk)
                continue
            with self._opening(f"dataset {name!r}"):
                chunk = max(chunk, dataset.chunks[0] if dataset.chunks else 1)
                row_bytes += _row_bytes(dataset)
        # Variable-length values are elsewhere in the file: what it has more than its rows account for is theirs.
        return rows, min(chunk, max(rows, 1)), max(row_bytes, os.path.getsize(self.path) // max(rows, 1))

    def _check_filters(self, name: str) -> None:
        """A filter that is not installed is not damage: no row of the file may be taken for lost."""
        thing = self._file()[raw_of(name)]
        inside: list[h5py.Dataset] = [thing]
        if isinstance(thing, h5py.Group):
            inside.clear()
            thing.visititems(lambda _, one: inside.append(one) if isinstance(one, h5py.Dataset) else None)
        for dataset in inside:
            lacking = lacking_filter(dataset)
            if lacking is not None:
                raise DecodeError(self.path, None, None, f"dataset {name!r} {lacking}", f"pip install {PACKAGE}")

    @property
    def schema(self) -> dict[str, Column]:
        if self._given is not None:
            return dict(self._given)
        if self._schema is None:
            self._schema = found_in_file({name: self._column(name) for name in self._names})
        return dict(self._schema)

    def _column(self, name: str) -> Column:
        dataset = self._dataset(name)
        if isinstance(dataset, PackedColumn):
            return dataset.column
        try:
            return column_of(dataset.dtype, dataset.shape[1:])
        except Unfit as error:
            raise FormatError(self.path, None, None, f"dataset {name!r} {error}", _LEAVE_OUT) from None

    def __len__(self) -> int:
        return self._rows

    def bytes_of(self, start: int, stop: int) -> int:
        check_range(self.path, len(self), start, stop)
        return (stop - start) * self._row_bytes

    # ---- reading

    def read(self, start: int, stop: int, schema: GivenSchema | None = None) -> Batch:
        check_range(self.path, len(self), start, stop)
        columns = self.schema if schema is None else check_schema(schema)
        return {name: self._read(name, column, range(start, stop)) for name, column in columns.items()}

    def read_rows(self, rows: Rows, schema: GivenSchema | None = None) -> Batch:
        numbers = check_rows(self.path, len(self), rows)
        columns = self.schema if schema is None else check_schema(schema)
        return {name: self._read(name, column, numbers) for name, column in columns.items()}

    def _read(self, name: str, column: Column, rows: Sequence[int]) -> ColumnData:
        key = _key(name, column)
        if isinstance(column, Value) and not _is_needed(column) and not self._has(key):
            return fill(name, column, len(rows))
        dataset = self._dataset(key)
        if len(dataset) != len(self):
            reason = f"dataset {key!r} has {len(dataset):,} rows, the others have {len(self):,}"
            raise FormatError(self.path, None, None, reason, "Name those that belong together in a schema")
        try:
            if isinstance(dataset, PackedColumn):
                return dataset.read(rows, column)
            check_fit(column, dataset.dtype, dataset.shape[1:])
            raw = dataset[rows.start : rows.stop] if isinstance(rows, range) else _pick(dataset, rows)
            return as_column(in_native_order(raw, dataset.dtype), column)
        except Unfit as error:
            damaged = isinstance(error, Damaged) or (self._marked and self.schema.get(name) == column)
            kind = CorruptError if damaged else DecodeError
            raise kind(self.path, rows[error.row] if rows else None, None, f"dataset {key!r} {error}") from None
        except MemoryError:
            raise
        except Exception as error:
            which = f"rows {min(rows):,} to {max(rows):,}" if rows else "no rows"
            reason = f"dataset {key!r}: {which} cannot be read: {reason_of(error)}"
            raise CorruptError(self.path, None, None, reason) from error

    # ---- ending

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            HANDLES.give(self._identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            try:
                warnings.warn(f"{self.path}: it was read and never closed", ResourceWarning, 2)
            finally:
                close_finalized(self.close)


def _is_needed(column: Column) -> bool:
    """Whether a file without its dataset cannot be read."""
    return isinstance(column, Ragged) or column.default is None


def _row_bytes(dataset: h5py.Dataset) -> int:
    return int(math.prod(dataset.shape[1:]) * dataset.dtype.itemsize)


def _pick(dataset: h5py.Dataset, rows: Sequence[int]) -> npt.NDArray[Any]:
    """Rows in any order, each chunk read once: h5py's own way takes a step for every row, and sorted rows only."""
    if not rows:
        return np.asarray(dataset[0:0])
    wanted, places = np.unique(np.asarray(rows, np.int64), return_inverse=True)
    size = dataset.chunks[0] if dataset.chunks else max(1, _NEAR_BYTES // max(_row_bytes(dataset), 1))
    chunk = wanted // size
    breaks = np.flatnonzero((np.diff(wanted) > 1) & (np.diff(chunk) > 0)) + 1
    parts = []
    for group in np.split(wanted, breaks):
        first = int(group[0])
        parts.append(np.asarray(dataset[first : int(group[-1]) + 1])[group - first])
    joined: npt.NDArray[Any] = np.concatenate(parts)[places]
    return joined
