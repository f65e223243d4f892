"""Writes one HDF5 file in full chunks, records their checksums, and survives a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...._native import codec as native
from ...._native.checksum import combine, crc32c_of_file
from ...._util.atomic import close_synced
from ...._util.compression import Codec, check_codec
from ....errors import SchemaError, WriteError
from ....schema import Bytes, Column, Ragged, Schema, Value, check_schema, chunk_rows_of
from ..base import FileEntry
from ..base import FinishedFile as FinishedFile
from ..columns import CHUNK_BYTES, default_chunk_rows, dtype_of, row_bytes_of
from ..row_buffers import buffers_of
from .chunk_writer import ChunkWriter
from .filters import check_zstd
from .schema_layout import SCHEMA_ATTRIBUTE, check_keys, column_attribute, is_packed, key_of, schema_attribute

_MAX_CHUNK_BYTES = 1 << 32  # HDF5's own limit, which it reports only when the chunk is written

_HDF5_ERRORS = (OSError, RuntimeError, ValueError, KeyError)  # h5py's, by HDF5 error code

Extent = tuple[int, int]  # offset and size in the file
Chunk = tuple[int, int, int]  # offset, size, crc32c


class HDF5Writer:
    """Creates `path`, which must not exist; the owner gives the file its real name later. finalize() closes it and
    returns what is in it, discard() removes it. One thread at a time.

    A write that fails (a full disk) leaves libhdf5 with data that it cannot write at close or at exit, where it then
    crashes the process. So before such a file is closed its descriptor is replaced by one of a file in memory. The same
    keeps a forked child from writing into its parent's file.

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
            # Superblock 3, which HDF5 1.10 and newer read. No other process knows this file, and locks do not work on
            # every file system.
            self._file = h5py.File(self.path, "x", libver=("v110", "v110"), locking=False)
            self._hdf5_fd = self._file.id.get_vfd_handle()
            os.set_inheritable(self._hdf5_fd, False)
            self.fd = os.dup(self._hdf5_fd)
            self._columns = [
                _ColumnWriters(self._file, name, column, self.chunk_rows, packing[name])
                for name, column in self.schema.items()
            ]
            self._file.attrs[SCHEMA_ATTRIBUTE] = schema_attribute(self.schema)
        except _HDF5_ERRORS as error:
            raise self._failed(error) from error
        except BaseException:
            self.discard()
            raise

    def extend(self, buffers: list[native.ColumnBuffers], rows: int) -> None:
        """Adds rows from the buffers that row_buffers.buffers_of returns."""
        try:
            for column, parts in zip(self._columns, buffers, strict=True):
                column.add(parts)
        except _HDF5_ERRORS as error:
            raise self._failed(error) from error
        self.rows += rows

    def extend_by_chunk(self, buffers: list[native.ColumnBuffers], chunks: list[Any]) -> None:
        """Adds one chunk of rows. `chunks` has the encoded chunk and its crc32c for columns of a fixed shape, and None
        for others, whose buffers are used. Only while all rows so far fill chunks."""
        try:
            for column, parts, chunk in zip(self._columns, buffers, chunks, strict=True):
                if chunk is None:
                    column.add(parts)
                else:
                    column.writers[0].add_chunk(*chunk)
        except _HDF5_ERRORS as error:
            raise self._failed(error) from error
        self.rows += self.chunk_rows

    def finalize(self) -> FinishedFile:
        """Writes everything and closes the file. It is not durable before an fsync of `fd`."""
        assert self._file is not None
        try:
            for column in self._columns:
                column.finish()
            self._file.flush()  # write errors must occur here: a failed close cannot be undone
            writers = [writer for column in self._columns for writer in column.writers]
            extents = {writer.path: writer.chunks() for writer in writers}
            known = dict(pair for writer in writers for pair in zip(extents[writer.path], writer.crcs, strict=False))
            self._columns = []
            self._file.close()
            self._file = None
            in_order = sorted(extent for found in extents.values() for extent in found)
            size_bytes, crc, crcs = checksums(self.fd, in_order, known)
            chunks = {name: [(*extent, crcs[extent]) for extent in found] for name, found in extents.items()}
            return FinishedFile(self.rows, size_bytes, crc, chunks)
        except _HDF5_ERRORS as error:
            raise self._failed(error) from error

    def discard(self) -> None:
        """Removes the file. Safe to call twice."""
        if self.fd >= 0:
            try:
                os.unlink(self.path)
            except OSError:
                pass  # the directory is gone or read-only; a later writer removes stale files
        self.detach()
        self._close()

    def detach(self) -> None:
        """Detaches libhdf5 from the file, by system calls only, so that a forked child can do it at once."""
        fd, self.fd = self.fd, -1
        close_synced(fd)  # first, so that one descriptor is free
        if self._file is not None and self._hdf5_fd >= 0 and _point_to_memory(self._hdf5_fd):
            self._hdf5_fd = -1  # only once: the number may be reused

    def _close(self) -> None:
        self._columns = []
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except _HDF5_ERRORS:
                pass  # the file is detached already

    def _failed(self, error: Exception) -> WriteError:
        self.discard()
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error)
        return WriteError(f"cannot write {self.path}: {reason}; nothing of it was left behind")


def packings(schema: Schema, codec: Codec = None) -> dict[str, tuple[str | None, int]]:
    """Returns the codec of each column: `codec` for all, or the schema's. Raises WriteError if one is not installed."""
    found = {name: check_codec(column.codec if codec is None else codec) for name, column in schema.items()}
    if any(kind == "zstd" for kind, _ in found.values()):
        check_zstd()
    return found


class _ColumnWriters:
    """Writes the datasets of one column."""

    def __init__(
        self, file: h5py.File, name: str, column: Column, chunk_rows: int, packing: tuple[str | None, int]
    ) -> None:
        self.writers: list[ChunkWriter] = []
        self._adds: list[tuple[int, Callable[[Any], None]]] = []  # number of the buffer, and its consumer
        self._packing, self._chunk_rows = packing, chunk_rows
        self._make(file, key_of(name, column), column, outer=True)

    def _make(self, group: h5py.Group, name: str, column: Column, outer: bool) -> None:
        if not is_packed(column):
            assert isinstance(column, Value)
            self._values(group, name, column, self._chunk_rows if outer else None)
            return
        inside = group.create_group(name)
        inside.attrs[SCHEMA_ATTRIBUTE] = column_attribute(column)
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
        writer = ChunkWriter(group, name, dtype, value.shape, chunk, self._packing)
        self.writers.append(writer)
        self._adds.append((0, lambda values: writer.add(np.asarray(values).reshape(-1, *value.shape))))

    def _ends(self, group: h5py.Group, name: str, level: int) -> None:
        writer = ChunkWriter(group, name, "<i8", (), self._chunk_rows, self._packing)
        writer.add(np.zeros(1, np.int64))
        total = 0

        def add(ends: Any) -> None:
            nonlocal total
            ends = np.asarray(ends)
            writer.add(ends[1:] + (total - int(ends[0])))
            total += int(ends[-1]) - int(ends[0])

        self.writers.append(writer)
        self._adds.append((level, add))

    def add(self, parts: native.ColumnBuffers) -> None:
        for number, add in self._adds:
            add(parts[number])

    def finish(self) -> None:
        for writer in self.writers:
            writer.finish()


def _check_chunks(schema: Schema, rows: int) -> None:
    for name, column in schema.items():
        if rows * _row_bytes(column) >= _MAX_CHUNK_BYTES:
            text = f"got {rows:,} rows of {_row_bytes(column):,} bytes"
            raise SchemaError(f"column {name!r}: expected chunks of less than 4 GiB, HDF5's limit, {text}")


def _row_bytes(column: Column) -> int:
    """Returns the bytes per row; of a ragged column those of an offset."""
    return row_bytes_of(column) or 8


def checksums(
    fd: int, extents: list[Extent], known: Mapping[Extent, int] | None = None
) -> tuple[int, int, dict[Extent, int]]:
    """Returns a file's size and crc32c, and those of these extents, which do not overlap, in one pass. Extents whose
    crc32c is known are not read: if they were written wrongly, verifying the file detects it."""
    size_bytes, at, crc = os.fstat(fd).st_size, 0, 0
    crcs: dict[Extent, int] = {}
    for extent in [*extents, (size_bytes, 0)]:
        crc = combine(crc, _crc_of(fd, at, extent[0] - at), extent[0] - at)
        crcs[extent] = known[extent] if known and extent in known else _crc_of(fd, *extent)
        crc = combine(crc, crcs[extent], extent[1])
        at = sum(extent)
    return size_bytes, crc, crcs


def _crc_of(fd: int, offset: int, size: int) -> int:
    crc, n = crc32c_of_file(fd, offset, size)
    if n < size:
        raise OSError(errno.EIO, f"expected {size - n:,} bytes more at byte {offset + n:,}, got none")
    return crc


def _point_to_memory(fd: int) -> bool:
    """Replaces a descriptor by one of a memfd, which libhdf5 can write to and read. Returns whether that worked."""
    try:
        memory = os.memfd_create("holdfast-cut-off", os.MFD_CLOEXEC)
    except OSError:
        return False  # no descriptor is free: another thread took the one that was closed
    if memory != fd:  # else it was closed already, and its number reused
        os.dup2(memory, fd, inheritable=False)
        os.close(memory)
    return True


# ---- files of conversions and of dataset directories


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
