"""Columns from what was read piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..schema import Bytes, Float32, Value
from .columns import BytesColumn, ColumnData


def join_bytes(items: Sequence[bytes], per_item: int = 0) -> BytesColumn:
    offsets = np.zeros(len(items) + 1, np.int64)
    np.cumsum([len(item) for item in items], out=offsets[1:])
    return BytesColumn(np.frombuffer(b"".join(items), np.uint8), offsets, per_item)


def fill(name: str, value: Value, rows: int) -> ColumnData:
    """A column of defaults."""
    if isinstance(value, Bytes):
        return join_bytes([default_bytes(name, value)] * (rows * value.count), value.count if value.shape else 0)
    dtype = np.float32 if isinstance(value, Float32) else np.int64
    try:
        whole: Any = np.broadcast_to(np.asarray(value.default, dtype), value.shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"column {name!r}: the default {value.default!r} does not fit {value!r}: {error}") from None
    return np.broadcast_to(whole, (rows, *value.shape)).copy()


def default_bytes(name: str, value: Value) -> bytes:
    given = value.default
    if isinstance(given, str):
        return given.encode()
    if not isinstance(given, (bytes, bytearray)):
        raise SchemaError(f"column {name!r}: wanted a default of bytes, got {given!r}")
    return bytes(given)
