"""A frame: some rows of one producer, as they cross the socket and as they lie in the journal.

head      magic, version, flags, bytes of meta, epoch, number of the first row, rows, bytes of payload, crc32c of head
          and meta
meta      the producer's name, and the size and crc32c of every piece of the payload
payload   the pieces, one behind the other: layout.py says what they are
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..._native.codec import crc32c

MAGIC = b"HFJ"
VERSION = 1
HEAD = struct.Struct("<3sBBxHIQIQI")
HEAD_BYTES = HEAD.size
MOST_META_BYTES = 1 << 14
MOST_SEQ = 1 << 62

WHOLE = 1  # its rows fill a chunk, and columns of a fixed shape are as they are to be in the file

_CRC = struct.Struct("<I")
_CRC_AT = HEAD_BYTES - _CRC.size
_COUNT = struct.Struct("<H")


class FrameError(Exception):
    """Bytes that are no frame, or one that is not whole."""


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
        """The number of the first row behind it."""
        return self.first + self.rows


class Meta(NamedTuple):
    producer: str
    sizes: tuple[int, ...]
    crcs: tuple[int, ...]

    def check(self, payload: memoryview) -> None:
        """FrameError: it is not what was sent."""
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
    """Head and meta together."""
    head = HEAD.pack(MAGIC, VERSION, flags, len(meta), epoch, first, rows, payload_bytes, 0)[:_CRC_AT]
    return head + _CRC.pack(crc32c(meta, crc32c(head))) + meta


def parse_head(data: Any, at: int = 0) -> Head:
    """FrameError: it is none, and nothing behind it can be trusted."""
    magic, version, *rest = HEAD.unpack_from(data, at)
    if magic != MAGIC:
        raise FrameError(f"expected a frame, got {bytes(magic)!r}")
    if version != VERSION:
        raise FrameError(f"expected a frame of version {VERSION}, got {version}")
    head = Head._make(rest)
    if head.meta_bytes > MOST_META_BYTES or head.first > MOST_SEQ or not head.rows:
        raise FrameError(f"a frame of {head.rows:,} rows from {head.first:,}, with {head.meta_bytes:,} bytes of meta")
    return head


def parse_meta(head: Head, data: Any, at: int = 0) -> Meta:
    """`data` holds head and meta from `at` on. FrameError: they are not what was sent."""
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
        raise FrameError(f"its meta cannot be understood: {error}") from None
    if sum(sizes) != head.payload_bytes:
        raise FrameError(f"its pieces have {sum(sizes):,} bytes, its payload {head.payload_bytes:,}")
    return Meta(name, sizes, crcs)
