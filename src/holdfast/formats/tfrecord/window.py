"""The part of a file that is in memory: one buffer, refilled from the source as its frames are used up."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..._native import codec
from .source import Source

# Small enough to stay in a core's cache between the read and the decode, large enough for few calls.
BUFFER_BYTES = 1 << 18

_PAGE = 4096


def _buffer(size: int) -> Any:
    """At least `size` bytes, wherever in its first page they begin."""
    return np.empty(size + _PAGE, np.uint8)


def _front(buf: Any, offset: int) -> int:
    """Where in a buffer the file's bytes from `offset` on are to begin: half a page away from their place in the file.

    The kernel's copy is ten times slower on some CPUs (AMD's Zen 3) where the target's place in its page is a few bytes
    behind the source's.
    """
    return int((offset + _PAGE // 2 - buf.ctypes.data) % _PAGE)


class Window:
    """buf[start:stop] is the source's bytes from `offset` on. The buffer is used again and again."""

    def __init__(self, source: Source, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.source = source
        self.offset = 0
        self.buf = _buffer(buffer_bytes)
        self.start = self.stop = _front(self.buf, 0)
        self._known_size = source.size()
        self._view = memoryview(self.buf)

    @property
    def empty(self) -> bool:
        return self.start == self.stop

    def next_frame_bytes(self) -> int:
        """How long the frame here says it is, as far as the source has bytes; little, if there is none or a bad one."""
        if self.stop - self.start < codec.HEADER_BYTES and not self.refill(codec.HEADER_BYTES):
            return codec.OVERHEAD_BYTES
        if codec.find_header(self.buf, self.start, self.start + codec.HEADER_BYTES) != self.start:
            return codec.OVERHEAD_BYTES
        claimed = int.from_bytes(self.buf[self.start : self.start + 8], "little")
        return min(claimed, self.left()) + codec.OVERHEAD_BYTES

    def use(self, n: int) -> None:
        """The first n bytes are done with."""
        self.start += n
        self.offset += n

    def went(self, n: int, start: int, stop: int) -> None:
        """n bytes are done with; what follows them has been read on, and is at buf[start:stop] now."""
        self.offset += n
        self.start, self.stop = start, stop

    def jump(self, offset: int) -> None:
        """On with the byte at `offset`, which may be buffered already."""
        ahead = offset - self.offset
        self.start = min(self.start + ahead, self.stop) if ahead >= 0 else self.stop
        self.offset = offset

    def left(self) -> int:
        """How many bytes there are from here to the end, as far as one can know."""
        size = self.source.size()
        return self.stop - self.start if size is None else max(size - self.offset, 0)

    def refill(self, needed: int) -> bool:
        """More bytes behind those at hand, so that `needed` are there. False when the source has not that many.

        Memory grows with bytes that are there, never with what a header claims.
        """
        size = self._known_size
        if size is not None and needed > size - self.offset:
            size = self._known_size = self.source.size()  # it may have grown
            if size is not None and needed > size - self.offset:
                return False
        while True:
            have = self.stop - self.start
            self._make_room(needed, needed if size is not None else min(needed, 2 * max(have, BUFFER_BYTES)))
            got = self.source.read_at(self.offset + have, self._view[self.stop : self._end(needed)])
            self.stop += got
            if have + got >= needed:
                return True
            if not got:
                return False

    def _end(self, needed: int) -> int:
        """Up to where the buffer is to be filled."""
        return len(self.buf)

    def _make_room(self, needed: int, sure: int) -> None:
        """Room behind `stop`. `needed` bytes are expected in all; that many as `sure` may be allocated for it."""
        have = self.stop - self.start
        front = _front(self.buf, self.offset)
        if self.start > front or not have:
            self._view[front : front + have] = self._view[self.start : self.stop]
            self.start, self.stop = front, front + have
        if self.stop == len(self.buf):
            self._move(_buffer(max(sure, have + BUFFER_BYTES)))

    def _move(self, fresh: Any) -> None:
        """Goes on in another buffer."""
        view, front, have = memoryview(fresh), _front(fresh, self.offset), self.stop - self.start
        view[front : front + have] = self._view[self.start : self.stop]
        self.buf, self._view = fresh, view
        self.start, self.stop = front, front + have


# What is read and decoded at a time into a buffer that holds a whole batch: for the cache's sake.
PIECE_BYTES = 1 << 20


class LendingWindow(Window):
    """Goes on from a window with buffers that are given away: large values need not be copied out of them.

    Bytes stay where they are until `renew`, so positions in the buffer hold. A buffer that nobody refers to any
    more is used again: fresh memory costs as much as reading into it.
    """

    def __init__(self, window: Window, want: int) -> None:
        self.source = window.source
        self.offset = window.offset
        self.buf, self._view = window.buf, window._view
        self.start, self.stop = window.start, window.stop
        self._known_size = window._known_size
        self._buffers: list[Any] = []
        self.renew(want)

    def plain(self) -> Window:
        """A window of the ordinary kind that goes on from here."""
        window = Window(self.source, 0)
        window.offset, window.start, window.stop = self.offset, self.start, self.stop
        window.buf, window._view = self.buf, self._view
        window._move(_buffer(max(self.stop - self.start, BUFFER_BYTES)))
        return window

    def expect(self, more: int) -> None:
        """The batch will take so many bytes from here on, as a guess."""
        self._until = self.start + more

    def renew(self, want: int) -> None:
        """Leaves the buffer to whoever has positions in it by now. Unused bytes go on in one for `want` bytes."""
        self._move(self._fresh(max(self.stop - self.start, self._bounded(want))))
        self.expect(want)  # up to where in the buffer this batch will reach, as a guess

    def _end(self, needed: int) -> int:
        # In pieces, for the cache's sake; and little more than what is wanted, since the rest must be copied.
        must = self.start + needed
        return min(max(must, min(self._until, self.stop + PIECE_BYTES)), len(self.buf))

    def _make_room(self, needed: int, sure: int) -> None:
        goal = max(self.start + sure, self.start + self._bounded(self._until - self.start))
        if goal > len(self.buf):
            bigger = self._fresh(goal)
            view = memoryview(bigger)
            view[: self.stop] = self._view[: self.stop]  # to the same places
            self.buf, self._view = bigger, view

    def _bounded(self, want: int) -> int:
        """A guess is believed as far as the source has bytes; of one of unknown size, for a piece."""
        size = self._known_size
        return min(want, self.stop - self.start + PIECE_BYTES if size is None else max(size - self.offset, 0))

    def _fresh(self, size: int) -> Any:
        """A buffer of at least this size: one that was given back, or a new one. Three are remembered at the most."""
        for i in range(len(self._buffers)):
            # Two references, the list's and this call's: no batch, no item of one, and not the window itself.
            if len(self._buffers[i]) >= size + _PAGE and sys.getrefcount(self._buffers[i]) == 2:
                return self._buffers[i]
        buffer = _buffer(size + size // 8)  # batches differ a little: the next one shall fit, too
        self._buffers = [*self._buffers[-2:], buffer]
        return buffer
