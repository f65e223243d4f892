"""A batch as samples, how much of it there is, and the values of one that is nested.

A function may make nested samples: dicts and tuples are their structure, as tf.data has it; everything else is a value.
A batch of them has the same structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..._base.text import names_there
from ..._native import codec
from ...errors import SchemaError
from ...formats.columns import Batch, BytesColumn, ColumnData, LentBytesColumn, RaggedColumn

_VALUES = frozenset((np.ndarray, BytesColumn, LentBytesColumn, RaggedColumn, memoryview, np.int64, np.float32))


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a nested sample or batch, each with its path: `image`, `meta.size`, `[0]`."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from leaves(value, f"{path}.{name}" if path else str(name))
    elif isinstance(tree, tuple):
        for at, value in enumerate(tree):
            yield from leaves(value, f"{path}[{at}]")
    else:
        yield path, tree


def is_flat(tree: Any) -> bool:
    """Whether it is a plain dict of values, as most are: these are gone through at every step, so quickly."""
    return type(tree) is dict and (
        _VALUES.issuperset(map(type, tree.values()))
        or not any(isinstance(value, (tuple, Mapping)) for value in tree.values())
    )


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """What `function` makes of every value, in the same structure."""
    if isinstance(tree, Mapping):
        return {name: map_leaves(function, value) for name, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple_like(tree, [map_leaves(function, value) for value in tree])
    return function(tree)


def tuple_like(model: tuple[Any, ...], values: Sequence[Any]) -> tuple[Any, ...]:
    """These values as a tuple, or as the named tuple that `model` is."""
    return type(model)(*values) if hasattr(model, "_fields") else tuple(values)


class Pick:
    """A function of dicts that keeps some of their columns."""

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
    """How many rows all of its columns have."""
    columns = batch if is_flat(batch) else dict(leaves(batch))
    counts = {path: len(column) for path, column in columns.items()}
    if len(set(counts.values())) > 1:
        raise SchemaError(f"the columns have different numbers of rows: {counts}")
    return next(iter(counts.values()), 0)


def nbytes_of(batch: Any) -> int:
    """The bytes of its rows; not of what else the memory they are in holds."""
    if is_flat(batch):
        return sum(map(_column_bytes, batch.values()))
    return sum(_column_bytes(column) for _, column in leaves(batch))


def _column_bytes(column: ColumnData) -> int:
    if isinstance(column, RaggedColumn):
        return column._splits.nbytes + _column_bytes(column.values)
    if isinstance(column, LentBytesColumn):  # `values` would join them
        return column._spans.nbytes + int((column._spans[:, 1] - column._spans[:, 0]).sum())
    if isinstance(column, BytesColumn):
        return column._offsets.nbytes + column.values.nbytes
    return column.nbytes


def split_samples(batch: Batch) -> list[dict[str, Any]]:
    """Its rows, each a dict: numpy scalars, arrays, memoryviews, and columns for lists of strings and of lists.

    They share the batch's memory, but for scalars.
    """
    rows = rows_of(batch)
    return codec.pieces(tuple(batch), tuple(_items(column) for column in batch.values()), rows)


def _items(column: ColumnData) -> Any:
    """Something whose item i is row i, at little cost: all of a column are made at once, not row by row."""
    if isinstance(column, np.ndarray):
        return list(column)
    if isinstance(column, RaggedColumn):
        values = column._values
        return [values[start:stop] for start, stop in pairwise(column._splits.tolist())]
    if column.per_item:
        return column
    memory = column._values.data
    if isinstance(column, LentBytesColumn):
        return [memory[start:stop] for start, stop in column._spans.tolist()]
    return [memory[start:stop] for start, stop in pairwise(column._offsets.tolist())]
