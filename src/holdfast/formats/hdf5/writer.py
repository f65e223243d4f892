"""Writing one HDF5 file: by whole chunks, with a list of them, and so that a full disk is an error and no crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from ..._native import codec as native
from ..._native.checksum import combine, crc32c_of_file
from ..._util.atomic import close_synced
from ..._util.compression import Codec, check_codec
from ...errors import SchemaError, WriteError
from ...schema import Bytes, Column, Ragged, Schema, Value, check_schema, chunk_rows_of
from ..columns import CHUNK_BYTES, default_chunk_rows, dtype_of, row_bytes_of
from .chunk_writer import ChunkWriter
from .filters import PACKAGE, ZSTD, has_filter
from .schema_layout import MARK, check_keys, column_mark, is_packed, key_of, schema_mark

_TOO_LARGE_BYTES = 1 << 32  # HDF5 has no such chunk, which it says when it is to write one: after all the work

_HDF5_ERRORS = (OSError, RuntimeError, ValueError, KeyError)  # h5py has one for each of HDF5's own codes

Place = tuple[int, int]  # where in the file, and how many bytes
Chunk = tuple[int, int, int]  # where it is in the file, its bytes there, their crc32c


class FinishedFile(NamedTuple):
    """A finished file, before it has its name."""

    rows: int
    bytes: int
    crc32c: int
    chunks: dict[str, list[Chunk]]  # by the dataset's path, in the order of its rows


class HDF5Writer:
    """Creates `path`, which must not exist, for an owner that gives it its real name later: finalize() closes the file
    and tells what is in it, discard() takes it away. One thread at a time.

    A write that fails (a full disk) leaves libhdf5 with data it can get rid of neither at close nor at exit, where it
    then crashes the process. So before such a file is closed its descriptor is made one of a file in memory, which
    takes everything. The same keeps a forked child from writing into its parent's file.

    chunk_rows, codec: for all columns; None: as the schema says, column by column
    """

    def __init__(
        self, path: str | os.PathLike[str], schema: Schema, *, chunk_rows: int | None = None, codec: Codec = None
    ) -> None:
        self.path = Path(path)
        self.schema = check_schema(schema)
        self.rows = 0
        check_keys(self.schema)
        packing = packings(self.schema, codec)
        self.chunk_rows = chunk_rows or chunk_rows_of(self.schema) or default_chunk_rows(self.schema)
        _check_chunks(self.schema, self.chunk_rows)
        self.fd = self._hdf5_fd = -1
        self._file: h5py.File | None = None
        try:
            # Superblock 3, which HDF5 1.10 and newer read. Nobody else knows of this file: a lock would be in the way
            # where locks do not work.
            self._file = h5py.File(self.path, "x", libver=("v110", "v110"), locking=False)
            self._hdf5_fd = self._file.id.get_vfd_handle()
            os.set_inheritable(self._hdf5_fd, False)
            self.fd = os.dup(self._hdf5_fd)
            self._columns = [
                _ColumnWriters(self._file, name, column, self.chunk_rows, packing[name])
                for name, column in self.schema.items()
            ]
            self._file.attrs[MARK] = schema_mark(self.schema)
        except _HDF5_ERRORS as error:
            raise self._failed(error) from error
        except BaseException:
            self.discard()
            raise

    def extend(self, buffers: list[native.ColumnBuffers], rows: int) -> None:
        """What tfrecord.encoding.buffers_of gives: columns that were checked."""
        try:
            for column, parts in zip(self._columns, buffers, strict=True):
                column.add(parts)
        except _HDF5_ERRORS as error:
            raise self._failed(error) from error
        self.rows += rows

    def extend_by_chunk(self, buffers: list[native.ColumnBuffers], chunks: list[Any]) -> None:
        """As many rows as a chunk has. `chunks` are columns of a fixed shape as they are to be in the file, with their
        crc32c; for the others there is None, and their buffers. Only before any rows that did not fill a chunk."""
        try:
            for column, parts, chunk in zip(self._columns, buffers, chunks, strict=True):
                if chunk is None:
                    column.add(parts)
                else:
                    column.sinks[0].add_chunk(*chunk)
        except _HDF5_ERRORS as error:
            raise self._failed(error) from error
        self.rows += self.chunk_rows

    def finalize(self) -> FinishedFile:
        """Everything is in the file, and it is closed. Not yet on disk for good: that is fsync of `fd`."""
        assert self._file is not None
        try:
            for column in self._columns:
                column.finish()
            self._file.flush()  # what fails must fail here: a close that fails cannot be undone
            sinks = [sink for column in self._columns for sink in column.sinks]
            places = {sink.path: sink.chunks() for sink in sinks}
            known = dict(pair for sink in sinks for pair in zip(places[sink.path], sink.crcs, strict=False))
            self._columns = []
            self._file.close()
            self._file = None
            in_order = sorted(place for found in places.values() for place in found)
            size_bytes, crc, crcs = checksums(self.fd, in_order, known)
            chunks = {name: [(*place, crcs[place]) for place in found] for name, found in places.items()}
            return FinishedFile(self.rows, size_bytes, crc, chunks)
        except _HDF5_ERRORS as error:
            raise self._failed(error) from error

    def discard(self) -> None:
        """Takes the name away that the file was made under, and lets go of it. Safe to call twice."""
        if self.fd >= 0:
            try:
                os.unlink(self.path)
            except OSError:
                pass  # the folder is gone or read-only by now; what is left is swept by who comes next
        self.detach()
        self._close()

    def detach(self) -> None:
        """Cuts libhdf5 off from the file. System calls only, so that a forked child can be rid of it at once."""
        fd, self.fd = self.fd, -1
        close_synced(fd)  # first: one descriptor must be free
        if self._file is not None and self._hdf5_fd >= 0 and _cut_off(self._hdf5_fd):
            self._hdf5_fd = -1  # once: closed behind our back, the number may be anybody's next time

    def _close(self) -> None:
        self._columns = []
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except _HDF5_ERRORS:
                pass  # it is cut off from its file already: there is nothing left to lose

    def _failed(self, error: Exception) -> WriteError:
        self.discard()
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error)
        return WriteError(f"cannot write {self.path}: {reason}; nothing of it was left behind")


def packings(schema: Schema, codec: Codec = None) -> dict[str, tuple[str | None, int]]:
    """How each column is packed: all as `codec` says, or each as the schema does. WriteError: not possible here."""
    found = {name: check_codec(column.codec if codec is None else codec) for name, column in schema.items()}
    if any(kind == "zstd" for kind, _ in found.values()) and not has_filter(ZSTD):
        raise WriteError(f'codec "zstd" needs the Python package {PACKAGE}: pip install {PACKAGE}')
    return found


class _ColumnWriters:
    """The datasets of one column."""

    def __init__(
        self, file: h5py.File, name: str, column: Column, chunk_rows: int, packing: tuple[str | None, int]
    ) -> None:
        self.sinks: list[ChunkWriter] = []
        self._adds: list[tuple[int, Callable[[Any], None]]] = []  # which buffer, and what takes it
        self._packing, self._chunk_rows = packing, chunk_rows
        self._make(file, key_of(name, column), column, outer=True)

    def _make(self, group: h5py.Group, name: str, column: Column, outer: bool) -> None:
        if not is_packed(column):
            assert isinstance(column, Value)
            self._values(group, name, column, self._chunk_rows if outer else None)
            return
        inside = group.create_group(name)
        inside.attrs[MARK] = column_mark(column)
        if isinstance(column, Ragged):
            level = 3 if outer else 2
            self._ends(inside, "row_splits", level)
            self._make(inside, "values", column.inner, outer=False)
        else:
            assert isinstance(column, Bytes)
            self._ends(inside, "offsets", 1)
            self._values(inside, "values", Bytes(), None)

    def _values(self, group: h5py.Group, name: str, value: Value, chunk: int | None) -> None:
        dtype = dtype_of(value)
        chunk = max(1, CHUNK_BYTES // (dtype.itemsize * value.count)) if chunk is None else chunk
        sink = ChunkWriter(group, name, dtype, value.shape, chunk, self._packing)
        self.sinks.append(sink)
        self._adds.append((0, lambda values: sink.add(np.asarray(values).reshape(-1, *value.shape))))

    def _ends(self, group: h5py.Group, name: str, level: int) -> None:
        sink = ChunkWriter(group, name, "<i8", (), self._chunk_rows, self._packing)
        sink.add(np.zeros(1, np.int64))
        total = 0

        def add(ends: Any) -> None:
            nonlocal total
            ends = np.asarray(ends)
            sink.add(ends[1:] + (total - int(ends[0])))
            total += int(ends[-1]) - int(ends[0])

        self.sinks.append(sink)
        self._adds.append((level, add))

    def add(self, parts: native.ColumnBuffers) -> None:
        for number, add in self._adds:
            add(parts[number])

    def finish(self) -> None:
        for sink in self.sinks:
            sink.finish()


def _check_chunks(schema: Schema, rows: int) -> None:
    for name, column in schema.items():
        if rows * _row_bytes(column) >= _TOO_LARGE_BYTES:
            text = f"got {rows:,} rows of {_row_bytes(column):,} bytes"
            raise SchemaError(f"column {name!r}: expected chunks of less than 4 GiB, as HDF5 has them, {text}")


def _row_bytes(column: Column) -> int:
    """Returns the size of a row in the dataset that has one entry per row: for a packed column, that of the ends."""
    return row_bytes_of(column) or 8


def checksums(
    fd: int, places: list[Place], known: Mapping[Place, int] | None = None
) -> tuple[int, int, dict[Place, int]]:
    """A file's size and crc32c, and those of these places in it, which do not overlap, in one go through it. Places
    whose own is known are not read: if they were written wrong, it shows when the file is verified."""
    size_bytes, at, crc = os.fstat(fd).st_size, 0, 0
    crcs: dict[Place, int] = {}
    for place in [*places, (size_bytes, 0)]:
        crc = combine(crc, _crc_of(fd, at, place[0] - at), place[0] - at)
        crcs[place] = known[place] if known and place in known else _crc_of(fd, *place)
        crc = combine(crc, crcs[place], place[1])
        at = sum(place)
    return size_bytes, crc, crcs


def _crc_of(fd: int, offset: int, size: int) -> int:
    crc, n = crc32c_of_file(fd, offset, size)
    if n < size:
        raise OSError(errno.EIO, f"expected {size - n:,} bytes more at byte {offset + n:,}, got none")
    return crc


def _cut_off(fd: int) -> bool:
    """Whether it is done: what is written to this descriptor goes nowhere."""
    try:
        memory = os.memfd_create("holdfast-cut-off", os.MFD_CLOEXEC)
    except OSError:
        return False  # not one descriptor is free, though one was closed for it: another thread took it
    if memory != fd:  # else it was closed already, and the number given out again
        os.dup2(memory, fd, inheritable=False)
        os.close(memory)
    return True
