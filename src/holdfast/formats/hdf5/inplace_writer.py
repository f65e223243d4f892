"""An HDF5 file made around chunks that lie in it already: nothing of them is copied.

What the library has to say of the file and its datasets is made in memory, in the oldest form, which has no checksums,
and put into room that was left free at the file's beginning. Where the chunks are is a tree of our own making (a
version 1 B-tree, the index that h5py makes by default), there as well, or behind the chunks if it is too large; the
datasets' headers are told where it begins.

    https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html: III.A.1, IV.A.1.a, IV.A.2.i
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from ..._native import codec as native
from ..._util.atomic import pwrite_all
from ..._util.compression import Codec
from ...schema import Schema, Value, check_schema
from ..columns import dtype_of
from .chunk_writer import make_dataset
from .schema_layout import MARK, key_of, schema_mark
from .writer import Chunk, FinishedFile, Place, checksums, packings

_UNDEFINED = (1 << 64) - 1
_END_AT = 40  # in the superblock
_HEADER = struct.Struct("<BxHII4x")
_MESSAGE = struct.Struct("<HHB3x")
_LAYOUT, _CONTINUED = 0x0008, 0x0010
_CHUNKED = bytes([3, 2])  # version and class of a layout
_NODE = struct.Struct("<4sBBHQQ")
_FANOUT = 64  # twice the library's default K
_ADDRESS = struct.Struct("<Q")


class NoRoomError(Exception):
    """What is to be said of the file does not fit the room that was left for it."""


class _Told(NamedTuple):
    """A dataset that is described."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of a row
    kind: str | None
    level: int


class InplaceWriter:
    """For an owner that gives the file its real name later, like HDF5Writer. `path` is one of the names of a file that
    is somebody else's; it is taken away in the end.

    room_bytes   how much is free at the beginning. NoRoomError: it is not enough
    end          what is behind it is not expected, and is written over
    """

    def __init__(self, path: Path, schema: Schema, *, chunk_rows: int, codec: Codec, room_bytes: int, end: int) -> None:
        self.path, self.schema = path, check_schema(schema)
        self.rows, self.chunk_rows = 0, chunk_rows
        self._room_bytes, self._end = room_bytes, end
        packing = packings(self.schema, codec)
        self._columns = [_told(name, column, packing[name]) for name, column in self.schema.items()]
        self._chunks: list[list[Chunk]] = [[] for _ in self._columns]
        self._kept = [np.zeros((chunk_rows, *one.shape), one.dtype) for one in self._columns]
        self._n_kept = 0
        if len(_skeleton(self.schema, self._columns, chunk_rows, 0)[0]) > room_bytes:  # as long for any number of rows
            raise NoRoomError
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def extend_in_place(self, chunks: Sequence[Chunk]) -> None:
        """The next chunk of every column lies there already. Only before any rows that did not fill one."""
        assert not self._n_kept
        for known, chunk in zip(self._chunks, chunks, strict=True):
            known.append(chunk)
        self.rows += self.chunk_rows

    def extend(self, buffers: Sequence[Any], rows: int) -> None:
        """What tfrecord.encoding.buffers_of gives: columns that were checked."""
        columns = [
            np.asarray(parts[0]).reshape(-1, *one.shape) for parts, one in zip(buffers, self._columns, strict=True)
        ]
        at = 0
        while at < rows:
            n = min(rows - at, self.chunk_rows - self._n_kept)
            for kept, values in zip(self._kept, columns, strict=True):
                kept[self._n_kept : self._n_kept + n] = values[at : at + n]
            self._n_kept, self.rows, at = self._n_kept + n, self.rows + n, at + n
            if self._n_kept == self.chunk_rows:
                self._put_kept()

    def _put_kept(self) -> None:
        for kept, one, known in zip(self._kept, self._columns, self._chunks, strict=True):
            kept[self._n_kept :] = 0
            data: Any = kept.reshape(-1).view(np.uint8)
            data = zlib.compress(data, one.level) if one.kind == "gzip" else data.tobytes()
            known.append((self._append(data), len(data), native.crc32c(data)))
        self._n_kept = 0

    def _append(self, data: bytes) -> int:
        at, self._end = self._end, self._end + len(data)
        pwrite_all(self.fd, data, at)
        return at

    def finalize(self) -> FinishedFile:
        """Everything is in the file. Not yet on disk for good: that is fsync of it."""
        if self._n_kept:
            self._put_kept()
        image, places = _skeleton(self.schema, self._columns, self.chunk_rows, self.rows)
        for place, one, known in zip(places, self._columns, self._chunks, strict=True):
            if known:
                steps = (self.chunk_rows, *one.shape, one.dtype.itemsize)
                _ADDRESS.pack_into(image, place, self._put_tree(image, known, steps))
        # What an earlier try left behind it stays: somebody may look through the file just now.
        _ADDRESS.pack_into(image, _END_AT, max(self._end, os.fstat(self.fd).st_size))
        assert len(image) <= self._room_bytes
        pwrite_all(self.fd, image, 0)
        known_crcs = {chunk[:2]: chunk[2] for known in self._chunks for chunk in known}
        in_order: list[Place] = sorted(known_crcs)
        size_bytes, crc, _ = checksums(self.fd, in_order, known_crcs)
        chunks = {one.path: known for one, known in zip(self._columns, self._chunks, strict=True)}
        return FinishedFile(self.rows, size_bytes, crc, chunks)

    def _put_tree(self, image: bytearray, chunks: Sequence[Chunk], steps: tuple[int, ...]) -> int:
        """Its address. In the room if it fits: of a file that is cut, all but what was cut off can then be found."""
        at = len(image) + -len(image) % 8
        tree, root = _tree(chunks, steps, at)
        if at + len(tree) <= self._room_bytes:
            image += bytes(at - len(image)) + tree
            return root
        self._append(bytes(-self._end % 8))
        tree, root = _tree(chunks, steps, self._end)
        self._append(tree)
        return root

    def discard(self) -> None:
        """Takes `path` away, and lets go of the file. Safe to call twice."""
        try:
            if self.fd >= 0:
                os.unlink(self.path)
        except OSError:
            pass  # the folder is gone or read-only by now; what is left is swept by who comes next
        self.detach()

    def detach(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _told(name: str, column: Any, packing: tuple[str | None, int]) -> _Told:
    assert isinstance(column, Value)
    return _Told(key_of(name, column), dtype_of(column), column.shape, *packing)


# ---- what the library says


def _skeleton(schema: Schema, columns: Sequence[_Told], chunk_rows: int, rows: int) -> tuple[bytearray, list[int]]:
    """A file without chunks, and where in it the address of each dataset's tree belongs."""
    # In memory: the name is never used.
    with h5py.File("-", "w", driver="core", backing_store=False, libver=("earliest", "v110")) as file:
        for one in columns:
            make_dataset(file, one.path, one.dtype, one.shape, chunk_rows, (one.kind, one.level), rows)
        file.attrs[MARK] = schema_mark(schema)
        headers = [h5py.h5o.get_info(file[one.path].id).addr for one in columns]
        file.flush()
        image = bytearray(file.id.get_file_image())
    return image, [_tree_place(image, header) for header in headers]


def _tree_place(image: bytearray, header: int) -> int:
    """Where a dataset's header, a list of messages in one block or more, has the address of its chunks' tree."""
    version, count, _, size = _HEADER.unpack_from(image, header)
    assert version == 1
    blocks = [(header + _HEADER.size, size)]
    for at, size in blocks:
        stop = at + size
        while at < stop and count:
            kind, length, _ = _MESSAGE.unpack_from(image, at)
            at, count = at + _MESSAGE.size, count - 1
            if kind == _LAYOUT:
                place = at + len(_CHUNKED) + 1  # behind them the number of dimensions
                assert image[at : at + 2] == _CHUNKED
                assert _ADDRESS.unpack_from(image, place) == (_UNDEFINED,)
                return place
            if kind == _CONTINUED:
                blocks.append(struct.unpack_from("<QQ", image, at))
            at += length
    raise AssertionError("a dataset without a layout")


# ---- where the chunks are


def _tree(chunks: Sequence[Chunk], steps: tuple[int, ...], at: int) -> tuple[bytes, int]:
    """Its nodes, from `at` on, and the address of its root. One chunk or more. `steps`: a chunk's dimensions, and the
    size of an item."""
    key = struct.Struct(f"<II{len(steps)}Q")
    zeros = (0,) * (len(steps) - 1)
    keys = [key.pack(size, 0, number * steps[0], *zeros) for number, (_, size, _) in enumerate(chunks)]
    keys.append(key.pack(0, 0, len(chunks) * steps[0], *steps[1:]))  # as the library ends it
    children = [offset for offset, _, _ in chunks]
    node_bytes = _NODE.size + _FANOUT * _ADDRESS.size + (_FANOUT + 1) * key.size
    nodes, level = bytearray(), 0
    while True:
        groups = range(0, len(children), _FANOUT)
        first = at + len(nodes)
        addresses = [first + number * node_bytes for number in range(len(groups))]
        for number, start in enumerate(groups):
            few = children[start : start + _FANOUT]
            left = addresses[number - 1] if number else _UNDEFINED
            right = addresses[number + 1] if number + 1 < len(groups) else _UNDEFINED
            node = bytearray(_NODE.pack(b"TREE", 1, level, len(few), left, right))
            for child, one in enumerate(few):
                node += keys[start + child] + _ADDRESS.pack(one)
            node += keys[start + len(few)]
            nodes += node.ljust(node_bytes, b"\0")
        if len(addresses) == 1:
            return bytes(nodes), addresses[0]
        keys = [*(keys[start] for start in groups), keys[-1]]
        children, level = addresses, level + 1
