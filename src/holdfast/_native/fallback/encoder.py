"""Encodes columns to framed tf.train.Example or SequenceExample records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from ..constants import BYTES, FIXED, NESTED, ColumnBuffers, Field
from .protobuf import DTYPES, FieldSpec, check_fields, pack_head, pack_varints
from .tfrecord_frames import as_array, seal

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Offsets = npt.NDArray[np.int64]

_Number = TypeVar("_Number", bound=np.generic)

_NO_OFFSETS = np.zeros(0, np.int64)
_MAX = (1 << 64) - 1


def _open(buffer: Buffer, dtype: type[_Number]) -> npt.NDArray[_Number]:
    raw = as_array(buffer)
    if raw.size % np.dtype(dtype).itemsize == 0:
        values: npt.NDArray[_Number] = raw.view(dtype)
        if not values.size or values.flags.aligned:
            return values
    raise ValueError("expected a column's buffer to hold complete, aligned values")


def _open_offsets(buffer: Buffer, there: bool) -> Offsets:
    return _open(buffer, np.int64) if there else _NO_OFFSETS


def _rising(offsets: Offsets) -> bool:
    return not offsets.size or bool(offsets[0] >= 0 and (offsets[1:] >= offsets[:-1]).all())


def _within(message: bytes, number: int) -> bytes:
    return pack_head(number, len(message)) + message


class _ColumnView:
    """A column in the caller's buffers."""

    def __init__(self, field: FieldSpec, buffers: ColumnBuffers) -> None:
        if not isinstance(buffers, tuple) or len(buffers) != 4:
            raise TypeError("a column is a tuple (values, ends, steps, rows)")
        _, has_ends, has_steps, has_rows = field.has_arrays
        self.field = field
        self.entry_key = _within(field.key, 1)
        self.values = _open(buffers[0], DTYPES[field.kind])
        self.ends = _open_offsets(buffers[1], has_ends)
        self.steps = _open_offsets(buffers[2], has_steps)
        self.rows = _open_offsets(buffers[3], has_rows)

    def check(self, rows: int) -> str:
        """Returns what is wrong; empty if every index lies within its array and there are `rows` rows."""
        field = self.field
        items = rows
        if field.depth != FIXED:
            if self.rows.size != rows + 1 or not _rising(self.rows):
                return "row splits must be rising and one more than there are rows"
            items = int(self.rows[rows])
        if field.depth == NESTED:
            if self.steps.size <= items or not _rising(self.steps):
                return "step splits must be rising and one more than there are steps"
            items = int(self.steps[items])
        values = items * field.count
        if values > _MAX:
            return "splits point behind the values"
        if field.kind != BYTES:
            return "there are fewer values than rows ask for" if values > self.values.size else ""
        if self.ends.size <= values or not _rising(self.ends) or self.ends[values] > self.values.size:
            return "offsets must be rising, one more than there are values, and within the bytes"
        return ""

    def entry(self, row: int, as_list: bool) -> bytes:
        """Encodes one entry of the map: key and value."""
        count = self.field.count
        a, b = (row, row + 1) if self.field.depth == FIXED else (int(self.rows[row]), int(self.rows[row + 1]))
        if as_list:
            value = b"".join([_within(self._step(i), 1) for i in range(a, b)])
        else:
            value = self._feature(a * count, b * count)
        return _within(self.entry_key + _within(value, 2), 1)

    def _step(self, i: int) -> bytes:
        count = self.field.count
        if self.field.depth == NESTED:
            return self._feature(int(self.steps[i]) * count, int(self.steps[i + 1]) * count)
        return self._feature(i * count, (i + 1) * count)

    def _feature(self, a: int, b: int) -> bytes:
        """Encodes a Feature with the values [a, b)."""
        values = self._bytes_list(a, b) if self.field.kind == BYTES else self._number_list(a, b)
        return _within(values, self.field.kind)

    def _bytes_list(self, a: int, b: int) -> bytes:
        ends = self.ends[a : b + 1].tolist()
        return b"".join([_within(self.values[ends[i] : ends[i + 1]].tobytes(), 1) for i in range(b - a)])

    def _number_list(self, a: int, b: int) -> bytes:
        if a == b:
            return b""
        values = self.values[a:b]
        return _within(pack_varints(values.view(np.uint64)) if values.dtype == np.int64 else values.tobytes(), 1)


class Encoder:
    """Encodes columns to framed Example or SequenceExample records."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = check_fields(fields)

    def encode(
        self, columns: Sequence[ColumnBuffers], rows: int, first: int, sequence: bool, stop_bytes: int, /
    ) -> tuple[bytearray, int]:
        if rows < 0 or not 0 <= first <= rows or stop_bytes < 1:
            raise ValueError("rows, first and stop_bytes must be within bounds")
        views = self._views(columns, rows, sequence)
        out = bytearray()
        row = first
        while row < rows and len(out) < stop_bytes:
            out += seal(_record(views, row, sequence))
            row += 1
        return out, row

    def _views(self, columns: Sequence[ColumnBuffers], rows: int, sequence: bool) -> list[_ColumnView]:
        if len(columns) != len(self._fields):
            raise ValueError(f"expected {len(self._fields)} columns, got {len(columns)}")
        views = []
        for i, field in enumerate(self._fields):
            view = _ColumnView(field, columns[i])
            wrong = view.check(rows)
            if field.depth == NESTED and not sequence:
                wrong = "lists of lists need a SequenceExample"
            if wrong:
                raise ValueError(f"column {i}: {wrong}")
            views.append(view)
        return views


def _record(views: list[_ColumnView], row: int, sequence: bool) -> bytes:
    """Encodes a row. With `sequence`, columns that are not fixed become feature lists, else lists of values."""
    lists = [sequence and view.field.depth != FIXED for view in views]
    features = [view.entry(row, False) for view, as_list in zip(views, lists, strict=True) if not as_list]
    record = _within(b"".join(features), 1)
    if sequence:
        feature_lists = [view.entry(row, True) for view, as_list in zip(views, lists, strict=True) if as_list]
        record += _within(b"".join(feature_lists), 2)
    return record
