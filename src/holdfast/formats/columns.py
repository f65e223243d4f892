"""What a batch holds: numpy arrays for numbers of fixed shape, and two small types for what numpy has no array for.

Both are views: an item is a memoryview or a slice of the joined values, and a slice of a column shares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .._native import codec

Ints = npt.NDArray[np.int64]


class BytesColumn(Sequence[Any]):
    """Byte strings, joined: string i is `values[offsets[i]:offsets[i + 1]]`.

    A column of Bytes(n) has n strings a row; its items are then columns of n.
    """

    __slots__ = ("_offsets", "_values", "per_item")

    def __init__(self, values: npt.NDArray[np.uint8], offsets: Ints, per_item: int = 0) -> None:
        self._values = values
        self._offsets = offsets
        self.per_item = per_item  # 0: an item is one string

    @property
    def values(self) -> npt.NDArray[np.uint8]:
        """All bytes of this column's strings, joined."""
        return self._values[self._offsets[0] : self._offsets[-1]]

    @property
    def offsets(self) -> Ints:
        """Where each string begins in `values`, and where the last ends."""
        return self._offsets - self._offsets[0] if self._offsets[0] else self._offsets

    def __len__(self) -> int:
        return (len(self._offsets) - 1) // (self.per_item or 1)

    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            start, stop, step = i.indices(len(self))
            if step != 1:
                raise IndexError(f"a column is sliced in steps of 1, got {step}")
            return self.rows(start, max(start, stop))
        i = _position(i, len(self))
        if self.per_item:
            return BytesColumn(self._values, self.rows(i, i + 1)._offsets)
        return self._item(i)

    def _item(self, i: int) -> memoryview:
        return self._values[self._offsets[i] : self._offsets[i + 1]].data

    def rows(self, start: int, stop: int) -> BytesColumn:
        """Rows [start, stop), which must be there. Shares the bytes."""
        n = self.per_item or 1
        return BytesColumn(self._values, self._offsets[start * n : stop * n + 1], self.per_item)

    def split(self, size: int, pieces: int) -> Any:
        """The first `pieces` times `size` rows, `size` at a time, as codec.pieces wants them. Shares the bytes."""
        others = (("_values", self._values), ("per_item", self.per_item))
        return _spans(self._offsets, size * (self.per_item or 1), pieces), BytesColumn, "_offsets", others

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def tolist(self) -> list[Any]:
        """bytes objects, copied out."""
        if self.per_item:
            return [item.tolist() for item in self]
        joined, ends = self.values.tobytes(), self.offsets.tolist()  # once for all, not 20 times as slow
        return [joined[start:stop] for start, stop in pairwise(ends)]

    def copy(self) -> BytesColumn:
        """One that keeps nothing alive but itself."""
        return BytesColumn(self.values.copy(), self.offsets.copy(), self.per_item)

    def __repr__(self) -> str:
        return f"<BytesColumn of {len(self):,}, {int(self._offsets[-1] - self._offsets[0]):,} bytes>"


class LentBytesColumn(BytesColumn):
    """Byte strings that stay where they were read: string i is `buffer[spans[i, 0]:spans[i, 1]]`.

    Large values are not copied at all this way. `values` and `offsets` join them when they are asked for.
    """

    __slots__ = ("_joined", "_spans")

    def __init__(self, buffer: npt.NDArray[np.uint8], spans: Ints) -> None:
        self._values = buffer
        self._spans = spans
        self._joined: BytesColumn | None = None
        self.per_item = 0

    def _join(self) -> BytesColumn:
        if self._joined is None:
            offsets = np.zeros(len(self) + 1, np.int64)
            np.cumsum(self._spans[:, 1] - self._spans[:, 0], out=offsets[1:])
            parts = [self._values[start:stop] for start, stop in self._spans]
            self._joined = BytesColumn(np.concatenate(parts) if parts else self._values[:0], offsets)
        return self._joined

    @property
    def values(self) -> npt.NDArray[np.uint8]:
        return self._join().values

    @property
    def offsets(self) -> Ints:
        return self._join().offsets

    def __len__(self) -> int:
        return len(self._spans)

    def rows(self, start: int, stop: int) -> BytesColumn:
        return LentBytesColumn(self._values, self._spans[start:stop])

    def _item(self, i: int) -> memoryview:
        return self._values[self._spans[i, 0] : self._spans[i, 1]].data

    def tolist(self) -> list[Any]:
        whole = self._values.data
        return [bytes(whole[start:stop]) for start, stop in self._spans.tolist()]

    def copy(self) -> BytesColumn:
        joined = self._join()
        self._joined = None
        return joined

    def __repr__(self) -> str:
        return f"<BytesColumn of {len(self):,}, {int((self._spans[:, 1] - self._spans[:, 0]).sum()):,} bytes>"


class RaggedColumn(Sequence[Any]):
    """Lists of any length: row i is `values[row_splits[i]:row_splits[i + 1]]`.

    `values` is an array, a BytesColumn, or, for lists of lists, a RaggedColumn.
    """

    __slots__ = ("_splits", "_values")

    def __init__(self, values: Any, row_splits: Ints) -> None:
        self._values = values
        self._splits = row_splits

    @property
    def values(self) -> Any:
        """All rows' items, joined."""
        return self._values[int(self._splits[0]) : int(self._splits[-1])]

    @property
    def row_splits(self) -> Ints:
        """Where each row begins in `values`, and where the last ends."""
        return self._splits - self._splits[0] if self._splits[0] else self._splits

    def __len__(self) -> int:
        return len(self._splits) - 1

    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            start, stop, step = i.indices(len(self))
            if step != 1:
                raise IndexError(f"a column is sliced in steps of 1, got {step}")
            return self.rows(start, max(start, stop))
        i = _position(i, len(self))
        return self._values[int(self._splits[i]) : int(self._splits[i + 1])]

    def rows(self, start: int, stop: int) -> RaggedColumn:
        """Rows [start, stop), which must be there. Shares the items."""
        return RaggedColumn(self._values, self._splits[start : stop + 1])

    def split(self, size: int, pieces: int) -> Any:
        """The first `pieces` times `size` rows, `size` at a time, as codec.pieces wants them. Shares the items."""
        return _spans(self._splits, size, pieces), RaggedColumn, "_splits", (("_values", self._values),)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def tolist(self) -> list[Any]:
        return [row.tolist() for row in self]

    def copy(self) -> RaggedColumn:
        """One that keeps nothing alive but itself."""
        return RaggedColumn(self.values.copy(), self.row_splits.copy())

    def __repr__(self) -> str:
        return f"<RaggedColumn of {len(self):,} rows, {int(self._splits[-1] - self._splits[0]):,} items>"


def _position(i: Any, n: int) -> int:
    position = i.__index__()
    if not -n <= position < n:
        raise IndexError(f"expected a row from {-n} to {n - 1}, got {i}")
    return int(position % n)


ColumnData = npt.NDArray[Any] | BytesColumn | RaggedColumn
Batch = dict[str, ColumnData]


def split_batch(batch: Batch, size: int, rows: int) -> Iterator[Batch]:
    """The first `rows` rows, `size` at a time and the rest in the end, without a copy.

    All columns are split at once: slicing them for every batch would take as long as decoding small records.
    """
    pieces = rows // size
    columns = tuple(_split_column(column, size, pieces) for column in batch.values())
    yield from codec.pieces(tuple(batch), columns, pieces)
    if rows % size:
        yield {name: column[pieces * size : rows] for name, column in batch.items()}


def _split_column(column: ColumnData, size: int, pieces: int) -> Any:
    if isinstance(column, np.ndarray):
        return column[: pieces * size].reshape(pieces, size, *column.shape[1:])
    return column.split(size, pieces)


def _spans(ends: Ints, size: int, pieces: int) -> Ints:
    """ends[0 : size + 1], ends[size : 2 * size + 1], and so on, as rows."""
    return np.ndarray((pieces, size + 1), ends.dtype, ends, 0, (size * ends.itemsize, ends.itemsize))
