"""Collects rows until they fill a chunk, and packs them as a frame."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...._native.codec import crc32c
from ...formats.columns import join_offsets
from .protocol import FULL_CHUNK, ColumnPieces, FrameLayout, slice_rows
from .shared_buffer import SharedBuffer

_MAX_VARIABLE_BYTES = 4 << 20  # of columns whose rows differ in size
_MAX_FREE = 16


class FrameSpace(NamedTuple):
    """Arrays for the columns of a fixed shape of one frame. `slot`: the one they fill of the shared buffer, if any."""

    arrays: list[Any]
    shared_buffer: SharedBuffer | None = None
    slot: int = -1


class WireFrame(NamedTuple):
    """A packed frame, kept until it is acknowledged."""

    first: int
    rows: int
    flags: int
    pieces: list[Any]
    crcs: list[int]
    bytes: int
    space: FrameSpace  # the memory that the pieces are views of

    @property
    def end(self) -> int:
        return self.first + self.rows


class FrameBuilder:
    """`add` rows until it is full, then `take` the frame."""

    def __init__(self, layout: FrameLayout, max_bytes: int | None = None) -> None:
        """`max_bytes`: of a frame, unless a single row is larger."""
        self._layout = layout
        space = _MAX_VARIABLE_BYTES if max_bytes is None else (max_bytes - layout.chunk_rows * layout.row_bytes) // 4
        self._max_variable_bytes = max(1, min(space, _MAX_VARIABLE_BYTES))
        self.rows = 0
        self._variable_bytes = 0
        self._shared_buffer: SharedBuffer | None = None
        self._free: list[FrameSpace] = []
        self._space = self._new_space()
        self._variable: list[list[Any]] = [[] for _ in layout.columns]

    @property
    def is_full(self) -> bool:
        return self.rows == self._layout.chunk_rows or self._variable_bytes >= self._max_variable_bytes

    def add(self, buffers: list[Any], start: int, stop: int) -> int:
        """Adds as many of rows [start, stop) as fit, at least one. Returns where it stopped."""
        stop = min(stop, start + self._layout.chunk_rows - self.rows)
        for number, (column, parts) in enumerate(zip(self._layout.columns, buffers, strict=True)):
            if column.is_fixed:
                self._add_fixed(number, column, np.asarray(parts[0])[start:stop])
        variable = [
            None if column.is_fixed else parts for column, parts in zip(self._layout.columns, buffers, strict=True)
        ]
        if any(parts is not None for parts in variable):
            stop = self._add_variable(variable, start, stop)
        self.rows += stop - start
        return stop

    def share(self, shared_buffer: SharedBuffer | None) -> None:
        """Uses the slots of this shared buffer for the next frames. Frames in another one stay there."""
        self._shared_buffer = shared_buffer
        self._free = (
            []
            if shared_buffer is None
            else [self._in_slot(shared_buffer, slot) for slot in reversed(range(shared_buffer.slots))]
        )
        if not self.rows:
            self._space = self._free.pop() if self._free else self._new_space()

    def release(self) -> None:
        """Releases all memory. No rows can be added afterwards."""
        self._shared_buffer, self._free, self._space = None, [], FrameSpace([])

    def _new_space(self) -> FrameSpace:
        return FrameSpace([None] * len(self._layout.columns))

    def _in_slot(self, shared_buffer: SharedBuffer, slot: int) -> FrameSpace:
        memory, at, arrays = shared_buffer.slot(slot), 0, []
        for column in self._layout.columns:
            piece = column.pieces[0]
            shape = (self._layout.chunk_rows, *getattr(column.column, "shape", ()))
            arrays.append(np.ndarray(shape, piece.dtype, memory, at))
            at += self._layout.chunk_rows * piece.row_bytes
        return FrameSpace(arrays, shared_buffer, slot)

    def _add_fixed(self, number: int, column: ColumnPieces, values: Any) -> None:
        arrays = self._space.arrays
        if arrays[number] is None:
            arrays[number] = np.empty((self._layout.chunk_rows, *values.shape[1:]), column.pieces[0].dtype)
        arrays[number][self.rows : self.rows + len(values)] = values

    def _add_variable(self, variable: list[Any], start: int, stop: int) -> int:
        """Halves the number of rows until they are small enough."""
        while True:
            found = [
                None if parts is None else slice_rows(column.column, parts, start, stop)
                for column, parts in zip(self._layout.columns, variable, strict=True)
            ]
            size = sum(part.nbytes for parts in found if parts for part in parts if part is not None)
            if size <= self._max_variable_bytes or stop - start == 1:
                break
            stop = start + (stop - start) // 2
        for kept, parts in zip(self._variable, found, strict=True):
            if parts is not None:
                kept.append([None if part is None else part.copy() for part in parts])
        self._variable_bytes += size
        return stop

    def take(self, first: int) -> WireFrame:
        """Returns all rows as a frame whose first row has this number."""
        rows, is_full = self.rows, self.rows == self._layout.chunk_rows
        pieces, crcs, size = [], [], 0
        for number, column in enumerate(self._layout.columns):
            parts = [self._space.arrays[number][:rows]] if column.is_fixed else _join(self._variable[number])
            for piece in column.pieces:
                data = self._layout.pack(column, parts[piece.slot])
                crcs.append(crc32c(data))
                pieces.append(data)
                size += len(data)
        self.rows = self._variable_bytes = 0
        space, self._space = self._space, self._free.pop() if self._free else self._new_space()
        self._variable = [[] for _ in self._layout.columns]
        return WireFrame(first, rows, FULL_CHUNK if is_full else 0, pieces, crcs, size, space)

    def recycle(self, frame: WireFrame) -> None:
        """Reuses the memory of an acknowledged frame: fresh memory would cost more than the copy."""
        if frame.space.shared_buffer is self._shared_buffer and (
            self._shared_buffer is not None or len(self._free) < _MAX_FREE
        ):
            self._free.append(frame.space)


def _join(kept: list[list[Any]]) -> list[Any]:
    """Joins the buffers of consecutive rows of a column."""
    if len(kept) == 1:
        return kept[0]
    found: list[Any] = [np.concatenate([parts[0] for parts in kept])]
    for slot in (1, 2, 3):
        ends = [parts[slot] for parts in kept]
        found.append(None if ends[0] is None else join_offsets(ends))
    return found
