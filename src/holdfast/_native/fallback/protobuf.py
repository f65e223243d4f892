"""Reads and writes the protobuf wire format with bounds checks and bulk varints. Rejects what protobuf rejects."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct

import numpy as np
import numpy.typing as npt

from ..constants import BYTES, FIXED, FLOAT32, INT64, NESTED, NONE, RAGGED, WRONG_COUNT, WRONG_KIND, Field

VARINT = 0
FIXED64 = 1
LEN = 2
GROUP = 3
END_GROUP = 4
FIXED32 = 5

_MAX = (1 << 64) - 1
_MAX_TAG = (1 << 32) - 1
_VARINT_BYTES = 10
_HEAD_BYTES = 5  # maximum of a tag or a length
_MAX_DEPTH = 100  # protobuf's recursion limit for messages and groups together
_FEW = 24  # below this number of bytes or values, a loop is faster than numpy

_INT64 = Struct("<Q")


class Malformed(Exception):
    """The bytes are not a valid protobuf message."""


def read_varint(data: bytes, at: int, end: int, max_bytes: int = _VARINT_BYTES) -> tuple[int, int]:
    """Decodes a varint; returns it and where it ends."""
    value = shift = 0
    for k in range(at, min(end, at + max_bytes)):
        byte = data[k]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _MAX, k + 1
        shift += 7
    raise Malformed


def _read_tag(data: bytes, at: int, end: int) -> tuple[int, int]:
    tag, at = read_varint(data, at, end, _HEAD_BYTES)
    if tag > _MAX_TAG or tag >> 3 == 0:
        raise Malformed
    return tag, at


def _read_span(data: bytes, at: int, end: int, wire: int) -> tuple[int, int]:
    """Returns where a value that is not a group starts and stops."""
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
    """Returns the end of the group that `tag` opened. Not recursive, so that no input can exhaust the stack."""
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
    """Yields (tag, start, stop) of each field of the message data[at:end], at nesting level `depth`."""
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
    """Decodes varints to 64-bit little-endian numbers."""
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
    """Encodes the tag and length of a field with `size` bytes of content."""
    return bytes((number << 3 | LEN,)) + pack_varint(size)


# ---- values of one Feature or FeatureList, collected until the end of the record

# Tags of the messages' fields.
FIRST = 1 << 3 | LEN
SECOND = 2 << 3 | LEN
_ONE_FLOAT = 1 << 3 | FIXED32
_ONE_INT = 1 << 3 | VARINT

NO_LIMIT = 1 << 64


class Values:
    """The values of one Feature. Those beyond `limit` are counted, not stored."""

    __slots__ = ("data", "ends", "expected", "kind", "limit", "n")

    def __init__(self, expected: int, limit: int) -> None:
        self.expected = expected
        self.limit = limit
        self.clear(NONE)

    def clear(self, kind: int) -> None:
        self.kind = kind
        self.n = 0
        self.data = bytearray()
        self.ends = array("q")

    def add_bytes(self, value: bytes) -> None:
        if self.n < self.limit:
            self.data += value
            self.ends.append(len(self.data))
        self.n += 1

    def add_numbers(self, values: bytes, size: int) -> None:
        room = self.limit - self.n
        self.n += len(values) // size
        if room > 0:
            self.data += values[: room * size] if len(values) > room * size else values

    def read(self, data: bytes, at: int, end: int, depth: int) -> None:
        """Reads a Feature. Another member of its oneof replaces the one before, the same one adds to it."""
        for tag, start, stop in each_part(data, at, end, depth):
            kind = tag >> 3
            if tag & 7 != LEN or kind > INT64:
                continue
            if kind != self.kind:
                self.clear(kind)
            # An unused list must be valid, too: protobuf would reject the message otherwise.
            into = self if kind == self.expected else Values(kind, 0)
            into._read_list(kind, data, start, stop, depth + 1)

    def _read_list(self, kind: int, data: bytes, at: int, end: int, depth: int) -> None:
        for tag, start, stop in each_part(data, at, end, depth):
            if tag == FIRST:
                self._add_packed(kind, data[start:stop])
            elif tag == _ONE_FLOAT and kind == FLOAT32:
                self.add_numbers(data[start:stop], 4)
            elif tag == _ONE_INT and kind == INT64:
                self.add_numbers(unpack_varints(data[start:stop]), 8)

    def _add_packed(self, kind: int, value: bytes) -> None:
        if kind == BYTES:
            self.add_bytes(value)
        elif kind == INT64:
            self.add_numbers(unpack_varints(value), 8)
        elif len(value) % 4:
            raise Malformed
        else:
            self.add_numbers(value, 4)


class Steps:
    """A FeatureList: the joined values of all steps, and how many items there are up to the end of each."""

    __slots__ = ("ends", "fault", "field", "values")

    def __init__(self, field: FieldSpec | None) -> None:
        self.field = None if field is None or field.depth == FIXED else field
        self.values = Values(NONE if field is None else field.kind, NO_LIMIT)
        self.ends = array("q")
        self.fault: tuple[int, int] | None = None

    def read(self, data: bytes, at: int, end: int, depth: int) -> None:
        for tag, start, stop in each_part(data, at, end, depth):
            if tag == FIRST:
                step = Values(self.values.expected, 0 if self.field is None else NO_LIMIT)
                step.read(data, start, stop, depth + 1)
                if self.field is not None and self.fault is None:
                    self._add(self.field, step)

    def _add(self, field: FieldSpec, step: Values) -> None:
        if step.kind not in (NONE, field.kind):
            self.fault = WRONG_KIND, step.kind
        elif (step.n != field.count) if field.depth == RAGGED else step.n % field.count:
            self.fault = WRONG_COUNT, step.n
        else:
            joined = self.values
            before = len(joined.data)
            joined.data += step.data
            joined.ends.extend([before + end for end in step.ends])
            joined.n += step.n
            self.ends.append(joined.n // field.count)


# ---- the fields of a schema, for decoding and encoding

_MAX_VALUES = 1 << 40

VALUE_SIZES = {BYTES: 1, FLOAT32: 4, INT64: 8}
DTYPES: dict[int, type[np.generic]] = {BYTES: np.uint8, FLOAT32: np.float32, INT64: np.int64}


@dataclass(frozen=True, slots=True)
class FieldSpec:
    key: bytes
    kind: int
    depth: int
    count: int
    fill: bytes | None  # the joined values of the default
    fill_ends: list[int]  # for BYTES: where each of them ends

    @property
    def has_arrays(self) -> tuple[bool, bool, bool, bool]:
        """Tells which of values, ends, steps and rows its column has."""
        return True, self.kind == BYTES, self.depth == NESTED, self.depth != FIXED


def check_fields(fields: Sequence[Field]) -> list[FieldSpec]:
    return [_check_field(fields[i]) for i in range(len(fields))]


def _check_field(field: Field) -> FieldSpec:
    if not isinstance(field, tuple) or len(field) != 5:
        raise TypeError("a field is a tuple (key, kind, depth, count, default)")
    key, kind, depth, count, default = field
    if not isinstance(key, bytes):
        raise TypeError(f"a field's key is bytes, not {type(key).__name__}")
    if not BYTES <= kind <= INT64 or not FIXED <= depth <= NESTED or not 1 <= count <= _MAX_VALUES:
        raise ValueError(f"field out of range: kind {kind}, depth {depth}, count {count}")
    if default is None:
        return FieldSpec(key, kind, depth, count, None, [])
    if kind == BYTES:
        values = _check_bytes_default(default, count)
        return FieldSpec(key, kind, depth, count, b"".join(values), list(accumulate(map(len, values))))
    return FieldSpec(key, kind, depth, count, _check_number_default(default, kind, count), [])


def _check_bytes_default(default: Sequence[object], count: int) -> list[bytes]:
    if len(default) != count:
        raise ValueError(f"default: expected {count} bytes objects, got {len(default)}")
    values = [value for value in default if isinstance(value, bytes)]
    if len(values) != count:
        raise TypeError("default: expected bytes objects")
    return values


def _check_number_default(default: object, kind: int, count: int) -> bytes:
    if not isinstance(default, bytes):
        raise TypeError(f"default: expected the values' bytes, got {type(default).__name__}")
    if len(default) != count * VALUE_SIZES[kind]:
        raise ValueError(f"default: expected {count} values, got {len(default)} bytes")
    return default
