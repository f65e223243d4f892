"""One lane: blocks in a row, shuffled a window at a time.

A window is a run of whole blocks, so nothing is read for two windows, and any place of a lane can be found by putting
together the one window it is in: that is what makes a state small. A buffer that samples are drawn from would have to
be kept with it.

The first windows are small and double in size: a first batch must not wait for all of a window to be read. They begin
a little larger in every lane, so that later no two lanes need their next window at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...formats.columns import Ints
from .chance import key_of, shuffled

_MOST_INT32 = 2**31 - 1


class Places:
    """Row `row[i]` of block `block[i]`, in the order they come. Made for every batch, so it is as plain as can be."""

    __slots__ = ("block", "row")

    def __init__(self, block: Ints, row: Ints) -> None:
        self.block, self.row = block, row

    def __len__(self) -> int:
        return len(self.block)

    def __getitem__(self, which: slice) -> Places:
        return Places(self.block[which], self.row[which])

    def at(self, which: Ints) -> Places:
        """Those with these numbers."""
        return Places(self.block[which], self.row[which])


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Rows `first[i]` to `first[i] + count[i]` of block `block[i]`, `measure[i]` of what windows are measured in."""

    block: Ints
    first: Ints
    count: Ints
    measure: Ints


class Lane:
    """`most` is how much a window holds, `first` the first one. A window is at most one block larger.

    key: what the windows are shuffled by; None leaves them as they are
    """

    def __init__(self, pieces: Pieces, most: int, first: int, key: tuple[object, ...] | None) -> None:
        self._pieces = pieces
        self._key = key
        before = np.cumsum(pieces.measure) - pieces.measure
        fresh = np.flatnonzero(np.diff(_window_of(before, most, first))) + 1
        n = len(pieces.block)
        self._first_piece = np.concatenate([[0], fresh, [n]]) if n else np.zeros(1, np.int64)
        self._begins = np.concatenate([[0], np.cumsum(pieces.count)])[self._first_piece]
        self._kept: tuple[int, Places] | None = None

    def __len__(self) -> int:
        """How many samples."""
        return int(self._begins[-1])

    @property
    def windows(self) -> int:
        return len(self._begins) - 1

    def window_at(self, place: int) -> int:
        """Which window the sample at this place of the lane is in."""
        return int(np.searchsorted(self._begins, place, "right")) - 1

    def blocks_of(self, window: int) -> Ints:
        """What must be read for a window."""
        return self._pieces.block[self._first_piece[window] : self._first_piece[window + 1]]

    @property
    def nbytes(self) -> int:
        """What the window that is kept takes."""
        kept = self._kept
        return 0 if kept is None else kept[1].block.nbytes + kept[1].row.nbytes

    def window(self, number: int) -> Places:
        """All places of a window, in their order. The last one asked for is kept."""
        kept = self._kept
        if kept is None or kept[0] != number:
            self._kept = None  # before the next one is made: they may have millions of places
            kept = self._kept = (number, self._make(number))
        return kept[1]

    def _make(self, number: int) -> Places:
        which = slice(self._first_piece[number], self._first_piece[number + 1])
        block, first, count = self._pieces.block[which], self._pieces.first[which], self._pieces.count[which]
        n = int(count.sum())
        # Half as wide as elsewhere: all windows in use are kept, and of small samples they have many.
        kind = np.int32 if max(n, int((first + count).max()), int(block.max())) <= _MOST_INT32 else np.int64
        row = np.repeat((first - (np.cumsum(count) - count)).astype(kind), count)
        row += np.arange(n, dtype=kind)
        blocks = np.repeat(block.astype(kind), count)
        if self._key is None:
            return Places(blocks, row)
        order = shuffled(n, key_of(*self._key, number))
        row = row[order]
        return Places(blocks[order], row)

    def take(self, start: int, stop: int) -> Places:
        """Places [start, stop) of the lane."""
        parts = []
        while start < stop:
            number = self.window_at(start)
            begin, end = int(self._begins[number]), min(stop, int(self._begins[number + 1]))
            parts.append(self.window(number)[start - begin : end - begin])
            start = end
        return join_places(parts)


def join_places(parts: list[Places]) -> Places:
    if len(parts) == 1:
        return parts[0]
    none = np.zeros(0, np.int64)
    return Places(
        np.concatenate([none, *(part.block for part in parts)]), np.concatenate([none, *(part.row for part in parts)])
    )


def _window_of(before: Ints, most: int, first: int) -> Ints:
    """The window of what begins at `before`: the first holds `first`, each next one twice that, up to `most`."""
    sizes = []
    while first < most:
        sizes.append(first)
        first *= 2
    ends = np.cumsum(np.array(sizes, np.int64)) if sizes else np.zeros(0, np.int64)
    grown = int(ends[-1]) if sizes else 0
    return np.where(
        before < grown, np.searchsorted(ends, before, "right"), len(sizes) + np.maximum(before - grown, 0) // most
    )
