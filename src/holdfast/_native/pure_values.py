"""What one Feature, or one FeatureList, of a record holds: gathered aside until the whole record was seen."""

from __future__ import annotations

from array import array

from .constants import BYTES, FIXED, FLOAT32, INT64, NONE, RAGGED, WRONG_COUNT, WRONG_KIND
from .pure_fields import Wanted
from .pure_wire import FIXED32, LEN, VARINT, Malformed, each_part, unpack_varints

# Tags of the messages' fields. The first one's is the same in nearly all of them.
FIRST = 1 << 3 | LEN
SECOND = 2 << 3 | LEN
_ONE_FLOAT = 1 << 3 | FIXED32
_ONE_INT = 1 << 3 | VARINT

NO_LIMIT = 1 << 64


class Values:
    """The values of one Feature. Those beyond `limit` are counted, not stored."""

    __slots__ = ("data", "ends", "kind", "limit", "n", "wanted")

    def __init__(self, wanted: int, limit: int) -> None:
        self.wanted = wanted
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
        """A Feature. Another member of its oneof replaces what came before it, the same one adds to it."""
        for tag, start, stop in each_part(data, at, end, depth):
            kind = tag >> 3
            if tag & 7 != LEN or kind > INT64:
                continue
            if kind != self.kind:
                self.clear(kind)
            # A list nobody wants still has to be well-formed: protobuf itself would refuse it.
            into = self if kind == self.wanted else Values(kind, 0)
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
    """A FeatureList: the values of all steps joined, and how many items there are up to the end of each."""

    __slots__ = ("ends", "fault", "field", "values")

    def __init__(self, field: Wanted | None) -> None:
        self.field = None if field is None or field.depth == FIXED else field
        self.values = Values(NONE if field is None else field.kind, NO_LIMIT)
        self.ends = array("q")
        self.fault: tuple[int, int] | None = None

    def read(self, data: bytes, at: int, end: int, depth: int) -> None:
        for tag, start, stop in each_part(data, at, end, depth):
            if tag == FIRST:
                step = Values(self.values.wanted, 0 if self.field is None else NO_LIMIT)
                step.read(data, start, stop, depth + 1)
                if self.field is not None and self.fault is None:
                    self._add(self.field, step)

    def _add(self, field: Wanted, step: Values) -> None:
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
