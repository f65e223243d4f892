"""Members as numbers: ASCII text (`3` · `0.5 1e3` · `1,2,3`), JSON lists (`[[1, 2], [3, 4]]`), or numpy's .npy."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schema import Int64, Ragged, Value
from ..columns import ColumnData, RaggedColumn

_NPY_MAGIC = b"\x93NUMPY"
_KEPT_BYTES = 512
Array = npt.NDArray[Any]


class Unfit(ValueError):
    """A member is not the numbers that were wanted. `place` says which of those given."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason


def numbers_column(items: Sequence[bytes], column: Value | Ragged) -> ColumnData:
    """One item a row."""
    value = column.value if isinstance(column, Ragged) else column
    if not isinstance(column, Ragged):
        quick = _same_npy(items, column)
        if quick is None and not column.shape:
            quick = _quick(items, column)
        if quick is not None:
            return quick
        rows = [_each(i, item, column) for i, item in enumerate(items)]
        return np.stack(rows) if rows else np.zeros((0, *value.shape), _dtype(value))
    lists = [_each(i, item, column) for i, item in enumerate(items)]
    if column.depth == 1:
        return _ragged(lists, value)
    return RaggedColumn(_ragged([one for some in lists for one in some], value), _splits([len(some) for some in lists]))


def _same_npy(items: Sequence[bytes], value: Value) -> Array | None:
    """Arrays of one type and shape, as a writer makes them, all at once; None where one is otherwise."""
    if not items or not items[0].startswith(_NPY_MAGIC):
        return None
    size, start = len(items[0]), len(items[0]) - value.count * np.dtype(_dtype(value)).itemsize
    head = items[0][: max(start, 0)]
    if start <= 0 or any(len(item) != size or not item.startswith(head) for item in items):
        return None
    try:
        shape, fortran, dtype, at = _npy_header(bytes(head))
    except ValueError:
        return None
    if (shape, fortran, dtype, at) != (value.shape, False, np.dtype(_dtype(value)), start):
        return None
    table = np.frombuffer(b"".join(items), np.uint8).reshape(len(items), size)
    return np.ascontiguousarray(table[:, start:]).view(dtype).reshape(len(items), *shape)


def _quick(items: Sequence[bytes], value: Value) -> Array | None:
    """A plain number in each, as nearly always; None where one needs a closer look."""
    if any(b"_" in item for item in items):  # Python takes 1_000 for a number
        return None
    try:
        if isinstance(value, Int64):
            return np.array([int(item) for item in items], np.int64)
        return _as_float32(np.array([float(item) for item in items], np.float64))
    except (ValueError, OverflowError):
        return None


def _each(place: int, item: bytes, column: Value | Ragged) -> Any:
    value = column.value if isinstance(column, Ragged) else column
    try:
        found = _parse(item, value)
        if not isinstance(column, Ragged):
            return _shaped(_cast(found, value), value)
        if column.depth == 1:
            return _listed(_cast(found, value), value)
        return [_listed(_cast(one, value), value) for one in _lists_in(found)]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        text = str(error) if not isinstance(error, RecursionError) else "lists too deep in each other"
        raise Unfit(place, f"{text}; it begins with {item[:40]!r}") from None


def _lists_in(found: Any) -> Any:
    if len(found) and not all(isinstance(one, (list, np.ndarray)) for one in found):
        raise ValueError("wanted a list of lists")
    return found


def _parse(item: bytes, value: Value) -> Any:
    """An array, or lists as JSON has them."""
    if item.startswith(_NPY_MAGIC):
        return read_npy(item)
    text = item.strip()
    if text.startswith(b"["):
        return json.loads(text)
    if b"_" in text:
        raise ValueError("wanted numbers")
    parts = text.replace(b",", b" ").split()
    kind = "whole numbers" if isinstance(value, Int64) else "numbers"
    try:
        return np.array([int(part) for part in parts] if isinstance(value, Int64) else [*map(float, parts)])
    except ValueError:
        raise ValueError(f"wanted {kind}") from None


def read_npy(item: bytes) -> Array:
    """Not by np.load: it makes room for whatever the header claims."""
    length = int.from_bytes(item[8:10], "little") + 10 if item[6:7] == b"\1" else len(item)
    shape, fortran, dtype, at = _npy_header(bytes(item[:length]))
    data = item[at:]
    if dtype.kind not in "iuf":
        raise ValueError(f"wanted numbers, got .npy of {dtype}")
    if min(shape, default=0) < 0 or len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f".npy of {dtype} and shape {shape} has {len(data):,} bytes of data")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _npy_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Those of one column are mostly the same, and numpy parses Python code: they are kept."""
    return _kept_header(head) if len(head) <= _KEPT_BYTES else _parse_header(head)


def _parse_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, TypeError, SyntaxError, TokenError, MemoryError) as error:
        raise ValueError(f"its .npy header is damaged: {error}") from None
    return shape, fortran, dtype, file.tell()


_kept_header = lru_cache(1024)(_parse_header)


def _cast(found: Any, value: Value) -> Array:
    array = found if isinstance(found, np.ndarray) else np.array(found)  # lists of unequal lengths are a ValueError
    if not array.size:
        return array.astype(_dtype(value))
    if isinstance(value, Int64):
        if array.dtype.kind not in "iu" or (array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max):
            raise ValueError("wanted whole numbers of 64 bits")
        return array.astype(np.int64)
    if array.dtype.kind not in "iuf":
        raise ValueError("wanted numbers")
    return _as_float32(array)


def _as_float32(array: Array) -> Array:
    with np.errstate(over="ignore"):
        cast = array.astype(np.float32)
    if not np.array_equal(np.isfinite(cast), np.isfinite(array)):
        raise ValueError("wanted numbers that Float32 can hold")
    return cast


def _shaped(array: Array, value: Value) -> Array:
    if array.shape == value.shape or (array.ndim <= 1 and array.size == value.count):
        return array.reshape(value.shape)
    if array.ndim <= 1:
        raise ValueError(f"wanted {value.count:,} number{'s' * (value.count != 1)}, got {array.size:,}")
    raise ValueError(f"wanted numbers of shape {value.shape}, got {array.shape}")


def _listed(array: Array, value: Value) -> Array:
    """A list of items: nested as they are, or all numbers in a row."""
    if array.ndim > 1 and array.shape[1:] == value.shape:
        return array
    if array.ndim > 1 or array.size % value.count:
        raise ValueError(f"wanted a list of items of shape {value.shape}, got numbers of shape {array.shape}")
    return array.reshape(-1, *value.shape)


def _ragged(lists: Sequence[Array], value: Value) -> RaggedColumn:
    joined = np.concatenate(lists) if lists else np.zeros((0, *value.shape), _dtype(value))
    return RaggedColumn(joined, _splits([len(one) for one in lists]))


def _splits(sizes: list[int]) -> npt.NDArray[np.int64]:
    splits = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=splits[1:])
    return splits


def _dtype(value: Value) -> type[np.int64 | np.float32]:
    return np.int64 if isinstance(value, Int64) else np.float32
