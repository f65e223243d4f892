"""Reads one HDF5 file as a shard."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self

import h5py
import numpy as np
import numpy.typing as npt

from ...._util.atomic import FileStamp
from ...._util.finalize import close_finalized
from ...._util.text import names_there
from ....errors import CorruptError, DecodeError, FormatError, HoldfastError
from ....schema import Column, Schema, check_schema, found_in_file
from ..base import GivenSchema, Rows, check_range, check_rows
from ..columns import Batch, ColumnData
from ..gather import fill
from .filters import PACKAGE, lacking_filter
from .global_heaps import check_heaps
from .handles import HANDLES
from .object_walk import raw_of, reason_of, text_of
from .other_files import external_problems, values_file
from .ragged_columns import BeginRun, PackedColumn
from .raw_chunks import RawDataset, UnreadableChunkError, read_run
from .schema_layout import (
    IncompatibleTypeError,
    InconsistentFileError,
    as_column,
    check_fit,
    column_of,
    in_native_order,
    key_of,
    stored_column,
    stored_schema,
)

_JOIN_BYTES = 1 << 16  # rows without chunks that are this close to each other are one read
_PLAUSIBLE_BYTES = 1 << 30  # a dataset up to this size is plausible, and so is a compression of 64 to 1
_PLAUSIBLE_RATIO = 64
_MAX_UNWRITTEN_RATIO = 1024  # in a larger one, at least one value in this many must have been written
_VLEN_KIND_BYTE = 3  # in an encoded type; tells a variable-length list from a string
_EXCLUDE_HINT = "Exclude it: name the columns you need in a schema"


class HDF5Shard:
    """Datasets of equal length: a row of each is a sample. A column's key, or name, is its dataset's path.

    Without a schema all datasets with rows are the columns. Numbers are Array of the file's dtype, in native byte
    order; strings are Bytes, variable-length numbers Ragged. Bytes() reads a row of a uint8 dataset as it is, and Array
    converts to another dtype where every value fits. A file that records its schema (schema_layout.py) is read with
    that.
    """

    seekable = True

    def __init__(
        self, path: str | os.PathLike[str], schema: GivenSchema | None = None, *, allow_external: bool = False
    ) -> None:
        self.path, self._allow_external = os.fsdecode(path), allow_external
        self._given = None if schema is None else check_schema(schema)
        self._schema: dict[str, Column] | None = None
        self._schema_stored = False  # the schema is the file's own: what does not fit it is corrupt
        self._found: tuple[h5py.File | None, dict[str, h5py.Dataset | PackedColumn]] = None, {}  # of that handle
        self._raw: dict[str, RawDataset | None] = {}
        self._dtypes: dict[tuple[str, Column], Any] = {}  # of the datasets of columns that fit; None: packed
        self._closed = True  # for __del__ if the following raises
        self._identity = HANDLES.take(self.path)
        self._closed = False
        try:
            self._names = self._find_columns()
            self._rows, self.rows_per_chunk, self._row_bytes = self._measure()
        except BaseException:
            self.close()
            raise

    def _file(self) -> h5py.File:
        if self._closed:
            raise ValueError(f"{self.path}: it is closed")
        return HANDLES.file(self._identity)

    @contextmanager
    def _corrupt_on_error(self, what: str) -> Iterator[None]:
        """Turns what h5py raises inside into a CorruptError: for corrupt metadata that may be any exception."""
        self._file()  # raises if it is closed
        try:
            yield
        except (HoldfastError, MemoryError):
            raise
        except Exception as error:
            raise CorruptError(self.path, None, None, f"{what} cannot be read: {reason_of(error)}") from error

    def _has(self, key: str) -> bool:
        with self._corrupt_on_error(f"whether there is a dataset {key!r}"):
            return raw_of(key) in self._file()

    def _find_columns(self) -> list[str]:
        """Returns the paths of the datasets that are columns."""
        names: list[str] = []
        if self._given is not None:
            keys = [(key_of(name, column), column) for name, column in self._given.items()]
            names = [key for key, column in keys if _is_needed(column) or self._has(key)]
        else:
            with self._corrupt_on_error("its attribute 'holdfast'"):
                stored = stored_schema(self._file())
            self._schema_stored = stored is not None
            self._schema = None if stored is None else found_in_file(stored)
            names = [key_of(name, column) for name, column in (self._schema or {}).items()]
            if not names:
                self._list_datasets(names)
        if not names:
            raise FormatError(self.path, None, None, "it has no dataset with rows")
        return names

    def _list_datasets(self, names: list[str]) -> None:
        seen: list[bytes] = []
        with self._corrupt_on_error("the list of its objects"):
            # Lists names first, so that errors can name the object. In native order, because HDF5 1.14 crashes when it
            # fails to sort the links of a corrupt group.
            h5py.h5o.visit(self._file().id, seen.append, order=h5py.h5.ITER_NATIVE)
        packed: list[str] = []
        for name in map(text_of, sorted(seen, key=lambda one: one.split(b"/"))):
            with self._corrupt_on_error(f"object {name!r}"):
                obj = self._file()[raw_of(name)]
                if stored_column(obj) is not None:
                    packed.append(f"{name}/")
                    names.append(name)
                elif isinstance(obj, h5py.Dataset) and obj.shape:
                    names.append(name)
        names[:] = [name for name in names if not name.startswith(tuple(packed))]

    def _dataset(self, key: str) -> h5py.Dataset | PackedColumn:
        file = self._file()
        if self._found[0] is not file:
            self._found = file, {}
        found = self._found[1]
        if key not in found:
            found[key] = self._find_dataset(key)
        return found[key]

    def _find_dataset(self, key: str) -> h5py.Dataset | PackedColumn:
        with self._corrupt_on_error(f"dataset {key!r}"):
            try:
                found = self._file()[raw_of(key)]
            except KeyError:
                if self._has(key):
                    raise
                missing = CorruptError if self._schema_stored else DecodeError
                raise missing(self.path, None, None, f"dataset {key!r} is missing", self._existing_names(key)) from None
            self._check_here(key, found)
            if stored_column(found) is not None:
                for name in found:
                    self._check_here(f"{key}/{name}", found[name])
                return PackedColumn(found)
            if not isinstance(found, h5py.Dataset) or not found.shape:
                what = "a single value" if isinstance(found, h5py.Dataset) else "a group"
                raise FormatError(self.path, None, None, f"expected a dataset with rows as {key!r}, got {what}")
            if found.is_virtual:
                sources = sorted({source.file_name for source in found.virtual_sources()})
                reason = "is virtual: a source that cannot be opened would silently read as fill values"
                hint = f"Read its sources: {', '.join(sources[:4])}"
                raise FormatError(self.path, None, None, f"dataset {key!r} {reason}", hint)
            return found

    def _check_here(self, key: str, found: Any) -> None:
        """Rejects values in another file unless the user allowed it: a data file may name any file of the machine."""
        where = values_file(found, self._file())
        if where is None:
            return
        if not self._allow_external:
            reason = f"dataset {key!r} has its values in another file, {where!r}"
            hint = "If you trust this file, read it with hold.read(..., allow_external=True)"
            raise FormatError(self.path, None, None, reason, hint)
        if isinstance(found, h5py.Dataset) and (problems := external_problems(found)):
            hint = "HDF5 looks for it in the working directory"
            raise CorruptError(self.path, None, None, f"dataset {key!r}: {problems[0]}", hint)

    def _check_type(self, key: str, dataset: h5py.Dataset) -> None:
        """Rejects types that numpy lacks: times, integers of three bytes, floats of odd widths."""
        try:
            _ = dataset.dtype
        except Exception as error:
            reason = f"dataset {key!r} has a type that numpy lacks: {reason_of(error)}"
            raise FormatError(self.path, None, None, reason, _EXCLUDE_HINT) from error
        kind = dataset.id.get_type()
        while isinstance(kind, h5py.h5t.TypeVlenID):
            # Strings are of another class in h5py, so this is a list. HDF5 1.14 does not validate the bits that say so,
            # and crashes when it converts what is neither.
            if kind.encode()[_VLEN_KIND_BYTE] & 0x0F:
                raise CorruptError(self.path, None, None, f"the type of dataset {key!r} is corrupt")
            kind = kind.get_super()

    def _check_size(self, key: str, dataset: h5py.Dataset) -> None:
        """Rejects a corrupt shape, or a dataset that was created and never written."""
        claimed = math.prod(dataset.shape) * dataset.dtype.itemsize
        if claimed <= max(_PLAUSIBLE_BYTES, _PLAUSIBLE_RATIO * os.path.getsize(self.path)):
            return
        if dataset.chunks:
            stored_bytes = dataset.id.get_num_chunks() * math.prod(dataset.chunks) * dataset.dtype.itemsize
        else:
            stored_bytes = dataset.id.get_storage_size()
        if claimed > _MAX_UNWRITTEN_RATIO * stored_bytes:
            shape = (
                f"the shape {dataset.shape}, which is {claimed:,} bytes, of which at most {stored_bytes:,} were written"
            )
            reason = f"dataset {key!r} has {shape}: it is corrupt, or was created to be filled later"
            raise FormatError(self.path, None, None, reason, _EXCLUDE_HINT)

    def _existing_names(self, key: str) -> str:
        names: list[str] = []
        self._list_datasets(names)
        return names_there(key, names)

    def _measure(self) -> tuple[int, int, int]:
        """Returns the number of rows, rows per chunk, and the approximate bytes per row."""
        first, rows, chunk, row_bytes = self._names[0], -1, 1, 0
        for name in self._names:
            dataset = self._dataset(name)
            with self._corrupt_on_error(f"dataset {name!r}"):
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
                    "Name the datasets that belong together in a schema",
                )
            if isinstance(dataset, PackedColumn):
                chunk = max(chunk, dataset.rows_per_chunk)
                continue
            with self._corrupt_on_error(f"dataset {name!r}"):
                chunk = max(chunk, dataset.chunks[0] if dataset.chunks else 1)
                row_bytes += _row_bytes(dataset)
        # Variable-length values are elsewhere in the file: the size of the file accounts for them.
        return rows, min(chunk, max(rows, 1)), max(row_bytes, os.path.getsize(self.path) // max(rows, 1))

    def _check_filters(self, name: str) -> None:
        """Raises for a filter that is not installed, so that it is not reported as corruption."""
        obj = self._file()[raw_of(name)]
        inside: list[h5py.Dataset] = [obj]
        if isinstance(obj, h5py.Group):
            inside.clear()
            obj.visititems(lambda _, one: inside.append(one) if isinstance(one, h5py.Dataset) else None)
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
        except IncompatibleTypeError as error:
            raise FormatError(self.path, None, None, f"dataset {name!r} {error}", _EXCLUDE_HINT) from None

    def __len__(self) -> int:
        return self._rows

    def stamp(self) -> FileStamp | None:
        return None if self._closed else HANDLES.stamp(self._identity)

    def present(self, schema: Schema, start: int, stop: int) -> tuple[set[str], list[str]]:
        found = {name for name, column in schema.items() if self._has(key_of(name, column))}
        keys: list[str] = []
        self._list_datasets(keys)
        return found, keys

    def bytes_of(self, start: int, stop: int) -> int:
        check_range(self.path, len(self), start, stop)
        return (stop - start) * self._row_bytes

    def read(self, start: int, stop: int, schema: GivenSchema | None = None) -> Batch:
        return self.begin(start, stop, schema)()

    def begin(self, start: int, stop: int, schema: GivenSchema | None = None, pool: Any = None) -> Callable[[], Batch]:
        check_range(self.path, len(self), start, stop)
        return self._begin_columns(range(start, stop), schema, pool)

    def read_rows(self, rows: Rows, schema: GivenSchema | None = None) -> Batch:
        return self._begin_columns(check_rows(self.path, len(self), rows), schema, None)()

    def _begin_columns(self, rows: Sequence[int], schema: GivenSchema | None, pool: Any) -> Callable[[], Batch]:
        columns = self.schema if schema is None else check_schema(schema)
        begun = {name: self._begin(name, column, rows, pool) for name, column in columns.items()}
        return lambda: {name: finish() for name, finish in begun.items()}

    def _begin(self, name: str, column: Column, rows: Sequence[int], pool: Any) -> Callable[[], ColumnData]:
        """Begins to read a column, in the threads of `pool` if that is given."""
        key = key_of(name, column)
        if (key, column) not in self._dtypes:
            if not _is_needed(column) and not self._has(key):
                return lambda: fill(name, column, len(rows))
            self._check_column(name, key, column, rows)
        dataset = self._dataset(key)
        with self._naming_rows(name, column, rows):
            if isinstance(dataset, PackedColumn):
                finish = dataset.begin(rows, column, partial(self._begin_run, pool, None))
            else:
                begun = _begin_rows(dataset, rows, partial(self._begin_run, pool, key))
                finish = partial(_finish, begun, self._dtypes[key, column], column)

        def read() -> ColumnData:
            with self._naming_rows(name, column, rows):
                return finish()

        return read

    def _check_column(self, name: str, key: str, column: Column, rows: Sequence[int]) -> None:
        """Checks once that a dataset can be read as this column: h5py takes a lock for every question."""
        dataset = self._dataset(key)
        if len(dataset) != len(self):
            reason = f"dataset {key!r} has {len(dataset):,} rows, the others have {len(self):,}"
            raise FormatError(self.path, None, None, reason, "Name the datasets that belong together in a schema")
        dtype = None
        if isinstance(dataset, h5py.Dataset):
            with self._naming_rows(name, column, rows):
                dtype = dataset.dtype
                check_fit(column, dtype, dataset.shape[1:])
        self._dtypes[key, column] = dtype

    def _begin_run(
        self, pool: Any, key: str | None, dataset: h5py.Dataset, start: int, stop: int
    ) -> Callable[[], npt.NDArray[Any]]:
        """Begins to read rows straight from the file. The library reads what cannot be read so, or says why."""
        name = dataset.name if key is None else key
        if name not in self._raw:
            self._raw[name] = None
            with suppress(Exception):  # the library says what is wrong with its index
                self._raw[name] = RawDataset.of(dataset)
        raw = self._raw[name]
        finish = None if raw is None else raw.begin(HANDLES.fd(self._identity), start, stop, pool)

        def read() -> npt.NDArray[Any]:
            values = None if finish is None else finish()
            return read_run(dataset, start, stop) if values is None else values

        return read

    @contextmanager
    def _naming_rows(self, name: str, column: Column, rows: Sequence[int]) -> Iterator[None]:
        """Turns exceptions into errors that name the dataset and the rows."""
        key = key_of(name, column)
        try:
            yield
        except IncompatibleTypeError as error:
            damaged = isinstance(error, InconsistentFileError) or (
                self._schema_stored and self.schema.get(name) == column
            )
            kind = CorruptError if damaged else DecodeError
            raise kind(self.path, rows[error.row] if rows else None, None, f"dataset {key!r} {error}") from None
        except MemoryError:
            raise
        except Exception as error:
            which = f"rows {min(rows):,} to {max(rows):,}" if rows else "no rows"
            found = str(error) if isinstance(error, UnreadableChunkError) else reason_of(error)
            raise CorruptError(self.path, None, None, f"dataset {key!r}: {which} cannot be read: {found}") from error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._found = None, {}
            HANDLES.give(self._identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            try:
                warnings.warn(f"{self.path}: it was never closed", ResourceWarning, 2)
            finally:
                close_finalized(self.close)


def _is_needed(column: Column) -> bool:
    """Returns whether the column's dataset must exist."""
    return column.default is None


def _row_bytes(dataset: h5py.Dataset) -> int:
    return int(math.prod(dataset.shape[1:]) * dataset.dtype.itemsize)


def _finish(read: Callable[[], npt.NDArray[Any]], dtype: np.dtype[Any], column: Column) -> ColumnData:
    return as_column(in_native_order(read(), dtype), column)


def _begin_rows(dataset: h5py.Dataset, rows: Sequence[int], begin_run: BeginRun) -> Callable[[], npt.NDArray[Any]]:
    """Begins to read rows in any order, each chunk once: h5py's own fancy indexing is slow, and needs sorted rows."""
    if isinstance(rows, range):
        return begin_run(dataset, rows.start, rows.stop)
    if not rows:
        return begin_run(dataset, 0, 0)
    unique, inverse = np.unique(np.asarray(rows, np.int64), return_inverse=True)
    size = dataset.chunks[0] if dataset.chunks else max(1, _JOIN_BYTES // max(_row_bytes(dataset), 1))
    chunk = unique // size
    groups = np.split(unique, np.flatnonzero((np.diff(unique) > 1) & (np.diff(chunk) > 0)) + 1)
    begun = [begin_run(dataset, int(group[0]), int(group[-1]) + 1) for group in groups]

    def read() -> npt.NDArray[Any]:
        parts = [finish()[group - group[0]] for finish, group in zip(begun, groups, strict=True)]
        joined: npt.NDArray[Any] = np.concatenate(parts)[inverse]
        return joined

    return read
