"""Builds columns from single items, from defaults, and from rows of many batches (`RowPool`)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..._native import codec
from ...errors import SchemaError
from ...schema import Bytes, Column, Ragged, Schema, Value
from .columns import Batch, BytesColumn, ColumnData, Ints, RaggedColumn, ZeroCopyBytesColumn, cast, dtype_of, rows_of

_INT64 = np.dtype(np.int64)
_UINT8 = np.dtype(np.uint8)


# ---- from single items


def join_bytes(items: Sequence[bytes | bytearray | memoryview], per_item: int = 0) -> BytesColumn:
    offsets = np.zeros(len(items) + 1, np.int64)
    np.cumsum([len(item) for item in items], out=offsets[1:])
    # A bytearray, because torch takes no read-only array.
    return BytesColumn(np.frombuffer(bytearray().join(items), np.uint8), offsets, per_item)


def fill(name: str, value: Value | Ragged, rows: int) -> ColumnData:
    """Returns a column of defaults."""
    if isinstance(value, Ragged):
        nothing = b"" if isinstance(value.inner, Bytes) else 0
        inner = value.inner if isinstance(value.inner, Ragged) else value.inner.alike(default=nothing)
        return RaggedColumn(fill(name, inner, 0), np.zeros(rows + 1, np.int64))
    if isinstance(value, Bytes):
        return join_bytes([default_bytes(name, value)] * (rows * value.count), value.count if value.shape else 0)
    return np.broadcast_to(default_numbers(name, value), (rows, *value.shape)).copy()


def default_numbers(name: str, value: Value) -> Any:
    """Returns the default as an array of the column's dtype and shape. Raises SchemaError if it does not fit."""
    dtype = dtype_of(value)
    try:
        given = np.asarray(value.default)
        if given.dtype.kind in "fO" and all(isinstance(one, int) for one in np.asarray(value.default, object).flat):
            given = np.array(value.default, np.uint64)  # numpy turns [1, 2**63] into floats
        if given.dtype.kind not in ("biuf" if dtype.kind == "f" else "biu"):
            raise TypeError(f"{given.dtype} is not {dtype}")
        return np.broadcast_to(cast(given, dtype), value.shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"column {name!r}: the default {value.default!r} does not fit {value!r}: {error}") from None


def default_bytes(name: str, value: Value) -> bytes:
    given = value.default
    if isinstance(given, str):
        return given.encode()
    if not isinstance(given, (bytes, bytearray)):
        raise SchemaError(f"column {name!r}: expected a default of bytes, got {given!r}")
    return bytes(given)


# ---- from rows of many batches


def gather_rows(sources: Sequence[Batch], which: Any, rows: Any) -> Batch:
    """Row i is row rows[i] of sources[which[i]]. Nothing of the sources is kept."""
    if not sources:
        raise ValueError("expected at least one batch to take rows from")
    pool = RowPool()
    for slot, batch in enumerate(sources):
        pool.put(slot, batch)
    return pool.take(which, rows)


class RowPool:
    """Batches to take rows from, each in a slot: a small number from 0 up.

    A slot shares the memory of its batch; rows are copied when they are taken. The first batch decides which columns
    there are. Any thread may put, drop and take at any time.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._gatherer: codec.Gatherer | None = None
        self._makers: list[tuple[str, _Maker]] = []
        self._held: dict[int, int] = {}  # slot: bytes
        self._change = threading.Lock()

    def __len__(self) -> int:
        """Returns how many slots are in use."""
        return len(self._held)

    def __contains__(self, slot: object) -> bool:
        return slot in self._held

    @property
    def nbytes(self) -> int:
        """The bytes of all slots together."""
        with self._change:
            return sum(self._held.values())

    def size_in(self, slot: int) -> int:
        """Returns how many bytes the batch in a slot has."""
        return self._held[slot]

    def put(self, slot: int, batch: Batch) -> None:
        """Puts a batch into a slot, in place of the one that was there."""
        kinds = {name: _kind_of(name, column) for name, column in batch.items()}
        rows = rows_of(batch)
        with self._change:
            gatherer = self._gatherer or self._begin(kinds)
            _check_kinds(self._kinds, kinds)
            buffers = [buffer for name in self._kinds for buffer in _buffers_of(batch[name])]
            gatherer.put(slot, rows, buffers)
            self._held[slot] = _size_of(buffers)

    def _begin(self, kinds: dict[str, _Kind]) -> codec.Gatherer:
        if not kinds:
            raise SchemaError("the batch has no columns")
        self._kinds = kinds
        self._makers = [(name, _maker_of(kind)) for name, kind in kinds.items()]
        self._gatherer = codec.Gatherer([(kind.counts, kind.width_bytes) for kind in kinds.values()])
        return self._gatherer

    def drop(self, slot: int) -> None:
        with self._change:
            if self._gatherer is None or slot not in self._held:
                raise IndexError(f"slot {slot} holds nothing")
            del self._held[slot]
            self._gatherer.drop(slot)

    def take(self, which_slots: Any, rows: Any) -> Batch:
        """Returns a batch whose row i is row rows[i] of the batch in slot which_slots[i]."""
        if self._gatherer is None:
            raise IndexError("there is no batch to take rows from")
        slots, numbers = _numbers("slots", which_slots), _numbers("rows", rows)
        n = len(numbers)
        taken = iter(self._gatherer.take(slots, numbers))
        return {name: make(n, taken) for name, make in self._makers}


def _numbers(name: str, given: Any) -> Ints:
    if type(given) is np.ndarray and given.dtype == _INT64 and given.ndim == 1 and given.flags.c_contiguous:
        return given
    array = np.asarray(given)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise TypeError(f"expected {name} as a list of integers, got {array.dtype} of shape {array.shape}")
    return np.ascontiguousarray(array, np.int64)


# ---- from columns to the codec's buffers


class _Kind(NamedTuple):
    """The type of a column, which must be the same in all batches of a pool."""

    ragged: int  # lists of lists: 2
    strings: int | None  # a row's or item's strings as BytesColumn.per_item says, or None: numbers
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return (1,) * self.ragged + (() if self.strings is None else (self.strings or 1,))

    @property
    def width_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        shape = "".join([f"({', '.join(map(str, self.shape))})"] * bool(self.shape))
        inner = f"{self.dtype}{shape}" if self.strings is None else f"bytes{f'({self.strings})' * bool(self.strings)}"
        return "lists of " * self.ragged + inner


def _kind_of(name: str, column: ColumnData) -> _Kind:
    ragged = 0
    while isinstance(column, RaggedColumn):
        column, ragged = column._values, ragged + 1
    if isinstance(column, BytesColumn):
        return _Kind(ragged, column.per_item, _UINT8, ())
    if not isinstance(column, np.ndarray) or column.ndim == 0 or column.dtype.hasobject:
        what = f"{column.dtype} of shape {column.shape}" if isinstance(column, np.ndarray) else type(column).__name__
        raise SchemaError(f"column {name!r}: expected an array of numbers, a BytesColumn or a RaggedColumn, got {what}")
    return _Kind(ragged, None, column.dtype, column.shape[1:])


def _check_kinds(expected: Mapping[str, _Kind], got: Mapping[str, _Kind]) -> None:
    if expected.keys() != got.keys():
        raise SchemaError(f"expected the columns of the batches before, {', '.join(expected)}; got {', '.join(got)}")
    for name, kind in expected.items():
        if got[name] != kind:
            raise SchemaError(f"column {name!r}: expected {kind} as in the batches before, got {got[name]}")


def _buffers_of(column: ColumnData) -> Iterator[Any]:
    """Yields complete buffers, also with bytes outside the column: the codec finds the rows by their offsets."""
    if isinstance(column, RaggedColumn):
        yield np.ascontiguousarray(column._splits, np.int64)
        inner = column._values
        yield from _buffers_of(inner.copy() if isinstance(inner, ZeroCopyBytesColumn) else inner)
    elif isinstance(column, ZeroCopyBytesColumn):
        yield np.ascontiguousarray(column._spans, np.int64).reshape(-1)
        yield np.ascontiguousarray(column._values)
    elif isinstance(column, BytesColumn):
        yield np.ascontiguousarray(column._offsets, np.int64)
        yield np.ascontiguousarray(column._values)
    else:
        yield np.ascontiguousarray(column).reshape(-1).view(np.uint8)  # a plain buffer, whatever the dtype


def _size_of(buffers: list[Any]) -> int:
    """Returns their size; memory that two columns share is counted once."""
    sizes: dict[int, int] = {}
    for array in buffers:
        address = array.__array_interface__["data"][0]
        sizes[address] = max(sizes.get(address, 0), array.nbytes)
    return sum(sizes.values())


# ---- from the codec's buffers to columns


_Maker = Callable[[int, Iterator[Any]], ColumnData]


def _maker_of(kind: _Kind) -> _Maker:
    """Returns a function that makes a column from its number of rows and the buffers of Gatherer.take.

    It runs for every batch, so everything that follows from the kind is computed here, once.
    """
    make = _array_maker(kind) if kind.strings is None else _bytes_maker(kind.strings)
    for _ in range(kind.ragged):
        make = _ragged_maker(make)
    return make


def _array_maker(kind: _Kind) -> _Maker:
    ndarray, dtype, shape = np.ndarray, kind.dtype, kind.shape
    return lambda n, buffers: ndarray((n, *shape), dtype, next(buffers))


def _bytes_maker(per_item: int) -> _Maker:
    frombuffer = np.frombuffer

    def make(_: int, buffers: Iterator[Any]) -> BytesColumn:
        offsets = frombuffer(next(buffers), _INT64)
        return BytesColumn(frombuffer(next(buffers), _UINT8), offsets, per_item)

    return make


def _ragged_maker(inner: _Maker) -> _Maker:
    frombuffer = np.frombuffer

    def make(_: int, buffers: Iterator[Any]) -> RaggedColumn:
        splits = frombuffer(next(buffers), _INT64)
        return RaggedColumn(inner(int(splits[-1]), buffers), splits)

    return make


def empty_batch(schema: Schema) -> Batch:
    """Returns these columns without rows."""
    return {name: _empty(name, column) for name, column in schema.items()}


def _empty(name: str, column: Column) -> ColumnData:
    if isinstance(column, Ragged):
        return RaggedColumn(_empty(name, column.inner), np.zeros(1, np.int64))
    return fill(name, column.alike(default=b"" if isinstance(column, Bytes) else 0), 0)
