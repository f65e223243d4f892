"""Defines the columns of a batch: numpy arrays for numbers of fixed shape, BytesColumn and RaggedColumn for the rest.

Both are views: an item is a memoryview or a slice of the joined values, and a slice of a column shares them.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._native import codec
from ..._util.text import names_there
from ...errors import SchemaError
from ...schema import DTYPES, Array, Column, Ragged, Schema, Value

Ints = npt.NDArray[np.int64]


class BytesColumn(Sequence[Any]):
    """Joined byte strings: string i is `values[offsets[i]:offsets[i + 1]]`.

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
        """Returns the rows [start, stop), which must exist. Shares the bytes."""
        n = self.per_item or 1
        return BytesColumn(self._values, self._offsets[start * n : stop * n + 1], self.per_item)

    def split(self, size: int, pieces: int) -> Any:
        """Splits the first `pieces * size` rows into pieces of `size`, in the form codec.pieces takes. Shares the
        bytes."""
        others = (("_values", self._values), ("per_item", self.per_item))
        return _spans(self._offsets, size * (self.per_item or 1), pieces), BytesColumn, "_offsets", others

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def tolist(self) -> list[Any]:
        """Returns copies as bytes objects."""
        if self.per_item:
            return [item.tolist() for item in self]
        joined, ends = self.values.tobytes(), self.offsets.tolist()  # 20 times as fast as one by one
        return [joined[start:stop] for start, stop in pairwise(ends)]

    def copy(self) -> BytesColumn:
        """Returns a column that owns its memory."""
        return BytesColumn(self.values.copy(), self.offsets.copy(), self.per_item)

    def __repr__(self) -> str:
        return f"<BytesColumn of {len(self):,}, {int(self._offsets[-1] - self._offsets[0]):,} bytes>"


class ZeroCopyBytesColumn(BytesColumn):
    """Byte strings in the buffer that they were read into: string i is `buffer[spans[i, 0]:spans[i, 1]]`.

    Large values are never copied this way. `values` and `offsets` join them at first use.
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
        return ZeroCopyBytesColumn(self._values, self._spans[start:stop])

    def _item(self, i: int) -> memoryview:
        return self._values[self._spans[i, 0] : self._spans[i, 1]].data

    def tolist(self) -> list[Any]:
        memory = self._values.data
        return [bytes(memory[start:stop]) for start, stop in self._spans.tolist()]

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
        """Returns the rows [start, stop), which must exist. Shares the items."""
        return RaggedColumn(self._values, self._splits[start : stop + 1])

    def split(self, size: int, pieces: int) -> Any:
        """Splits the first `pieces * size` rows into pieces of `size`, in the form codec.pieces takes. Shares the
        items."""
        return _spans(self._splits, size, pieces), RaggedColumn, "_splits", (("_values", self._values),)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def tolist(self) -> list[Any]:
        return [row.tolist() for row in self]

    def copy(self) -> RaggedColumn:
        """Returns a column that owns its memory."""
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
    """Yields the first `rows` rows, `size` at a time and the remainder last, without a copy.

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
    """Returns a view with the rows ends[0 : size + 1], ends[size : 2 * size + 1], and so on."""
    return np.ndarray((pieces, size + 1), ends.dtype, ends, 0, (size * ends.itemsize, ends.itemsize))


def join_offsets(offsets: Sequence[Ints]) -> Ints:
    """Joins the offsets of consecutive pieces of a column: from 0 on, whatever each piece starts with."""
    joined, total = [np.zeros(1, np.int64)], 0
    for each in offsets:
        first = int(each[0])
        joined.append(each[1:] + (total - first))
        total += int(each[-1]) - first
    return np.concatenate(joined)


# Casts to the dtype of a column, which raise Misfit instead of changing a value silently.

_NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in DTYPES}
_UINT8 = np.dtype(np.uint8)

CHUNK_BYTES = 1 << 19  # of a chunk of an HDF5 file or of a frame for the central writer
_MAX_CHUNK_ROWS = 1 << 14


def is_exact(value: Value) -> bool:
    """Returns whether floats must not be rounded to fit the column."""
    return isinstance(value, Array) and value.exact


def dtype_of(value: Value) -> np.dtype[Any]:
    """Returns the dtype of a column's values in a batch; those of Bytes are joined as uint8."""
    return _NUMPY[value.dtype] if isinstance(value, Array) else _UINT8


def plain_column(column: Column) -> Column:
    """Returns the column without its key and default, but with its storage options."""
    stored: dict[str, Any] = {"codec": column.codec, "chunk_rows": column.chunk_rows}
    return Ragged(column.inner, **stored) if isinstance(column, Ragged) else column.alike(**stored)


def row_bytes_of(column: Column) -> int:
    """Returns the size of a row of a fixed shape; 0 where rows differ in size."""
    return dtype_of(column).itemsize * column.count if isinstance(column, Array) else 0


def default_chunk_rows(schema: Schema) -> int:
    """Returns how many rows of the widest column of a fixed shape fill a chunk."""
    widest = max(map(row_bytes_of, schema.values()), default=0) or 8
    return max(1, min(_MAX_CHUNK_ROWS, CHUNK_BYTES // widest))


class Misfit(ValueError):
    """A number that a dtype cannot hold. `row` is its position along the first axis of the array."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(f"got {what}")
        self.row, self.what = row, what

    def of_list(self, splits: Ints) -> Misfit:
        """Returns the same error with the row of the list that contains the number."""
        return Misfit(int(np.searchsorted(splits, self.row, "right")) - 1, self.what)


def cast(array: npt.NDArray[Any], dtype: np.dtype[Any], *, exact: bool = False) -> npt.NDArray[Any]:
    """Returns the numbers in this dtype, without a copy if they have it already.

    Raises Misfit for an integer that is out of range or that a float cannot hold exactly, and for a number that would
    become infinite. Floats are rounded, unless `exact`: then they must have the same bits when they are cast back.
    """
    if array.dtype == dtype:
        # h5py's dtypes may carry metadata, of an enumeration for instance, which equality ignores.
        return array if array.dtype.metadata is None else array.view(dtype)
    if dtype.kind in "biu":
        _check_range(array, dtype)
        return array.astype(dtype)
    try:
        with np.errstate(over="raise", invalid="ignore"):  # numpy detects it while casting, in one pass
            found = array.astype(dtype)
    except FloatingPointError:
        with np.errstate(over="ignore", invalid="ignore"):
            found = array.astype(dtype)
        _refuse(array, np.isfinite(found) != np.isfinite(array), f"{dtype} cannot hold" + " exactly" * exact)
    if array.dtype.kind in "iu":
        _check_integers(array, dtype)
    elif exact and array.dtype.kind == "f":
        bits = f"u{array.dtype.itemsize}"
        with np.errstate(invalid="ignore"):
            back = found.astype(array.dtype)
        _refuse(array, back.view(bits) != np.ascontiguousarray(array).view(bits), f"{dtype} cannot hold exactly")
    return found


def cast_column(column: ColumnData, dtype: np.dtype[Any], *, exact: bool = False) -> ColumnData:
    """Casts an array, or the values of lists. Misfit names the outermost row.

    `exact` does not check floats that become wider: at worst a signaling NaN becomes a quiet one.
    """
    if not isinstance(column, RaggedColumn):
        array = np.asarray(column)
        return cast(array, dtype, exact=exact and array.dtype.itemsize > dtype.itemsize)
    values, splits = column.values, column.row_splits
    try:
        return RaggedColumn(cast_column(values, dtype, exact=exact), splits)
    except Misfit as error:
        raise error.of_list(splits) from None


def _check_range(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> None:
    if not array.size or np.can_cast(array.dtype, dtype, "safe"):
        return
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if int(array.min()) < low or int(array.max()) > high:
        # Compared as Python's numbers: numpy would compare int64 with uint64 as floats.
        wrong = np.array([not low <= one <= high for one in array.reshape(-1).tolist()], bool)
        _refuse(array, wrong, f"{dtype} cannot hold")


def _check_integers(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Raises Misfit for integers that this float dtype cannot hold: it holds all up to a power of two, and some
    above."""
    maximum = 2 ** (int(np.finfo(dtype).nmant) + 1)
    if array.size and (int(array.max()) > maximum or int(array.min()) < -maximum):
        with np.errstate(over="ignore"):
            floats = [float(dtype.type(one)) for one in array.reshape(-1).tolist()]
        numbers = zip(floats, array.reshape(-1).tolist(), strict=True)
        wrong = np.array([not math.isfinite(one) or int(one) != number for one, number in numbers], bool)
        _refuse(array, wrong, f"{dtype} cannot hold exactly")


def _refuse(array: npt.NDArray[Any], wrong: npt.NDArray[np.bool_], why: str) -> None:
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        row = at // (array.size // len(array)) if array.ndim else 0
        raise Misfit(row, f"{array.reshape(-1)[at]!s}, which {why}")


# Nested batches: a user's function may return nested samples. Dicts and tuples are structure, as in tf.data; everything
# else is a value. A batch of nested samples has the same structure.

_VALUES = frozenset((np.ndarray, BytesColumn, ZeroCopyBytesColumn, RaggedColumn, memoryview, np.int64, np.float32))


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of a nested sample or batch, each with its path: `image`, `meta.size`, `[0]`."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from leaves(value, f"{path}.{name}" if path else str(name))
    elif isinstance(tree, tuple):
        for at, value in enumerate(tree):
            yield from leaves(value, f"{path}[{at}]")
    else:
        yield path, tree


def is_flat(tree: Any) -> bool:
    """Returns whether it is a plain dict of values, as most are. Called at every step, so the usual case is fast."""
    return type(tree) is dict and (
        _VALUES.issuperset(map(type, tree.values()))
        or not any(isinstance(value, (tuple, Mapping)) for value in tree.values())
    )


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Applies `function` to every value and returns the same structure."""
    if isinstance(tree, Mapping):
        return {name: map_leaves(function, value) for name, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple_like(tree, [map_leaves(function, value) for value in tree])
    return function(tree)


def tuple_like(model: tuple[Any, ...], values: Sequence[Any]) -> tuple[Any, ...]:
    """Returns these values as a tuple, or as a named tuple if `model` is one."""
    return type(model)(*values) if hasattr(model, "_fields") else tuple(values)


class Pick:
    """Function that keeps some columns of a dict."""

    __name__ = "select"

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __call__(self, rows: Any) -> dict[str, Any]:
        if not isinstance(rows, Mapping):
            raise TypeError(f"select: expected a dict of columns, got {type(rows).__name__}")
        for name in self._names:
            if name not in rows:
                raise KeyError(f"there is no column {name!r}. {names_there(name, [str(one) for one in rows])}")
        return {name: rows[name] for name in self._names}


def rows_of(batch: Any) -> int:
    """Returns the number of rows; raises a SchemaError if the columns differ in it."""
    columns = batch if is_flat(batch) else dict(leaves(batch))
    counts = {path: len(column) for path, column in columns.items()}
    if len(set(counts.values())) > 1:
        raise SchemaError(f"the columns have different numbers of rows: {counts}")
    return next(iter(counts.values()), 0)


def nbytes_of(batch: Any) -> int:
    """Returns the bytes of its rows, without those of other rows that share the memory."""
    if is_flat(batch):
        return sum(map(_column_bytes, batch.values()))
    return sum(_column_bytes(column) for _, column in leaves(batch))


def _column_bytes(column: ColumnData) -> int:
    if isinstance(column, RaggedColumn):
        return column._splits.nbytes + _column_bytes(column.values)
    if isinstance(column, ZeroCopyBytesColumn):  # its `values` would join them
        return column._spans.nbytes + int((column._spans[:, 1] - column._spans[:, 0]).sum())
    if isinstance(column, BytesColumn):
        return column._offsets.nbytes + column.values.nbytes
    return column.nbytes


def split_samples(batch: Batch) -> list[dict[str, Any]]:
    """Returns its rows, each a dict of numpy scalars, arrays, memoryviews, and columns for lists of strings or lists.

    All but scalars share the batch's memory.
    """
    rows = rows_of(batch)
    return codec.pieces(tuple(batch), tuple(_items(column) for column in batch.values()), rows)


def _items(column: ColumnData) -> Any:
    """Returns a sequence whose item i is row i. Making all rows of a column at once is much faster than one by one."""
    if isinstance(column, np.ndarray):
        return list(column)
    if isinstance(column, RaggedColumn):
        values = column._values
        return [values[start:stop] for start, stop in pairwise(column._splits.tolist())]
    if column.per_item:
        return column
    memory = column._values.data
    if isinstance(column, ZeroCopyBytesColumn):
        return [memory[start:stop] for start, stop in column._spans.tolist()]
    return [memory[start:stop] for start, stop in pairwise(column._offsets.tolist())]


class ColumnPickler(pickle.Pickler):
    """Pickles columns without the rest of the buffers that they are views of, and memoryviews, which pickle refuses."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is memoryview:
            data = pickle.PickleBuffer(value) if value.c_contiguous else value.tobytes()
            return _restore_view, (data, value.format, value.shape)
        if kind is ZeroCopyBytesColumn:
            value, kind = value.copy(), BytesColumn
        if kind is BytesColumn:
            return BytesColumn, (value.values, value.offsets, value.per_item)
        if kind is RaggedColumn:
            return RaggedColumn, (value.values, value.row_splits)
        return NotImplemented


def _restore_view(data: Any, form: Any, shape: tuple[int, ...]) -> memoryview:
    view = memoryview(data).cast("B")
    return view if (form == "B" and len(shape) == 1) or 0 in shape else view.cast(form, shape)
