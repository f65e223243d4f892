"""The wire format between producers and the central writer: frames with rows, and the messages around them.

A frame holds rows of one producer, on the socket and in the journal:

head      magic, version, flags, size of meta, epoch, number of the first row, rows, size of payload, crc32c of head
          and meta
meta      the producer's name, and the size and crc32c of every piece of the payload
payload   the pieces one after the other: the buffers of the columns, in the order of the schema
          Array    one piece: the values
          Bytes    two: the joined strings, and the offset of each end as int64 with a leading 0
          Ragged   those of its values, then the offsets of its lists, inner ones first

Each piece is compressed by itself if its column's codec is gzip. Codecs of the HDF5 library are applied by the sealer.

A producer starts with HELLO: magic, size, crc32c, JSON. The server sends messages: magic, kind, a number, the size of a
text, the text.

WELCOME   the text is JSON: the schema, how to make frames, `mark`, the number of the row to continue with, and `arena`,
          a shared buffer whose descriptor comes along, if HELLO had `shares` (shared_buffer.py)
ACK       the number: all rows below it are written
FULL      the disk is full; the text says where. Rows that are not acknowledged must wait
SPACE     there is space again
REFUSED   the text says why; the server closes the connection
STOPPING  the server ends when it has received what was sent
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...._native.codec import crc32c
from ...._util.compression import Codec, check_codec
from ....schema import Bytes, Column, Ragged, Schema, Value, chunk_rows_of
from ...formats.columns import default_chunk_rows, dtype_of

_INT64 = np.dtype("<i8")


class ColumnPiece(NamedTuple):
    """One buffer of a column. `slot`: which one. `row_bytes`: the size of a row, 0 where rows differ in size."""

    slot: int
    dtype: np.dtype[Any]
    row_bytes: int = 0
    row_ends: int = 0  # of offsets: how many a row has


class ColumnPieces(NamedTuple):
    column: Column
    level: int | None  # of gzip; None: not compressed
    pieces: tuple[ColumnPiece, ...]
    is_as_stored: bool  # the pieces are chunks as in the file: no codec is applied later

    @property
    def is_fixed(self) -> bool:
        return self.pieces[0].row_bytes > 0

    @property
    def has_plain_ends(self) -> bool:
        return self.level is None and not self.is_fixed


class FrameLayout:
    """The layout of frames of one schema, for making, checking and unpacking them."""

    def __init__(self, schema: Schema, chunk_rows: int | None = None, codec: Codec = None) -> None:
        self.chunk_rows = chunk_rows or chunk_rows_of(schema) or default_chunk_rows(schema)
        self.columns = [_pieces_of(column, column.codec if codec is None else codec) for column in schema.values()]
        self._has_plain_ends = any(column.has_plain_ends for column in self.columns)
        self.n_pieces = sum(len(column.pieces) for column in self.columns)
        self.row_bytes = sum(piece.row_bytes for column in self.columns for piece in column.pieces)
        self.is_plain = all(column.is_fixed and column.level is None for column in self.columns)
        self.is_as_stored = all(column.is_fixed and column.is_as_stored for column in self.columns)

    @property
    def chunk_bytes(self) -> int:
        """The size of a frame with a full chunk, if all columns are plain."""
        return self.chunk_rows * self.row_bytes

    def check(self, head: Head, sizes: tuple[int, ...]) -> None:
        """Checks the sizes of the pieces against the number of rows. FrameError: they do not match."""
        if len(sizes) != self.n_pieces:
            raise FrameError(f"expected {self.n_pieces} pieces, got {len(sizes)}")
        if head.rows > self.chunk_rows or (head.flags & FULL_CHUNK and head.rows != self.chunk_rows):
            raise FrameError(f"expected {self.chunk_rows:,} rows in a chunk, got {head.rows:,}")
        at = 0
        for column in self.columns:
            for piece in column.pieces:
                wanted = piece.row_bytes * head.rows or (piece.row_ends and 8 * (piece.row_ends * head.rows + 1))
                if column.level is None and wanted and sizes[at] != wanted:
                    raise FrameError(f"expected {wanted:,} bytes of {column.column!r}, got {sizes[at]:,}")
                at += 1

    def pack(self, column: ColumnPieces, buffer: Any) -> Any:
        flat: Any = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8).data if buffer.size else b""
        return flat if column.level is None else zlib.compress(flat, column.level)

    def take(self, rows: int, payload: memoryview, sizes: Sequence[int]) -> list[Any]:
        """Returns the columns' buffers. FrameError: they do not match the schema."""
        return [self._parts(column, data, rows) for column, data in self._cut(payload, sizes)]

    def check_ends(self, rows: int, payload: memoryview, sizes: Sequence[int]) -> None:
        """Checks offsets. FrameError: no part can be made of the frame. Compressed pieces are left to the sealer."""
        if self._has_plain_ends:
            for column, data in self._cut(payload, sizes):
                if column.has_plain_ends:
                    self._parts(column, data, rows)

    def _cut(self, payload: memoryview, sizes: Sequence[int]) -> Iterator[tuple[ColumnPieces, list[memoryview]]]:
        at, number = 0, 0
        for column in self.columns:
            data = []
            for _ in column.pieces:
                data.append(payload[at : at + sizes[number]])
                at, number = at + sizes[number], number + 1
            yield column, data

    def _parts(self, column: ColumnPieces, data: list[memoryview], rows: int) -> tuple[Any, ...]:
        parts: list[Any] = [None] * 4
        for piece, one in zip(column.pieces, data, strict=True):
            parts[piece.slot] = self._unpack(column, piece, one, rows)
        _check_ends(column, parts, rows)
        return tuple(parts)

    def chunks(self, payload: memoryview, meta: Meta) -> list[Any]:
        """Returns the piece and crc32c of each column of a fixed shape, and None for the others."""
        found: list[Any] = []
        at, number = 0, 0
        for column in self.columns:
            piece = payload[at : at + meta.sizes[number]]
            found.append((piece, meta.crcs[number]) if column.is_fixed else None)
            for _ in column.pieces:
                at, number = at + meta.sizes[number], number + 1
        return found

    def _unpack(self, column: ColumnPieces, piece: ColumnPiece, data: Any, rows: int) -> Any:
        try:
            raw = data if column.level is None else zlib.decompress(data)
            values = np.frombuffer(raw, piece.dtype)
        except (zlib.error, ValueError) as error:
            raise FrameError(f"{column.column!r} cannot be decompressed: {error}") from None
        if piece.row_bytes and values.nbytes != rows * piece.row_bytes:
            raise FrameError(f"expected {rows * piece.row_bytes:,} bytes of {column.column!r}, got {values.nbytes:,}")
        return values


def _pieces_of(column: Column, codec: Codec) -> ColumnPieces:
    kind, level = check_codec(codec)
    value = column.value if isinstance(column, Ragged) else column
    assert isinstance(value, Value)
    fixed = not isinstance(column, Ragged)
    pieces: list[ColumnPiece] = []
    if isinstance(value, Bytes):
        pieces += [ColumnPiece(0, np.dtype("u1")), ColumnPiece(1, _INT64, row_ends=value.count if fixed else 0)]
    else:
        dtype = dtype_of(value)
        pieces.append(ColumnPiece(0, dtype, dtype.itemsize * value.count if fixed else 0))
    if isinstance(column, Ragged):
        pieces += [ColumnPiece(2, _INT64)] * (column.depth > 1) + [ColumnPiece(3, _INT64, row_ends=1)]
    return ColumnPieces(column, level if kind == "gzip" else None, tuple(pieces), kind in (None, "gzip"))


def _check_ends(column: ColumnPieces, parts: list[Any], rows: int) -> None:
    """Checks that the offsets of each level, from the outermost on, match the number of items of the next."""
    items = rows
    value = column.column.value if isinstance(column.column, Ragged) else column.column
    for slot in (3, 2):
        if parts[slot] is not None:
            items = _items(column, parts[slot], items)
    if parts[1] is not None:
        items = _items(column, parts[1], items * value.count)
    elif not column.is_fixed:
        items *= value.count
    if not column.is_fixed and len(parts[0]) != items:
        raise FrameError(f"expected {items:,} values of {column.column!r} by its offsets, got {len(parts[0]):,}")


def _items(column: ColumnPieces, ends: Any, lists: int) -> int:
    if len(ends) != lists + 1 or ends[0] != 0 or (np.diff(ends) < 0).any():
        raise FrameError(f"{column.column!r} has invalid offsets")
    return int(ends[-1])


def slice_rows(column: Column, parts: Any, start: int, stop: int) -> list[Any]:
    """Returns the buffers of rows [start, stop) of a column, with offsets from 0 on."""
    values, ends, steps, splits = parts
    value = column.value if isinstance(column, Ragged) else column
    found: list[Any] = [None] * 4
    if splits is not None:
        found[3], start, stop = _slice_offsets(splits, start, stop)
    if steps is not None:
        found[2], start, stop = _slice_offsets(steps, start, stop)
    if ends is not None:
        found[1], start, stop = _slice_offsets(ends, start * value.count, stop * value.count)
    found[0] = np.asarray(values)[start:stop]
    return found


def _slice_offsets(ends: Any, start: int, stop: int) -> tuple[Any, int, int]:
    part = np.asarray(ends)[start : stop + 1]
    first, last = int(part[0]), int(part[-1])
    return part - first, first, last


# ---- messages

PROTOCOL = 1
HELLO = struct.Struct("<4sII")
HELLO_MAGIC = b"HFH1"
MAX_HELLO_BYTES = 1 << 14
MESSAGE = struct.Struct("<4sB3xQI")
MESSAGE_MAGIC = b"HFA1"
MAX_TEXT_BYTES = 1 << 24

WELCOME, ACK, FULL, SPACE, REFUSED, STOPPING = range(1, 7)


class ServerMessage(NamedTuple):
    kind: int
    number: int
    text: str


def pack_hello(content: dict[str, Any]) -> bytes:
    text = json.dumps({"protocol": PROTOCOL, **content}).encode()
    return HELLO.pack(HELLO_MAGIC, len(text), crc32c(text)) + text


def pack_message(kind: int, number: int = 0, text: str = "") -> bytes:
    data = text.encode()
    return MESSAGE.pack(MESSAGE_MAGIC, kind, number, len(data)) + data


class ServerMessageDecoder:
    """Decodes messages from a stream. ValueError: the peer is no central writer."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[ServerMessage]:
        self._data += data
        found, at = [], 0
        while len(self._data) - at >= MESSAGE.size:
            magic, kind, number, size = MESSAGE.unpack_from(self._data, at)
            if magic != MESSAGE_MAGIC or size > MAX_TEXT_BYTES:
                raise ValueError(f"expected a message of the central writer, got {bytes(magic)!r}")
            stop = at + MESSAGE.size + size
            if stop > len(self._data):
                break
            found.append(ServerMessage(kind, number, self._data[at + MESSAGE.size : stop].decode(errors="replace")))
            at = stop
        del self._data[:at]
        return found


# ---- heads and metas

MAGIC = b"HFJ"
VERSION = 1
HEAD = struct.Struct("<3sBBxHIQIQI")
HEAD_BYTES = HEAD.size
MAX_META_BYTES = 1 << 14
MAX_SEQ = 1 << 62

FULL_CHUNK = 1  # flag: the rows fill a chunk, and columns of a fixed shape are encoded as in the file

_CRC = struct.Struct("<I")
_CRC_AT = HEAD_BYTES - _CRC.size
_COUNT = struct.Struct("<H")


class FrameError(Exception):
    """Bytes that are no valid frame."""


class Head(NamedTuple):
    flags: int
    meta_bytes: int
    epoch: int
    first: int
    rows: int
    payload_bytes: int
    crc: int

    @property
    def end(self) -> int:
        """The number of the row after its last one."""
        return self.first + self.rows


class Meta(NamedTuple):
    producer: str
    sizes: tuple[int, ...]
    crcs: tuple[int, ...]

    def check(self, payload: memoryview) -> None:
        """Checks the CRC of every piece. FrameError: one is wrong."""
        at = 0
        for size, crc in zip(self.sizes, self.crcs, strict=True):
            if crc32c(payload[at : at + size]) != crc:
                raise FrameError("the checksum of the payload is wrong")
            at += size


def pack_meta(producer: str, sizes: Sequence[int], crcs: Sequence[int]) -> bytes:
    name = producer.encode()
    n = len(sizes)
    return bytes([len(name)]) + name + _COUNT.pack(n) + struct.pack(f"<{n}Q{n}I", *sizes, *crcs)


def pack_head(meta: bytes, *, flags: int, epoch: int, first: int, rows: int, payload_bytes: int) -> bytes:
    """Packs head and meta."""
    head = HEAD.pack(MAGIC, VERSION, flags, len(meta), epoch, first, rows, payload_bytes, 0)[:_CRC_AT]
    return head + _CRC.pack(crc32c(meta, crc32c(head))) + meta


def parse_head(data: Any, at: int = 0) -> Head:
    """Parses a head. FrameError: it is invalid, so nothing after it can be trusted."""
    magic, version, *rest = HEAD.unpack_from(data, at)
    if magic != MAGIC:
        raise FrameError(f"expected a frame, got {bytes(magic)!r}")
    if version != VERSION:
        raise FrameError(f"expected a frame of version {VERSION}, got {version}")
    head = Head._make(rest)
    if head.meta_bytes > MAX_META_BYTES or head.first > MAX_SEQ or not head.rows:
        raise FrameError(f"invalid head: {head.rows:,} rows from {head.first:,}, {head.meta_bytes:,} bytes of meta")
    return head


def parse_meta(head: Head, data: Any, at: int = 0) -> Meta:
    """Parses the meta after the head at `at`. FrameError: head or meta are corrupt."""
    view = memoryview(data)[at : at + HEAD_BYTES + head.meta_bytes]
    if crc32c(view[HEAD_BYTES:], crc32c(view[:_CRC_AT])) != head.crc:
        raise FrameError("the checksum of the head is wrong")
    meta = bytes(view[HEAD_BYTES:])
    try:
        stop = 1 + meta[0]
        name = meta[1:stop].decode()
        [count] = _COUNT.unpack_from(meta, stop)
        numbers = struct.unpack(f"<{count}Q{count}I", meta[stop + _COUNT.size :])
        sizes, crcs = numbers[:count], numbers[count:]
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"its meta cannot be parsed: {error}") from None
    if sum(sizes) != head.payload_bytes:
        raise FrameError(f"expected pieces of {head.payload_bytes:,} bytes, got {sum(sizes):,}")
    return Meta(name, sizes, crcs)
