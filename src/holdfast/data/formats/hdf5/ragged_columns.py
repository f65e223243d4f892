"""Reads columns that are stored as values and offsets, as schema_layout.py describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ....schema import Bytes, Column, Ragged, Value
from ..columns import BytesColumn, ColumnData, RaggedColumn
from ..gather import gather_rows
from .schema_layout import (
    IncompatibleTypeError,
    InconsistentFileError,
    family,
    in_dtype,
    offsets_name,
    stored_column,
    value_of,
    values_per_row,
)

# Begins to read rows of a dataset, and returns a function that returns them.
BeginRun = Callable[[h5py.Dataset, int, int], Callable[[], npt.NDArray[Any]]]
_NEAR_ROWS = 256  # rows this close to each other are one read


class PackedColumn:
    """One such group. Raises InconsistentFileError if its datasets contradict its attribute."""

    def __init__(self, group: h5py.Group) -> None:
        column = stored_column(group)
        assert column is not None
        self.column = column
        self._group = group
        self._per_row = values_per_row(column)
        self._splits = _dataset(group, offsets_name(column))
        if not len(self._splits) or (len(self._splits) - 1) % self._per_row or self._splits.dtype != np.int64:
            raise InconsistentFileError(
                f"has {len(self._splits):,} offsets of {self._splits.dtype}, which do not fit {column!r}"
            )

    def __len__(self) -> int:
        return (len(self._splits) - 1) // self._per_row

    @property
    def rows_per_chunk(self) -> int:
        return max(1, self._splits.chunks[0] // self._per_row) if self._splits.chunks else 1

    def check_fit(self, want: Column) -> None:
        have, value = self.column, value_of(self.column)
        same = isinstance(have, Ragged) == isinstance(want, Ragged) and family(value_of(want)) == family(value)
        if isinstance(have, Ragged) and isinstance(want, Ragged):
            same = same and have.depth == want.depth
        if not same or value_of(want).count != value.count:
            raise IncompatibleTypeError(f"holds {have!r}, expected {want!r}")

    def begin(self, rows: Sequence[int], want: Column, begin_run: BeginRun) -> Callable[[], ColumnData]:
        """Reads the offsets of these rows and begins to read their values; returns a function that returns the rows."""
        self.check_fit(want)
        finish = self._begin_selected(rows, want, begin_run)
        return finish if isinstance(value_of(want), Bytes) else lambda: in_dtype(finish(), value_of(want))

    def _begin_selected(self, rows: Sequence[int], want: Column, begin_run: BeginRun) -> Callable[[], ColumnData]:
        if isinstance(rows, range):
            return self._begin(rows.start, rows.stop, want, begin_run)
        if not rows:
            return self._begin(0, 0, want, begin_run)
        unique, inverse = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        groups = np.split(unique, np.flatnonzero(np.diff(unique) > _NEAR_ROWS) + 1)
        begun = [self._begin(int(group[0]), int(group[-1]) + 1, want, begin_run) for group in groups]
        which = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        inside = np.concatenate([group - group[0] for group in groups])
        return lambda: gather_rows([{"": finish()} for finish in begun], which[inverse], inside[inverse])[""]

    def _begin(self, start: int, stop: int, want: Column, begin_run: BeginRun) -> Callable[[], ColumnData]:
        splits = _read_splits(self._splits, start * self._per_row, stop * self._per_row, begin_run)
        return _begin_values(self._group, self.column, want, splits, begin_run)


def _begin_values(
    group: h5py.Group, have: Column, want: Column, splits: npt.NDArray[np.int64], begin_run: BeginRun
) -> Callable[[], ColumnData]:
    """Begins to read the column with these offsets, which may begin anywhere in the values."""
    first, last = int(splits[0]), int(splits[-1])
    if isinstance(have, Bytes):
        values = _dataset(group, "values")
        if values.dtype != np.uint8 or values.ndim != 1:
            raise InconsistentFileError(
                f"has values of {values.dtype} in {group.name!r}, expected bytes: the file is corrupt"
            )
        finish = _begin_items(values, first, last, begin_run)
        per_item = want.count if isinstance(want, Value) and want.shape else 0
        return lambda: BytesColumn(finish(), splits - first, per_item)
    assert isinstance(have, Ragged)
    assert isinstance(want, Ragged)
    inner = group["values"]
    if isinstance(inner, h5py.Group):
        times = values_per_row(have.inner)
        below = _read_splits(_dataset(inner, offsets_name(have.inner)), first * times, last * times, begin_run)
        nested = _begin_values(inner, have.inner, want.inner, below, begin_run)
        return lambda: RaggedColumn(nested(), splits - first)
    finish = _begin_items(inner, first, last, begin_run)
    return lambda: RaggedColumn(finish().reshape(last - first, *want.value.shape), splits - first)


def _dataset(group: h5py.Group, name: str) -> h5py.Dataset:
    found = group.get(name)
    if not isinstance(found, h5py.Dataset) or not found.shape:
        raise InconsistentFileError(f"has no dataset {name!r}, which its attribute requires")
    return found


def _read_splits(dataset: h5py.Dataset, start: int, stop: int, begin_run: BeginRun) -> npt.NDArray[np.int64]:
    """Checks the offsets: nothing else in the file tells whether they are right."""
    if stop >= len(dataset):
        raise InconsistentFileError(f"has {len(dataset):,} offsets in {dataset.name!r}, expected more than {stop:,}")
    splits = np.asarray(begin_run(dataset, start, stop + 1)(), np.int64)
    if splits[0] < 0 or (np.diff(splits) < 0).any():
        raise InconsistentFileError(f"has offsets in {dataset.name!r} that decrease: the file is corrupt")
    return splits


def _begin_items(dataset: h5py.Dataset, first: int, last: int, begin_run: BeginRun) -> Callable[[], npt.NDArray[Any]]:
    if last > len(dataset):
        raise InconsistentFileError(
            f"has offsets up to {last:,}, but {len(dataset):,} values in {dataset.name!r}: the file is corrupt"
        )
    return begin_run(dataset, first, last)
