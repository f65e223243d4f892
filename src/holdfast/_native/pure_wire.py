"""The protobuf wire format: bounded readers and bulk varints. What protobuf refuses is refused here."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import numpy as np
import numpy.typing as npt

VARINT = 0
FIXED64 = 1
LEN = 2
GROUP = 3
END_GROUP = 4
FIXED32 = 5

_MOST = (1 << 64) - 1
_MOST_TAG = (1 << 32) - 1
_VARINT_BYTES = 10
_HEAD_BYTES = 5  # a tag or a length takes no more
_MAX_DEPTH = 100  # protobuf's own recursion limit, of messages and groups together
_FEW = 24  # so many bytes or values are done one by one faster than by numpy

_INT64 = Struct("<Q")


class Malformed(Exception):
    """Not a protobuf message of the right form."""


def read_varint(data: bytes, at: int, end: int, most_bytes: int = _VARINT_BYTES) -> tuple[int, int]:
    """A varint and where it ends."""
    value = shift = 0
    for k in range(at, min(end, at + most_bytes)):
        byte = data[k]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _MOST, k + 1
        shift += 7
    raise Malformed


def _read_tag(data: bytes, at: int, end: int) -> tuple[int, int]:
    tag, at = read_varint(data, at, end, _HEAD_BYTES)
    if tag > _MOST_TAG or tag >> 3 == 0:
        raise Malformed
    return tag, at


def _read_span(data: bytes, at: int, end: int, wire: int) -> tuple[int, int]:
    """Where a value that is no group starts and stops."""
    if wire == LEN:
        size, at = read_varint(data, at, end, _HEAD_BYTES)
    elif wire == VARINT:
        size = read_varint(data, at, end)[1] - at
    elif wire == FIXED32:
        size = 4
    elif wire == FIXED64:
        size = 8
    else:
        raise Malformed
    if size > end - at:
        raise Malformed
    return at, at + size


def _skip_group(data: bytes, at: int, end: int, tag: int, depth: int) -> int:
    """Behind the group that `tag` opened. Not recursive: no bytes may use up the stack."""
    groups = [tag >> 3]
    while groups:
        if depth + len(groups) > _MAX_DEPTH:
            raise Malformed
        tag, at = _read_tag(data, at, end)
        if tag & 7 == GROUP:
            groups.append(tag >> 3)
        elif tag & 7 == END_GROUP:
            if groups.pop() != tag >> 3:
                raise Malformed
        else:
            at = _read_span(data, at, end, tag & 7)[1]
    return at


def each_part(data: bytes, at: int, end: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """(tag, start, stop) of each field of the message data[at:end], `depth` messages down."""
    while at < end:
        tag = data[at]
        if 8 <= tag < 128:  # nearly always
            at += 1
        else:
            tag, at = _read_tag(data, at, end)
        if tag & 7 == GROUP:
            start, at = at, _skip_group(data, at, end, tag, depth)
        else:
            start, at = _read_span(data, at, end, tag & 7)
        yield tag, start, at


def unpack_varints(data: bytes) -> bytes:
    """The 64-bit little-endian numbers that `data` holds as varints."""
    if len(data) < _FEW:
        return _unpack_few(data)
    raw = np.frombuffer(data, np.uint8)
    if raw.max() < 128:
        return raw.astype("<u8").tobytes()
    return _unpack_many(raw)


def _unpack_few(data: bytes) -> bytes:
    values = bytearray()
    at, end = 0, len(data)
    while at < end:
        value, at = read_varint(data, at, end)
        values += _INT64.pack(value)
    return bytes(values)


def _unpack_many(raw: npt.NDArray[np.uint8]) -> bytes:
    ends = np.flatnonzero(raw < 128) + 1
    if not ends.size or ends[-1] != raw.size:
        raise Malformed
    starts = np.concatenate((np.zeros(1, np.intp), ends[:-1]))
    sizes = ends - starts
    if sizes.max() > _VARINT_BYTES:
        raise Malformed
    shifts = 7 * (np.arange(raw.size, dtype=np.intp) - np.repeat(starts, sizes))
    parts = (raw & 127).astype("<u8") << shifts.astype("<u8")
    return np.bitwise_or.reduceat(parts, starts).tobytes()


def pack_varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    packed = bytearray()
    while value >= 128:
        packed.append(value & 127 | 128)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def pack_varints(values: npt.NDArray[np.uint64]) -> bytes:
    if values.size < _FEW:
        return b"".join([pack_varint(v) for v in values.tolist()])
    if values.max() < 128:
        return values.astype(np.uint8).tobytes()
    groups = values[:, None] >> np.arange(0, 70, 7, dtype=np.uint64)  # 10 groups of 7 bits
    sizes = np.maximum((groups != 0).sum(axis=1), 1)
    column = np.arange(_VARINT_BYTES)
    packed = (groups & np.uint64(127)).astype(np.uint8)
    packed |= (column < sizes[:, None] - 1).astype(np.uint8) << 7
    used: npt.NDArray[np.uint8] = packed[column < sizes[:, None]]
    return used.tobytes()


def pack_head(number: int, size: int) -> bytes:
    """The tag and length of a field with `size` bytes of content."""
    return bytes((number << 3 | LEN,)) + pack_varint(size)
