"""Turns a file that contains chunks already into an HDF5 file, without copying them.

The library creates the metadata in memory, in the oldest format, which has no checksums, and it is written into space
that was left free at the beginning of the file. The chunk index is built by chunk_btree.py. It lies in the same space,
or after the chunks if it is too large; the dataset headers are patched with its address.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from ...._native import codec as native
from ...._util.atomic import pwrite_all
from ...._util.compression import Codec
from ....schema import Schema, Value, check_schema
from ..columns import dtype_of
from .chunk_btree import ADDRESS, CHUNKED, UNDEFINED, build_tree, find_layout
from .chunk_writer import make_dataset
from .schema_layout import SCHEMA_ATTRIBUTE, key_of, schema_attribute
from .writer import Chunk, Extent, FinishedFile, checksums, packings

_END_AT = 40  # in the superblock


class NoRoomError(Exception):
    """The metadata does not fit into the space that was left for it."""


class _ColumnLayout(NamedTuple):
    """How a column's dataset is stored."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of a row
    kind: str | None
    level: int


class InplaceWriter:
    """Has the interface of HDF5Writer. `path` is a link to a file of another owner; it is removed in the end.

    room_bytes   the free space at the beginning. NoRoomError: it is too small
    end          what lies after it is overwritten
    """

    def __init__(self, path: Path, schema: Schema, *, chunk_rows: int, codec: Codec, room_bytes: int, end: int) -> None:
        self.path, self.schema = path, check_schema(schema)
        self.rows, self.chunk_rows = 0, chunk_rows
        self._room_bytes, self._end = room_bytes, end
        packing = packings(self.schema, codec)
        self._columns = [_column_layout(name, column, packing[name]) for name, column in self.schema.items()]
        self._chunks: list[list[Chunk]] = [[] for _ in self._columns]
        self._buffers = [np.zeros((chunk_rows, *one.shape), one.dtype) for one in self._columns]
        self._n_buffered = 0
        image, _ = _metadata_image(self.schema, self._columns, chunk_rows, 0)  # of the same size with any rows
        if len(image) > room_bytes:
            raise NoRoomError
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def extend_in_place(self, chunks: Sequence[Chunk]) -> None:
        """Adds the next chunk of every column, which is in the file already. Only while all rows so far fill chunks."""
        assert not self._n_buffered
        for known, chunk in zip(self._chunks, chunks, strict=True):
            known.append(chunk)
        self.rows += self.chunk_rows

    def extend(self, buffers: Sequence[Any], rows: int) -> None:
        """Adds rows from the buffers that row_buffers.buffers_of returns."""
        columns = [
            np.asarray(parts[0]).reshape(-1, *one.shape) for parts, one in zip(buffers, self._columns, strict=True)
        ]
        at = 0
        while at < rows:
            n = min(rows - at, self.chunk_rows - self._n_buffered)
            for buffer, values in zip(self._buffers, columns, strict=True):
                buffer[self._n_buffered : self._n_buffered + n] = values[at : at + n]
            self._n_buffered, self.rows, at = self._n_buffered + n, self.rows + n, at + n
            if self._n_buffered == self.chunk_rows:
                self._flush_buffer()

    def _flush_buffer(self) -> None:
        for buffer, one, known in zip(self._buffers, self._columns, self._chunks, strict=True):
            buffer[self._n_buffered :] = 0
            data: Any = buffer.reshape(-1).view(np.uint8)
            data = zlib.compress(data, one.level) if one.kind == "gzip" else data.tobytes()
            known.append((self._append(data), len(data), native.crc32c(data)))
        self._n_buffered = 0

    def _append(self, data: bytes) -> int:
        at, self._end = self._end, self._end + len(data)
        pwrite_all(self.fd, data, at)
        return at

    def finalize(self) -> FinishedFile:
        """Writes everything. The file is not durable before an fsync."""
        if self._n_buffered:
            self._flush_buffer()
        image, offsets = _metadata_image(self.schema, self._columns, self.chunk_rows, self.rows)
        for offset_in_image, one, known in zip(offsets, self._columns, self._chunks, strict=True):
            if known:
                steps = (self.chunk_rows, *one.shape, one.dtype.itemsize)
                ADDRESS.pack_into(image, offset_in_image, self._write_tree(image, known, steps))
        # Data of an earlier attempt after the end stay: another process may be reading the file.
        ADDRESS.pack_into(image, _END_AT, max(self._end, os.fstat(self.fd).st_size))
        assert len(image) <= self._room_bytes
        pwrite_all(self.fd, image, 0)
        known_crcs = {chunk[:2]: chunk[2] for known in self._chunks for chunk in known}
        in_order: list[Extent] = sorted(known_crcs)
        size_bytes, crc, _ = checksums(self.fd, in_order, known_crcs)
        chunks = {one.path: known for one, known in zip(self._columns, self._chunks, strict=True)}
        return FinishedFile(self.rows, size_bytes, crc, chunks)

    def _write_tree(self, image: bytearray, chunks: Sequence[Chunk], steps: tuple[int, ...]) -> int:
        """Returns its address. It lies before the chunks if it fits: of a truncated file all other chunks can then be
        found."""
        at = len(image) + -len(image) % 8
        tree, root = build_tree(chunks, steps, at)
        if at + len(tree) <= self._room_bytes:
            image += bytes(at - len(image)) + tree
            return root
        self._append(bytes(-self._end % 8))
        tree, root = build_tree(chunks, steps, self._end)
        self._append(tree)
        return root

    def discard(self) -> None:
        """Removes `path` and closes the file. Safe to call twice."""
        try:
            if self.fd >= 0:
                os.unlink(self.path)
        except OSError:
            pass  # the directory is gone or read-only; a later writer removes stale files
        self.detach()

    def detach(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _column_layout(name: str, column: Any, packing: tuple[str | None, int]) -> _ColumnLayout:
    assert isinstance(column, Value)
    return _ColumnLayout(key_of(name, column), dtype_of(column), column.shape, *packing)


def _metadata_image(
    schema: Schema, columns: Sequence[_ColumnLayout], chunk_rows: int, rows: int
) -> tuple[bytearray, list[int]]:
    """Returns a file without chunks, and the offsets in it at which the address of each dataset's tree belongs."""
    # In memory, so the name is not used.
    with h5py.File("-", "w", driver="core", backing_store=False, libver=("earliest", "v110")) as file:
        for one in columns:
            make_dataset(file, one.path, one.dtype, one.shape, chunk_rows, (one.kind, one.level), rows)
        file.attrs[SCHEMA_ATTRIBUTE] = schema_attribute(schema)
        headers = [h5py.h5o.get_info(file[one.path].id).addr for one in columns]
        file.flush()
        image = bytearray(file.id.get_file_image())
    return image, [_tree_address_offset(image, header) for header in headers]


def _tree_address_offset(image: bytearray, header: int) -> int:
    """Returns where a dataset's header stores the address of its chunk index."""
    found = find_layout(lambda at, size: bytes(image[at : at + size]), header)
    assert found is not None
    at, layout = found
    offset_in_image = at + len(CHUNKED) + 1  # after the number of dimensions
    assert layout.startswith(CHUNKED)
    assert ADDRESS.unpack_from(image, offset_in_image) == (UNDEFINED,)
    return offset_in_image
