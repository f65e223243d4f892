"""A shard's samples, some at a time: as many as fit in a block of memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..formats.columns import Batch, BytesColumn, ColumnData, Ints, LentBytesColumn, RaggedColumn
from ..formats.shard import Shard
from ..schema import Column

BLOCK_BYTES = 1 << 24
_FIRST_ROWS = 64
_GROWTH = 8


def each_block(shard: Shard, schema: dict[str, Column]) -> Iterator[tuple[Batch, int]]:
    """Batches and how many rows they have.

    What a row takes is measured on those before it, since a packed chunk does not tell how much comes out of it; and
    asked for, where the file knows.
    """
    at, rows, chunk = 0, _FIRST_ROWS, shard.rows_per_chunk
    while at < len(shard):
        if rows > chunk > 1:
            rows = (at + rows) // chunk * chunk - at or chunk  # to the end of a chunk
        stop = min(at + rows, len(shard))
        while stop > at + 1 and shard.bytes_of(at, stop) > BLOCK_BYTES:
            stop = (at + stop) // 2
        batch = shard.read(at, stop, schema)
        yield batch, stop - at
        width = max(1, size_of(batch) // (stop - at))
        at, rows = stop, max(1, min(BLOCK_BYTES // width, rows * _GROWTH))


def size_of(batch: Batch) -> int:
    """What a batch's values take in memory, in bytes."""
    return sum(_size(column) for column in batch.values())


def _size(column: ColumnData) -> int:
    if isinstance(column, RaggedColumn):
        return 8 * len(column) + _size(column.values)
    if isinstance(column, BytesColumn):
        return int(string_sizes(column).sum()) + 8 * len(column)
    return int(column.nbytes)


def row_sizes(batch: Batch, rows: int) -> Ints:
    """What each row's values take, in bytes; lengths of strings and lists are eight bytes each."""
    total = np.zeros(rows, np.int64)
    for column in batch.values():
        total += _row_sizes(column, rows)
    return total


def _row_sizes(column: Any, rows: int) -> Ints:
    if isinstance(column, RaggedColumn):
        splits = column.row_splits
        inner = np.concatenate([[0], np.cumsum(_row_sizes(column.values, int(splits[-1])))])
        return np.diff(inner[splits]) + 8
    if isinstance(column, BytesColumn):
        per_row = column.per_item or 1
        sizes: Ints = string_sizes(column).reshape(rows, per_row).sum(axis=1) + 8 * per_row
        return sizes
    return np.full(rows, column.nbytes // rows if rows else 0, np.int64)


def string_sizes(column: BytesColumn) -> Ints:
    if isinstance(column, LentBytesColumn):  # without joining them
        spans = column._spans
        return np.asarray(spans[:, 1] - spans[:, 0], np.int64)
    return np.diff(column.offsets)
