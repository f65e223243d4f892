"""The shuffle window: blocks in a row, shuffled a window at a time; and the permutation that shuffles them.

A window is a run of complete blocks, so no block is read for two windows, and any position of a lane can be found by
building the one window it is in. That is what makes a checkpoint small: a shuffle buffer that samples are drawn from
would have to be saved with it.

The first windows are small and double in size, so that the first batch does not wait for a full window. They begin a
little larger in every lane, so that later no two lanes need their next window at once.

The permutation is the same on every machine, under every version of numpy, for ever. numpy promises that for its bit
generators but not for `shuffle`, so it is written out here:

    key     the first 8 bytes, little endian, of BLAKE2b-64 of the parts, joined by "|", in UTF-8
    draw i  SplitMix64's output function of key + (i + 1) * 0x9E3779B97F4A7C15, modulo 2^64
    order   0 … n-1 sorted by draw; the lowest bits of a draw, as many as n - 1 has, are replaced by i itself

With i inside no two draws are equal, so every sorting algorithm gives the same order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ...formats.columns import Ints
from .blocks import SamplePositions, join_positions

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def key_of(*parts: object) -> int:
    """Hashes the parts, as they are written, to a number."""
    text = "|".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def shuffled(n: int, key: int) -> Ints:
    """Returns 0 … n-1 in an order that `key` alone decides."""
    if n < 2:
        return np.arange(n, dtype=np.int64)
    # In place: a window may have millions of samples, and every further array takes eight bytes for each.
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


# ---- the window shuffle of one lane

_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Rows `first[i]` to `first[i] + count[i]` of block `block[i]`; `size[i]` is in the unit that windows have."""

    block: Ints
    first: Ints
    count: Ints
    size: Ints


class Lane:
    """One of the streams that an epoch interleaves: blocks in a row, shuffled a window at a time.

    window_size, first_size: of a full window and of the first one; a window is at most one block larger
    key: seeds the windows' permutations; None leaves them in order
    """

    def __init__(self, pieces: Pieces, window_size: int, first_size: int, key: tuple[object, ...] | None) -> None:
        self._pieces = pieces
        self._key = key
        before = np.cumsum(pieces.size) - pieces.size
        new = np.flatnonzero(np.diff(_window_of(before, window_size, first_size))) + 1
        n = len(pieces.block)
        self._first_piece = np.concatenate([[0], new, [n]]) if n else np.zeros(1, np.int64)
        self._begins = np.concatenate([[0], np.cumsum(pieces.count)])[self._first_piece]
        self._last: tuple[int, SamplePositions] | None = None  # the last window asked for

    def __len__(self) -> int:
        """Returns the number of samples."""
        return int(self._begins[-1])

    @property
    def windows(self) -> int:
        return len(self._begins) - 1

    def window_at(self, index: int) -> int:
        """Returns the window that sample `index` of the lane is in."""
        return int(np.searchsorted(self._begins, index, "right")) - 1

    def blocks_of(self, window: int) -> Ints:
        """Returns the blocks that a window needs."""
        return self._pieces.block[self._first_piece[window] : self._first_piece[window + 1]]

    @property
    def nbytes(self) -> int:
        """The memory of the last window."""
        last = self._last
        return 0 if last is None else last[1].block.nbytes + last[1].row.nbytes

    def window(self, number: int) -> SamplePositions:
        """Returns all positions of a window, shuffled."""
        last = self._last
        if last is None or last[0] != number:
            self._last = None  # released before the next one is built: windows may have millions of positions
            last = self._last = (number, self._build(number))
        return last[1]

    def _build(self, number: int) -> SamplePositions:
        which = slice(self._first_piece[number], self._first_piece[number + 1])
        block, first, count = self._pieces.block[which], self._pieces.first[which], self._pieces.count[which]
        n = int(count.sum())
        # 32 bits where they suffice: all windows in use are in memory, and have many small samples.
        kind = np.int32 if max(n, int((first + count).max()), int(block.max())) <= _MAX_INT32 else np.int64
        row = np.repeat((first - (np.cumsum(count) - count)).astype(kind), count)
        row += np.arange(n, dtype=kind)
        blocks = np.repeat(block.astype(kind), count)
        if self._key is None:
            return SamplePositions(blocks, row)
        order = shuffled(n, key_of(*self._key, number))
        row = row[order]
        return SamplePositions(blocks[order], row)

    def take(self, start: int, stop: int) -> SamplePositions:
        """Returns positions [start, stop) of the lane."""
        parts = []
        while start < stop:
            number = self.window_at(start)
            begin, end = int(self._begins[number]), min(stop, int(self._begins[number + 1]))
            parts.append(self.window(number)[start - begin : end - begin])
            start = end
        return join_positions(parts)


def _window_of(before: Ints, window_size: int, first_size: int) -> Ints:
    """Returns the window of each piece by the size of those before it: the first has `first_size`, the next ones double
    up to `window_size`."""
    sizes = []
    while first_size < window_size:
        sizes.append(first_size)
        first_size *= 2
    ends = np.cumsum(np.array(sizes, np.int64)) if sizes else np.zeros(0, np.int64)
    grown = int(ends[-1]) if sizes else 0
    return np.where(
        before < grown,
        np.searchsorted(ends, before, "right"),
        len(sizes) + np.maximum(before - grown, 0) // window_size,
    )
