"""One dataset that grows by whole chunks: none is ever touched again, and none is lost with a cache."""

from __future__ import annotations

import zlib
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ..._native import codec as native
from ..._util.compression import Codec, check_codec
from .filters import ZSTD

__all__ = ["ChunkWriter", "Codec", "check_codec", "make_dataset"]


def make_dataset(
    group: h5py.Group,
    name: str,
    dtype: npt.DTypeLike,
    shape: tuple[int, ...],
    chunk_items: int,
    codec: tuple[str | None, int],
    items: int = 0,
) -> h5py.Dataset:
    """One that can grow, for so many items of a shape."""
    kind, level = codec
    packed: dict[str, Any] = {} if kind is None else {"compression": kind}
    if kind == "gzip":
        packed["compression_opts"] = level
    elif kind == "zstd":
        packed = {"compression": ZSTD, "compression_opts": (level,)}
    chunks, most = (chunk_items, *shape), (None, *shape)
    return group.create_dataset(name, (items, *shape), maxshape=most, chunks=chunks, dtype=dtype, **packed)


class ChunkWriter:
    """Takes items of one shape and type; keeps back what does not fill a chunk until finish().

    Chunks that need no filter of HDF5's own are handed over as they are to be in the file: HDF5's cache and its copy
    of them are left out, and packing runs beside other threads. The dataset is made when the first chunk is written: if
    all items are fewer than a chunk, the chunk is made to fit them.
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
        self._zeros = (0,) * len(shape)
        self._kept = np.empty((chunk_items, *shape), dtype)
        self._n_kept = 0
        self._written = 0
        self._dataset: h5py.Dataset | None = None
        self.crcs: list[int] = []  # of all chunks, in their order; none where HDF5 itself packs them

    @property
    def path(self) -> str:
        """The dataset's, in the file."""
        return f"{self._group.name.rstrip('/')}/{self._name}"[1:]

    def add(self, items: npt.NDArray[Any]) -> None:
        """They may be changed afterwards."""
        at = 0
        if self._n_kept:
            at = min(self._chunk - self._n_kept, len(items))
            self._keep(items[:at])
            if self._n_kept == self._chunk:
                self._write(self._kept, self._chunk)
                self._n_kept = 0
        while len(items) - at >= self._chunk:
            self._write(np.ascontiguousarray(items[at : at + self._chunk]), self._chunk)
            at += self._chunk
        if at < len(items):
            self._keep(items[at:])

    def _keep(self, items: npt.NDArray[Any]) -> None:
        self._kept[self._n_kept : self._n_kept + len(items)] = items
        self._n_kept += len(items)

    def add_chunk(self, data: Any, crc: int) -> None:
        """A whole chunk as it is to be in the file, with its crc32c. Only while nothing is kept back."""
        assert not self._n_kept
        if self._kind not in (None, "gzip"):  # HDF5's own filters pack it: it comes unpacked
            self._write(np.frombuffer(data, self._kept.dtype).reshape(self._kept.shape), self._chunk)
            return
        if self._dataset is None:
            self._dataset = self._make(self._chunk)
        first, self._written = self._written, self._written + self._chunk
        self._dataset.id.set_extent((self._written, *self._shape))
        self._put(first, data, crc)

    def finish(self) -> None:
        """Writes what was kept back. The rest of a last chunk is zeros, behind the dataset's end."""
        if self._dataset is None:
            self._dataset = self._make(self._n_kept or self._chunk)
            self._kept = self._kept[: self._n_kept]
        if self._n_kept:
            self._kept[self._n_kept :] = 0
            self._write(self._kept, self._n_kept)
            self._n_kept = 0

    def _make(self, chunk_items: int) -> h5py.Dataset:
        packing = self._kind, self._level
        return make_dataset(self._group, self._name, self._kept.dtype, self._shape, chunk_items, packing)

    def _write(self, chunk: npt.NDArray[Any], items: int) -> None:
        if self._dataset is None:
            self._dataset = self._make(self._chunk)
        first, self._written = self._written, self._written + items
        self._dataset.resize(self._written, 0)
        if self._kind in ("lzf", "zstd"):
            self._dataset[first:] = chunk[:items]
            return
        data: Any = chunk.reshape(-1).view(np.uint8)
        data = zlib.compress(data, self._level) if self._kind == "gzip" else data
        self._put(first, data, native.crc32c(data))  # now, while it is in the processor's cache

    def _put(self, first: int, data: Any, crc: int) -> None:
        """h5py takes its lock for all it asks of HDF5, but not for this: threads with files of their own would meet
        inside of a library that is not made for it."""
        assert self._dataset is not None
        with h5py._objects.phil:
            self._dataset.id.write_direct_chunk((first, *self._zeros), data)
        self.crcs.append(crc)

    def chunks(self) -> list[tuple[int, int]]:
        """Where each chunk is in the file and how many bytes it takes there, in the order of the items."""
        found: list[tuple[int, int, int]] = []
        if self._dataset is not None and self._written:
            self._dataset.id.chunk_iter(lambda one: found.append((one.chunk_offset[0], one.byte_offset, one.size)))
        return [(offset, size) for _, offset, size in sorted(found)]
