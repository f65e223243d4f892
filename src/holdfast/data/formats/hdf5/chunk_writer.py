"""Writes one dataset in full chunks: none is written twice, and none is held in HDF5's cache."""

from __future__ import annotations

import zlib
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ...._native import codec as native
from .chunks import chunk_table
from .filters import ZSTD


def make_dataset(
    group: h5py.Group,
    name: str,
    dtype: npt.DTypeLike,
    shape: tuple[int, ...],
    chunk_items: int,
    codec: tuple[str | None, int],
    items: int = 0,
) -> h5py.Dataset:
    """Creates a dataset that can grow."""
    kind, level = codec
    packed: dict[str, Any] = {} if kind is None else {"compression": kind}
    if kind == "gzip":
        packed["compression_opts"] = level
    elif kind == "zstd":
        packed = {"compression": ZSTD, "compression_opts": (level,)}
    chunks, maxshape = (chunk_items, *shape), (None, *shape)
    return group.create_dataset(name, (items, *shape), maxshape=maxshape, chunks=chunks, dtype=dtype, **packed)


class ChunkWriter:
    """Takes items of one shape and type; buffers those that do not fill a chunk until finish().

    Chunks that need no HDF5 filter are written as they are stored: that bypasses HDF5's chunk cache, and compression
    runs in parallel in other threads. The dataset is created with the first chunk: if all items fit in less than a
    chunk, the chunk is made smaller.
    """

    def __init__(
        self,
        group: h5py.Group,
        name: str,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        chunk_items: int,
        codec: tuple[str | None, int],
    ) -> None:
        self._group, self._name, self._shape = group, name, shape
        self._kind, self._level = codec
        self._chunk = chunk_items
        self._inner_start = (0,) * len(shape)
        self._buffer = np.empty((chunk_items, *shape), dtype)
        self._n_buffered = 0
        self._written = 0
        self._dataset: h5py.Dataset | None = None
        self.crcs: list[int] = []  # of all chunks in order; empty if HDF5 compresses them

    @property
    def path(self) -> str:
        """The dataset's path in the file."""
        return f"{self._group.name.rstrip('/')}/{self._name}"[1:]

    def add(self, items: npt.NDArray[Any]) -> None:
        """The caller may change the items afterwards."""
        at = 0
        if self._n_buffered:
            at = min(self._chunk - self._n_buffered, len(items))
            self._add_to_buffer(items[:at])
            if self._n_buffered == self._chunk:
                self._write(self._buffer, self._chunk)
                self._n_buffered = 0
        while len(items) - at >= self._chunk:
            self._write(np.ascontiguousarray(items[at : at + self._chunk]), self._chunk)
            at += self._chunk
        if at < len(items):
            self._add_to_buffer(items[at:])

    def _add_to_buffer(self, items: npt.NDArray[Any]) -> None:
        self._buffer[self._n_buffered : self._n_buffered + len(items)] = items
        self._n_buffered += len(items)

    def add_chunk(self, data: Any, crc: int) -> None:
        """Adds a full chunk in its stored form, with its crc32c. Only while nothing is buffered."""
        assert not self._n_buffered
        if self._kind not in (None, "gzip"):  # HDF5 compresses it: it is not compressed yet
            self._write(np.frombuffer(data, self._buffer.dtype).reshape(self._buffer.shape), self._chunk)
            return
        if self._dataset is None:
            self._dataset = self._make(self._chunk)
        first, self._written = self._written, self._written + self._chunk
        self._dataset.id.set_extent((self._written, *self._shape))
        self._write_chunk(first, data, crc)

    def finish(self) -> None:
        """Writes what is buffered. The rest of the last chunk is zeros, after the dataset's end."""
        if self._dataset is None:
            self._dataset = self._make(self._n_buffered or self._chunk)
            self._buffer = self._buffer[: self._n_buffered]
        if self._n_buffered:
            self._buffer[self._n_buffered :] = 0
            self._write(self._buffer, self._n_buffered)
            self._n_buffered = 0

    def _make(self, chunk_items: int) -> h5py.Dataset:
        packing = self._kind, self._level
        return make_dataset(self._group, self._name, self._buffer.dtype, self._shape, chunk_items, packing)

    def _write(self, chunk: npt.NDArray[Any], items: int) -> None:
        if self._dataset is None:
            self._dataset = self._make(self._chunk)
        first, self._written = self._written, self._written + items
        self._dataset.id.set_extent((self._written, *self._shape))
        if self._kind in ("lzf", "zstd"):
            self._dataset[first:] = chunk[:items]
            return
        data: Any = chunk.reshape(-1).view(np.uint8)
        data = zlib.compress(data, self._level) if self._kind == "gzip" else data
        self._write_chunk(first, data, native.crc32c(data))  # while it is in the CPU cache

    def _write_chunk(self, first: int, data: Any, crc: int) -> None:
        """Takes h5py's lock, which write_direct_chunk itself does not: threads that write other files would enter the
        library, which is not thread-safe, at the same time."""
        assert self._dataset is not None
        with h5py._objects.phil:
            self._dataset.id.write_direct_chunk((first, *self._inner_start), data)
        self.crcs.append(crc)

    def chunks(self) -> list[tuple[int, int]]:
        """Returns offset and size of each chunk in the file, in the order of the items."""
        if self._dataset is None or not self._written:
            return []
        return [(offset, size) for _, offset, size, _ in chunk_table(self._dataset).tolist()]
