"""What a schema asks for, checked once: shared by decoding and encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from .constants import BYTES, FIXED, FLOAT32, INT64, NESTED, Field

_MOST_VALUES = 1 << 40

VALUE_SIZES = {BYTES: 1, FLOAT32: 4, INT64: 8}
DTYPES: dict[int, type[np.generic]] = {BYTES: np.uint8, FLOAT32: np.float32, INT64: np.int64}


@dataclass(frozen=True, slots=True)
class Wanted:
    key: bytes
    kind: int
    depth: int
    count: int
    fill: bytes | None  # the default's values, joined
    fill_ends: list[int]  # bytes only: where each ends

    @property
    def has_arrays(self) -> tuple[bool, bool, bool, bool]:
        """Which of values, ends, steps and rows a column of it has."""
        return True, self.kind == BYTES, self.depth == NESTED, self.depth != FIXED


def check_fields(fields: Sequence[Field]) -> list[Wanted]:
    return [_check_field(fields[i]) for i in range(len(fields))]


def _check_field(field: Field) -> Wanted:
    if not isinstance(field, tuple) or len(field) != 5:
        raise TypeError("a field is a tuple (key, kind, depth, count, default)")
    key, kind, depth, count, default = field
    if not isinstance(key, bytes):
        raise TypeError(f"a field's key is bytes, not {type(key).__name__}")
    if not BYTES <= kind <= INT64 or not FIXED <= depth <= NESTED or not 1 <= count <= _MOST_VALUES:
        raise ValueError(f"field out of range: kind {kind}, depth {depth}, count {count}")
    if default is None:
        return Wanted(key, kind, depth, count, None, [])
    if kind == BYTES:
        values = _check_bytes_default(default, count)
        return Wanted(key, kind, depth, count, b"".join(values), list(accumulate(map(len, values))))
    return Wanted(key, kind, depth, count, _check_number_default(default, kind, count), [])


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
