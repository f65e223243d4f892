"""Running either codec and showing what it gives as plain Python values."""

from __future__ import annotations

import os
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from holdfast._native import codec

IMPLEMENTATIONS = ["compiled", "pure"]
NUMBERS = {codec.INT64: np.int64, codec.FLOAT32: np.float32}

ONE_INT = (b"a", codec.INT64, codec.FIXED, 1, None)
INTS = (b"a", codec.INT64, codec.RAGGED, 1, None)


def load(name: str) -> Any:
    if name == "pure":
        return import_module("holdfast._native.fallback")
    try:
        return import_module("holdfast._native._codec")
    except ImportError:
        if os.environ.get("HOLDFAST_NATIVE") == "1":
            raise
        pytest.skip("the compiled codec was not built")


def plain(columns: list[Any]) -> list[tuple[bytes | None, ...]]:
    """A batch's buffers as bytes, for comparing."""
    return [tuple(None if buffer is None else bytes(buffer) for buffer in column) for column in columns]


def _values(field: codec.Field, column: Any) -> list[Any]:
    if field[1] != codec.BYTES:
        return np.frombuffer(column[0], NUMBERS[field[1]]).tolist()
    ends = np.frombuffer(column[1], np.int64).tolist()
    data = bytes(column[0])
    return [data[a:b] for a, b in pairwise(ends)]


def _split(values: list[Any], offsets: Any, count: int = 1) -> list[list[Any]]:
    ends = [count * end for end in np.frombuffer(offsets, np.int64).tolist()]
    return [values[a:b] for a, b in pairwise(ends)]


def rows_of(field: codec.Field, column: Any, rows: int) -> list[list[Any]]:
    """A row is the list of its values; of a nested column, the list of its steps' lists."""
    _, _, depth, count, _ = field
    values = _values(field, column)
    if depth == codec.FIXED:
        assert len(values) == rows * count
        return [values[i * count : (i + 1) * count] for i in range(rows)]
    if depth == codec.NESTED:
        values = _split(values, column[2], count)
        count = 1
    split = _split(values, column[3], count)
    assert len(split) == rows
    return split


def decode(impl: Any, fields: list[codec.Field], *records: bytes) -> tuple[list[Any], list[tuple[int, ...]]]:
    """(each field's rows, faults without their offsets)."""
    frames = b"".join([impl.frame(record) for record in records])
    decoder = impl.Decoder(fields)
    fed = decoder.feed(frames, 0, len(frames), True, 1 << 40, 0, 0)
    assert fed == (len(records), len(frames), codec.OK, 0)
    faults = [(fault[0], *fault[2:]) for fault in decoder.faults()]
    rows = decoder.rows()
    assert rows + len(faults) == len(records)
    return [rows_of(f, c, rows) for f, c in zip(fields, decoder.take(), strict=True)], faults


def decode_one(impl: Any, field: codec.Field, record: bytes) -> Any:
    """The row of one field in one record."""
    (rows,), faults = decode(impl, [field], record)
    assert faults == []
    return rows[0]


def fault_of(impl: Any, field: codec.Field, record: bytes) -> tuple[int, int, int]:
    """(code, field, got) of a record that gives no row."""
    _, faults = decode(impl, [field], record)
    ((_, code, place, got),) = faults
    return code, place, got
