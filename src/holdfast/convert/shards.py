"""Where one target ends and the next begins."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..formats.columns import Batch
from .blocks import row_sizes

_ALL = 1 << 62

Piece = tuple[int, Batch]  # the shard's number, and rows for it


class Cut:
    """So many shards of about as many rows each, or shards of about so many bytes. Neither: one."""

    def __init__(self, rows: int, shards: int | None = None, shard_bytes: int | None = None) -> None:
        ends = [_ALL] if shards is None else [rows * (i + 1) // shards for i in range(shards)]
        self._counts = np.diff([0, *ends]).tolist()
        self._bytes = shard_bytes
        self._number = 0
        self._rows = 0  # in the shard that is being filled
        self._used = 0

    @property
    def count(self) -> int:
        """How many there are; only at the end, if a size was given."""
        return self._number + 1 if self._bytes is not None else len(self._counts)

    def pieces(self, batch: Batch, rows: int) -> Iterator[Piece]:
        sizes = None if self._bytes is None else np.concatenate([[0], np.cumsum(row_sizes(batch, rows))])
        at = 0
        while at < rows:
            room = self._room_in_bytes(sizes, at) if sizes is not None else self._counts[self._number] - self._rows
            if room <= 0:
                self._number, self._rows, self._used = self._number + 1, 0, 0
                continue
            stop = min(rows, at + room)
            whole = stop - at == rows
            yield self._number, batch if whole else {name: column[at:stop] for name, column in batch.items()}
            self._rows += stop - at
            self._used += int(sizes[stop] - sizes[at]) if sizes is not None else 0
            at = stop

    def _room_in_bytes(self, sizes: np.ndarray[tuple[int], np.dtype[np.int64]], at: int) -> int:
        assert self._bytes is not None
        fit = int(np.searchsorted(sizes, sizes[at] + self._bytes - self._used, "right")) - 1 - at
        return max(fit, 0 if self._rows else 1)  # a row larger than a shard has one of its own
