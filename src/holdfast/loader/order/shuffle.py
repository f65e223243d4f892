"""Shuffling that is the same on every machine, under every version of numpy, and for ever.

numpy promises that for its bit generators but not for `shuffle`, so this is written out:

    key     the first 8 bytes, little endian, of BLAKE2b-64 of the parts, joined by "|", in UTF-8
    draw i  SplitMix64's output function of key + (i + 1) * 0x9E3779B97F4A7C15, modulo 2^64
    order   0 … n-1 by draw; the lowest bits of a draw, as many as n - 1 has, are replaced by i itself

With its number inside, no draw is there twice, so every way of sorting gives the same order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ...formats.columns import Ints

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def key_of(*parts: object) -> int:
    """A number for these parts, as they are written."""
    text = "|".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def shuffled(n: int, key: int) -> Ints:
    """0 … n-1 in an order that `key` alone decides."""
    if n < 2:
        return np.arange(n, dtype=np.int64)
    # In place: a window may have millions of samples, and every array more is eight bytes for each.
    draws = np.arange(1, n + 1, dtype=np.uint64)
    draws *= _STEP
    draws += np.uint64(key)
    _mix(draws)
    low = np.uint64((1 << (n - 1).bit_length()) - 1)
    draws &= ~low
    draws |= np.arange(n, dtype=np.uint64)
    draws.sort()
    draws &= low
    return draws.view(np.int64)


def _mix(x: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> None:
    x ^= x >> np.uint64(30)
    x *= _MIX_1
    x ^= x >> np.uint64(27)
    x *= _MIX_2
    x ^= x >> np.uint64(31)


# One lane: blocks in a row, shuffled a window at a time.
#
# A window is a run of whole blocks, so nothing is read for two windows, and any place of a lane can be found by putting
# together the one window it is in: that is what makes a state small. A buffer that samples are drawn from would have to
# be kept with it.
#
# The first windows are small and double in size: a first batch must not wait for all of a window to be read. They begin
# a little larger in every lane, so that later no two lanes need their next window at once.

_MOST_INT32 = 2**31 - 1


class SamplePositions:
    """Row `row[i]` of block `block[i]`, in the order they come. Made for every batch, so it is as plain as can be."""

    __slots__ = ("block", "row")

    def __init__(self, block: Ints, row: Ints) -> None:
        self.block, self.row = block, row

    def __len__(self) -> int:
        return len(self.block)

    def __getitem__(self, which: slice) -> SamplePositions:
        return SamplePositions(self.block[which], self.row[which])

    def at(self, which: Ints) -> SamplePositions:
        """Those with these numbers."""
        return SamplePositions(self.block[which], self.row[which])


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
        self._kept: tuple[int, SamplePositions] | None = None

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

    def window(self, number: int) -> SamplePositions:
        """All places of a window, in their order. The last one asked for is kept."""
        kept = self._kept
        if kept is None or kept[0] != number:
            self._kept = None  # before the next one is made: they may have millions of places
            kept = self._kept = (number, self._make(number))
        return kept[1]

    def _make(self, number: int) -> SamplePositions:
        which = slice(self._first_piece[number], self._first_piece[number + 1])
        block, first, count = self._pieces.block[which], self._pieces.first[which], self._pieces.count[which]
        n = int(count.sum())
        # Half as wide as elsewhere: all windows in use are kept, and of small samples they have many.
        kind = np.int32 if max(n, int((first + count).max()), int(block.max())) <= _MOST_INT32 else np.int64
        row = np.repeat((first - (np.cumsum(count) - count)).astype(kind), count)
        row += np.arange(n, dtype=kind)
        blocks = np.repeat(block.astype(kind), count)
        if self._key is None:
            return SamplePositions(blocks, row)
        order = shuffled(n, key_of(*self._key, number))
        row = row[order]
        return SamplePositions(blocks[order], row)

    def take(self, start: int, stop: int) -> SamplePositions:
        """Places [start, stop) of the lane."""
        parts = []
        while start < stop:
            number = self.window_at(start)
            begin, end = int(self._begins[number]), min(stop, int(self._begins[number + 1]))
            parts.append(self.window(number)[start - begin : end - begin])
            start = end
        return join_places(parts)


def join_places(parts: list[SamplePositions]) -> SamplePositions:
    if len(parts) == 1:
        return parts[0]
    none = np.zeros(0, np.int64)
    return SamplePositions(
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
