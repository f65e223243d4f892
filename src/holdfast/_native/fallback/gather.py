"""Gathers rows of many batches, splits batches into pieces, and copies chunks with checks on both sides."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .tfrecord_frames import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..constants import GatherLayout


def copy_checked(
    from_fd: int, offset: int, to_fd: int, place: int, sizes: Buffer, expected: Buffer, here: Buffer, again: Buffer, /
) -> bytes | None:
    lengths, crcs = (memoryview(one).cast("B").cast("q").tolist() for one in (sizes, expected))
    total = sum(lengths)
    if len(lengths) != len(crcs):
        raise ValueError("expected a size and a checksum, as int64, for every chunk")
    if min(lengths, default=0) < 0 or total > min(len(memoryview(here)), len(memoryview(again))):
        raise ValueError("expected two buffers that hold all chunks")
    first, second = memoryview(here)[:total], memoryview(again)[:total]
    try:
        if not _read(from_fd, first, offset):
            return None
        found = list(_crcs(first, lengths))
        if any(crc not in (-1, got) for crc, got in zip(crcs, found, strict=True)):
            return None
        done = 0
        while done < total:
            done += os.pwrite(to_fd, first[done:], place + done)
        if not _read(to_fd, second, place) or list(_crcs(second, lengths)) != found:
            return None
    except OSError:
        return None
    return struct.pack(f"={len(found)}I", *found)


def _read(fd: int, view: memoryview, offset: int) -> bool:
    done = 0
    if offset < 0 and len(view):
        return False  # preadv takes -1 as the current position
    while done < len(view):
        n = os.preadv(fd, [view[done:]], offset + done)
        if not n:
            return False
        done += n
    return True


def _crcs(view: memoryview, lengths: list[int]) -> Iterator[int]:
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        yield crc32c(view[start:stop])


def pieces(names: tuple[str, ...], columns: tuple[Any, ...], n: int, /) -> list[dict[str, Any]]:
    if len(names) != len(columns) or n < 0:
        raise ValueError("expected a name for every column, and a number of pieces from 0 up")
    made = [[_piece(column, i) for i in range(n)] for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*made, strict=True)] if made else [{} for _ in range(n)]


def _piece(column: Any, i: int) -> Any:
    if not isinstance(column, tuple):
        return column[i]
    items, kind, slot, others = column
    made = kind.__new__(kind)
    setattr(made, slot, items[i])
    for name, value in others:
        setattr(made, name, value)
    return made


# ---- gathering: for every column, one slot at a time

Ints = npt.NDArray[np.int64]

_MAX_SLOTS = 1 << 24
_MAX_BYTES = 1 << 62


class _Part(NamedTuple):
    """One column of one slot: where the items of each level begin and end in the level below, and the values."""

    levels: list[tuple[Ints, Ints]]
    values: npt.NDArray[np.uint8]


class Gatherer:
    def __init__(self, layouts: Sequence[GatherLayout]) -> None:
        self._layouts = [(tuple(counts), width) for counts, width in layouts]
        if any(width < 0 or min(counts, default=1) < 1 for counts, width in self._layouts):
            raise ValueError("expected counts from 1 up and a width from 0 up")
        self._slots: dict[int, tuple[int, list[_Part]]] = {}

    def put(self, slot: int, rows: int, buffers: Sequence[Any], /) -> None:
        if not 0 <= slot < _MAX_SLOTS or rows < 0:
            raise ValueError(f"expected a slot below {_MAX_SLOTS} and rows from 0 up, got {slot} and {rows}")
        if len(buffers) != sum(len(counts) + 1 for counts, _ in self._layouts):
            raise ValueError("expected a buffer for every array of every column")
        each = iter(buffers)
        self._slots[slot] = (
            rows,
            [_part(number, rows, layout, each) for number, layout in enumerate(self._layouts)],
        )

    def drop(self, slot: int, /) -> None:
        self._slots.pop(slot, None)

    def take(self, which: Any, rows: Any, /) -> list[Any]:
        slots, numbers = np.frombuffer(which, np.int64), np.frombuffer(rows, np.int64)
        if len(slots) != len(numbers):
            raise ValueError(f"expected a slot for every row, got {len(slots)} slots and {len(numbers)} rows")
        names = np.unique(slots).tolist()
        self._check_rows(names, slots, numbers)
        places = [np.flatnonzero(slots == name) for name in names]
        taken: list[Any] = []
        for number, layout in enumerate(self._layouts):
            parts = [self._slots[name][1][number] for name in names]
            taken += _take_column(number, layout, places, parts, numbers)
        return taken

    def _check_rows(self, names: list[int], slots: Ints, numbers: Ints) -> None:
        there = {name: self._slots[name][0] if name in self._slots else -1 for name in names}
        for slot, row in zip(slots.tolist(), numbers.tolist(), strict=True):
            if there[slot] < 0:
                raise IndexError(f"slot {slot} holds nothing")
            if not 0 <= row < there[slot]:
                raise IndexError(f"expected a row below {there[slot]} of slot {slot}, got {row}")


def _part(number: int, rows: int, layout: GatherLayout, buffers: Iterator[Any]) -> _Part:
    counts, width = layout
    ends = [np.frombuffer(next(buffers), np.int64) for _ in counts]
    values = np.frombuffer(next(buffers), np.uint8)
    levels = [(array[:-1], array[1:]) for array in ends]
    fits = all(len(array) for array in ends) or not rows
    if not counts:
        fits = len(values) >= rows * width
    elif counts[0] == 1 and len(ends[0]) == 2 * rows:
        levels[0] = (ends[0][::2], ends[0][1::2])  # a start and a stop for each row
    else:
        fits &= len(ends[0]) == rows * counts[0] + 1
    if not fits:
        raise ValueError(f"column {number}: its arrays are not those of {rows} rows")
    return _Part(levels, values)


def _take_column(number: int, layout: GatherLayout, places: list[Ints], parts: list[_Part], rows: Ints) -> list[Any]:
    """Gathers one column. `places[k]` says which of the rows are in `parts[k]`."""
    counts, width = layout
    taken: list[Any] = []
    starts, stops = rows, rows + 1
    for level, count in enumerate(counts):
        starts, stops = starts * count, stops * count
        ends = np.zeros(_total(starts, stops, 8) + 1, np.int64)
        inner_starts, inner_stops = np.zeros_like(starts), np.zeros_like(stops)
        for at, part, source, to in _spread(places, parts, starts, stops):
            begins, finishes = part.levels[level]
            ends[to + 1] = finishes[source] - begins[source]
            some = at[stops[at] > starts[at]]
            inner_starts[some], inner_stops[some] = begins[starts[some]], finishes[stops[some] - 1]
            _check_ranges(number, inner_starts[at], inner_stops[at], _items_below(part, layout, level))
        np.cumsum(ends, out=ends)
        taken.append(ends)
        starts, stops = inner_starts, inner_stops
    total = _total(starts, stops, width)
    values = np.empty((total if width else 0, width), np.uint8)
    for _, part, source, to in _spread(places, parts, starts, stops) if width else ():
        complete = len(part.values) // width * width
        values[to] = part.values[:complete].reshape(-1, width)[source]
    return [*taken, values.reshape(-1)]


def _total(starts: Ints, stops: Ints, width: int) -> int:
    sizes = stops - starts
    if sizes.sum(dtype=np.float64) * max(width, 1) >= _MAX_BYTES:
        raise MemoryError
    return int(sizes.sum())


def _items_below(part: _Part, layout: GatherLayout, level: int) -> int:
    counts, width = layout
    if level + 1 < len(counts):
        return len(part.levels[level + 1][0]) // counts[level + 1]
    return len(part.values) // width if width else _MAX_BYTES


def _check_ranges(number: int, starts: Ints, stops: Ints, limit: int) -> None:
    if len(starts) and (starts.min() < 0 or (starts > stops).any() or stops.max() > limit):
        raise ValueError(f"column {number}: an end points outside its values")


def _spread(
    places: list[Ints], parts: list[_Part], starts: Ints, stops: Ints
) -> Iterator[tuple[Ints, _Part, Any, Any]]:
    """Yields for each part which rows it has, and for all their items the position in it and in the result."""
    sizes = stops - starts
    firsts = np.cumsum(sizes) - sizes
    for at, part in zip(places, parts, strict=True):
        n = sizes[at]
        within = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
        yield at, part, np.repeat(starts[at], n) + within, np.repeat(firsts[at], n) + within
