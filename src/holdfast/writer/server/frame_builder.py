"""Rows on their way into a frame: put together until they fill a chunk, then packed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..._native.codec import crc32c
from ...formats.columns import join_offsets
from .protocol import FULL_CHUNK, ColumnPieces, FrameLayout, slice_rows
from .shared_buffer import SharedBuffer

_MOST_LOOSE_BYTES = 4 << 20  # of what has no rows of a fixed size

_MOST_FREE = 16


class FrameSpace(NamedTuple):
    """Memory for the columns of a fixed shape of one frame. `slot`: which one of the arena they fill, if any."""

    arrays: list[Any]
    shared_buffer: SharedBuffer | None = None
    slot: int = -1


class WireFrame(NamedTuple):
    """What is sent, and kept until it is acknowledged."""

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
    """`add` rows until it is full, then `take` them."""

    def __init__(self, layout: FrameLayout, most_bytes: int | None = None) -> None:
        """`most_bytes`: of a frame. One row may have more."""
        self._layout = layout
        room = _MOST_LOOSE_BYTES if most_bytes is None else (most_bytes - layout.chunk_rows * layout.row_bytes) // 4
        self._most_loose_bytes = max(1, min(room, _MOST_LOOSE_BYTES))
        self.rows = 0
        self._loose_bytes = 0
        self._shared_buffer: SharedBuffer | None = None
        self._free: list[FrameSpace] = []
        self._room = self._new_space()
        self._loose: list[list[Any]] = [[] for _ in layout.columns]

    @property
    def is_full(self) -> bool:
        return self.rows == self._layout.chunk_rows or self._loose_bytes >= self._most_loose_bytes

    def add(self, buffers: list[Any], start: int, stop: int) -> int:
        """Of rows [start, stop) as many as fit, at least one; where it stopped."""
        stop = min(stop, start + self._layout.chunk_rows - self.rows)
        for number, (column, parts) in enumerate(zip(self._layout.columns, buffers, strict=True)):
            if column.is_fixed:
                self._add_fixed(number, column, np.asarray(parts[0])[start:stop])
        loose = [
            None if column.is_fixed else parts for column, parts in zip(self._layout.columns, buffers, strict=True)
        ]
        if any(parts is not None for parts in loose):
            stop = self._add_loose(loose, start, stop)
        self.rows += stop - start
        return stop

    def share(self, shared_buffer: SharedBuffer | None) -> None:
        """Frames to come lie in this arena, as far as it goes; those that lie in another one stay there."""
        self._shared_buffer = shared_buffer
        self._free = (
            []
            if shared_buffer is None
            else [self._in_slot(shared_buffer, slot) for slot in reversed(range(shared_buffer.slots))]
        )
        if not self.rows:
            self._room = self._free.pop() if self._free else self._new_space()

    def release(self) -> None:
        """Of all memory: nothing is added any more."""
        self._shared_buffer, self._free, self._room = None, [], FrameSpace([])

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
        arrays = self._room.arrays
        if arrays[number] is None:
            arrays[number] = np.empty((self._layout.chunk_rows, *values.shape[1:]), column.pieces[0].dtype)
        arrays[number][self.rows : self.rows + len(values)] = values

    def _add_loose(self, loose: list[Any], start: int, stop: int) -> int:
        """Half of the rows, and half of these, until they are not too many bytes."""
        while True:
            found = [
                None if parts is None else slice_rows(column.column, parts, start, stop)
                for column, parts in zip(self._layout.columns, loose, strict=True)
            ]
            size = sum(part.nbytes for parts in found if parts for part in parts if part is not None)
            if size <= self._most_loose_bytes or stop - start == 1:
                break
            stop = start + (stop - start) // 2
        for kept, parts in zip(self._loose, found, strict=True):
            if parts is not None:
                kept.append([None if part is None else part.copy() for part in parts])
        self._loose_bytes += size
        return stop

    def take(self, first: int) -> WireFrame:
        """All of them, as a frame whose first row has this number."""
        rows, whole = self.rows, self.rows == self._layout.chunk_rows
        pieces, crcs, size = [], [], 0
        for number, column in enumerate(self._layout.columns):
            parts = [self._room.arrays[number][:rows]] if column.is_fixed else _joined(self._loose[number])
            for piece in column.pieces:
                data = self._layout.pack(column, parts[piece.slot])
                crcs.append(crc32c(data))
                pieces.append(data)
                size += len(data)
        self.rows = self._loose_bytes = 0
        room, self._room = self._room, self._free.pop() if self._free else self._new_space()
        self._loose = [[] for _ in self._layout.columns]
        return WireFrame(first, rows, FULL_CHUNK if whole else 0, pieces, crcs, size, room)

    def recycle(self, frame: WireFrame) -> None:
        """It is acknowledged, and nothing looks at its arrays any more: fresh memory would cost more than the copy."""
        if frame.space.shared_buffer is self._shared_buffer and (
            self._shared_buffer is not None or len(self._free) < _MOST_FREE
        ):
            self._free.append(frame.space)


def _joined(kept: list[list[Any]]) -> list[Any]:
    """Many runs of rows of a column as one."""
    if len(kept) == 1:
        return kept[0]
    found: list[Any] = [np.concatenate([parts[0] for parts in kept])]
    for slot in (1, 2, 3):
        ends = [parts[slot] for parts in kept]
        found.append(None if ends[0] is None else join_offsets(ends))
    return found
