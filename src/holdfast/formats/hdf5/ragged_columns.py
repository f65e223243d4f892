"""Columns that lie in a file as values and their ends, as layout.py describes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ...schema import Bytes, Column, Ragged, Value
from ..columns import BytesColumn, ColumnData, RaggedColumn
from ..gather import gather_rows
from .schema_layout import Damaged, Unfit, family, in_dtype, marked_column, values_per_row

_NEAR_ROWS = 256  # rows this near to each other are one read


class PackedColumn:
    """One such group. Damaged: its datasets are not what its mark says."""

    def __init__(self, group: h5py.Group) -> None:
        column = marked_column(group)
        assert column is not None
        self.column = column
        self._group = group
        self._per_row = values_per_row(column)
        self._ends = _dataset(group, "row_splits" if isinstance(column, Ragged) else "offsets")
        if not len(self._ends) or (len(self._ends) - 1) % self._per_row or self._ends.dtype != np.int64:
            raise Damaged(f"has {len(self._ends):,} ends of {self._ends.dtype}, which cannot be those of {column!r}")

    def __len__(self) -> int:
        return (len(self._ends) - 1) // self._per_row

    @property
    def rows_per_chunk(self) -> int:
        return max(1, self._ends.chunks[0] // self._per_row) if self._ends.chunks else 1

    def check_fit(self, want: Column) -> None:
        have, value = self.column, _value(self.column)
        same = isinstance(have, Ragged) == isinstance(want, Ragged) and family(_value(want)) == family(value)
        if isinstance(have, Ragged) and isinstance(want, Ragged):
            same = same and have.depth == want.depth
        if not same or _value(want).count != value.count:
            raise Unfit(f"holds {have!r}, expected {want!r}")

    def read(self, rows: Sequence[int], want: Column) -> ColumnData:
        self.check_fit(want)
        found = self._picked(rows, want)
        return found if isinstance(_value(want), Bytes) else in_dtype(found, _value(want))

    def _picked(self, rows: Sequence[int], want: Column) -> ColumnData:
        if isinstance(rows, range):
            return self._read(rows.start, rows.stop, want)
        if not rows:
            return self._read(0, 0, want)
        wanted, places = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        groups = np.split(wanted, np.flatnonzero(np.diff(wanted) > _NEAR_ROWS) + 1)
        sources = [{"": self._read(int(group[0]), int(group[-1]) + 1, want)} for group in groups]
        which = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        inside = np.concatenate([group - group[0] for group in groups])
        return gather_rows(sources, which[places], inside[places])[""]

    def _read(self, start: int, stop: int, want: Column) -> ColumnData:
        ends = _ends_of(self._ends, start * self._per_row, stop * self._per_row)
        return _read_values(self._group, self.column, want, ends)


def _read_values(group: h5py.Group, have: Column, want: Column, ends: npt.NDArray[np.int64]) -> ColumnData:
    """The column with these ends, which may begin anywhere in the values."""
    first, last = int(ends[0]), int(ends[-1])
    if isinstance(have, Bytes):
        values = _items(_dataset(group, "values"), first, last)
        if values.dtype != np.uint8 or values.ndim != 1:
            raise Damaged(f"has values of {values.dtype} in {group.name!r}, expected bytes: the file is damaged")
        return BytesColumn(values, ends - first, want.count if isinstance(want, Value) and want.shape else 0)
    assert isinstance(have, Ragged)
    assert isinstance(want, Ragged)
    inner = group["values"]
    if isinstance(inner, h5py.Group):
        name = "row_splits" if isinstance(have.inner, Ragged) else "offsets"
        times = values_per_row(have.inner)
        below = _ends_of(_dataset(inner, name), first * times, last * times)
        return RaggedColumn(_read_values(inner, have.inner, want.inner, below), ends - first)
    value = want.value
    return RaggedColumn(_items(inner, first, last).reshape(last - first, *value.shape), ends - first)


def _dataset(group: h5py.Group, name: str) -> h5py.Dataset:
    found = group.get(name)
    if not isinstance(found, h5py.Dataset) or not found.shape:
        raise Damaged(f"has no dataset {name!r}, which its mark speaks of")
    return found


def _ends_of(dataset: h5py.Dataset, start: int, stop: int) -> npt.NDArray[np.int64]:
    """Nothing else in the file says whether they are right: what follows them must not lead anywhere."""
    if stop >= len(dataset):
        raise Damaged(f"has {len(dataset):,} ends in {dataset.name!r}, expected more than {stop:,}")
    ends = np.asarray(dataset[start : stop + 1], np.int64)
    if ends[0] < 0 or (np.diff(ends) < 0).any():
        raise Damaged(f"has ends in {dataset.name!r} that go backwards: the file is damaged")
    return ends


def _items(dataset: h5py.Dataset, first: int, last: int) -> Any:
    if last > len(dataset):
        raise Damaged(f"has ends up to {last:,} of {len(dataset):,} in {dataset.name!r}: the file is damaged")
    return np.asarray(dataset[first:last])


def _value(column: Column) -> Value:
    return column.value if isinstance(column, Ragged) else column
