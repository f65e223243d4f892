"""The part of a file that is in memory: one buffer, refilled from the source as its frames are used up."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ..._native import codec
from ...errors import CorruptError, InputError
from ..columns import Ints
from .diagnostics import Problem, describe, error_for
from .recovery import Recovery, Walker, recover
from .source import InflateSource, RecordSource, open_source, spool

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

    def __init__(self, source: RecordSource, buffer_bytes: int = BUFFER_BYTES) -> None:
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


class BorrowedWindow(Window):
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


# The walk over a file's frames: one reused buffer, refilled by pread, and what to do about damage on the way.

Verify = Literal["all", "header"]
OnCorrupt = Literal["raise", "skip", "salvage"]
VERIFY = ("all", "header")
ON_CORRUPT = ("raise", "skip", "salvage")

# How far to go through a file before coming back to Python: to show progress, and for Ctrl-C.
STRETCH_BYTES = 1 << 23

# feed(buf, start, stop) -> (frames, bytes, status, needed), as codec.scan
Feed = Callable[[Any, int, int], tuple[int, int, int, int]]

# feed_file(fd, buf, start, stop, offset) -> (frames, bytes, status, needed, start, stop), as codec.scan_file
FeedFile = Callable[[int, Any, int, int, int], tuple[int, int, int, int, int, int]]


class FrameStream:
    """Frames of one source, from `offset` on. `pump(feed)` hands what is buffered to `feed` until nothing is left.

    on_corrupt: "raise" stops at the first damage. "skip" leaves out a record whose data are bad; where a length is bad
    it gives the rest of the file up. "salvage" looks for the next record behind any damage; with `keep_doubtful`, it
    also takes what might be data of a damaged record. What was left out is in `problems`.
    """

    def __init__(
        self,
        source: RecordSource,
        *,
        verify: Verify = "all",
        on_corrupt: OnCorrupt = "raise",
        keep_doubtful: bool = False,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        if verify not in VERIFY:
            raise ValueError(f"expected verify to be one of {', '.join(VERIFY)}, got {verify!r}")
        if on_corrupt not in ON_CORRUPT:
            raise ValueError(f"expected on_corrupt to be one of {', '.join(ON_CORRUPT)}, got {on_corrupt!r}")
        self.source = source
        self.verify_data = verify == "all"
        self.on_corrupt = on_corrupt
        self.keep_doubtful = keep_doubtful
        self.problems: list[Problem] = []
        self.record = 0  # the number of the frame that comes next
        self._over = False  # the rest was given up
        self._busy = False
        self._closing = False
        self._walker: Walker | None = None  # of damage; made when there is some
        if on_corrupt == "salvage" and isinstance(source, InflateSource):
            # Salvage goes back and forth, which packed data cannot.
            self.source, problem = spool(source)
            source.close()
            self._packed_problem = problem
        else:
            self._packed_problem = None
        self.window = Window(self.source, buffer_bytes)

    @property
    def offset(self) -> int:
        """Of the frame that comes next, in the file."""
        return self.window.offset

    @offset.setter
    def offset(self, offset: int) -> None:
        self.window.jump(offset)

    def close(self) -> None:
        if self._busy:  # another thread is reading: it closes when it is done, lest it reads another file's bytes
            self._closing = True
        else:
            self.source.close()

    def pump(self, feed: Feed, feed_file: FeedFile | None = None) -> bool:
        """One call of `feed` with what is buffered, after a refill if there is nothing. False: at the end.

        Where the buffer holds the file's own bytes, `feed_file` is called instead, if there is one: it may read on.
        """
        if self._busy:
            raise RuntimeError(f"{self.source.path}: two threads use one reader; open one for each")
        self._busy = True
        try:
            return self._pump(feed, feed_file)
        except CorruptError as error:
            if self.on_corrupt != "skip":
                raise
            self._give_up(error.reason)  # packed data that cannot be unpacked any further
            return True
        finally:
            self._busy = False
            if self._closing:
                self.close()

    def _pump(self, feed: Feed, feed_file: FeedFile | None) -> bool:
        window = self.window
        if isinstance(self.source, InflateSource) or self.source.on_bytes is not None:
            feed_file = None
        while True:
            if self._over or (window.empty and not window.refill(1)):
                return self._finish()
            if feed_file is None:
                frames, used, status, needed = feed(window.buf, window.start, window.stop)
                window.use(used)
            else:
                frames, used, status, needed, start, stop = feed_file(
                    self.source.fd, window.buf, window.start, window.stop, window.offset
                )
                window.went(used, start, stop)
            self.record += frames
            if status == codec.NEED_MORE:
                if not window.refill(needed):
                    self._damage(feed, status, needed)
                elif not frames:
                    continue
            elif status != codec.OK:
                self._damage(feed, status, needed)
            return True

    def _finish(self) -> bool:
        if self._packed_problem:
            lost = Problem(self.offset, self.record, self._packed_problem.reason, 1)
            self._packed_problem = None
            self.problems.append(lost)
        return False

    def _damage(self, feed: Feed, status: int, needed: int) -> None:
        reason = describe(status, needed, self.window.left())
        if self.on_corrupt == "raise":
            raise error_for(self.source, self.record, self.offset, reason)
        if self._packed_problem:
            # Bytes behind a damage can unpack to copies of records that came before, CRCs and all.
            end = self.window.offset + self.window.left()
            self._finish()
            self.window.jump(end)
        elif self.on_corrupt == "salvage":
            self._salvage(feed, reason)
        elif status == codec.BAD_DATA_CRC and self._ends_after(needed):
            self.problems.append(Problem(self.offset, self.record, reason, 1, needed))
            self.window.jump(self.offset + needed)
            self.record += 1
        else:
            self._give_up(reason)

    def _ends_after(self, frame_bytes: int) -> bool:
        """Whether the record here, whose data are bad, ends where its header says: bytes may be missing from it.

        Packed data cannot be looked at further on, and have a checksum of their own.
        """
        if isinstance(self.source, InflateSource):
            return True
        if self._walker is None:
            self._walker = Walker(self.source)
        if self._walker.one_byte_wrong(self.offset, frame_bytes - codec.OVERHEAD_BYTES):
            return True  # told without a look at the rest of the file
        return recover(self._walker, self.offset).resume == self.offset + frame_bytes

    def _give_up(self, reason: str) -> None:
        reason = f"{reason}; the rest of the file was given up"
        self.problems.append(Problem(self.offset, self.record, reason, 1, self.window.left()))
        self._over = True

    def _salvage(self, feed: Feed, reason: str) -> None:
        found = self._recover()
        if found.repaired is not None:
            start, stop = found.repaired
            data = bytearray(stop - start)
            self.source.read_at(start, memoryview(data))
            frame = bytearray(codec.frame(data))
            feed(frame, 0, len(frame))
            self.problems.append(Problem(self.offset, self.record, f"{reason}; its data are whole and were kept"))
            self.record += 1
        else:
            self._leave_out(found, reason)
        self.window.jump(found.resume)

    def _recover(self) -> Recovery:
        if self._walker is None:
            self._walker = Walker(self.source)
        return recover(self._walker, self.offset, self.keep_doubtful)

    def _leave_out(self, found: Recovery, reason: str) -> None:
        if found.gave_up:
            reason += "; too much of what follows looks like records without being any: given up"
        if found.repeated:
            reason += f"; up to byte {found.resume:,}, the records before it were written a second time: left out"
        doubtful = 0
        if found.doubt is not None:
            doubtful = found.doubt.records
            reason += f"; {found.doubt.words()}: {'kept' if self.keep_doubtful else 'left out'}"
        self.problems.append(
            Problem(self.offset, self.record, reason, found.records_lost, found.resume - self.offset, doubtful)
        )
        self.record += found.records_lost


# A file's records as runs of whole frames: for those who copy, count or measure without looking into them.
#
# A frame is made of its record alone, so frames that were good in one file are good in the next, as they are.

Progress = Callable[[int], None]  # gets how many bytes of the file were gone through since the last call

# Gets the frames' bytes and where in them each frame starts. Both are used again for the next run.
Put = Callable[[memoryview, Ints], None]

MOST_RECORDS = 1 << 16  # of one run


class Runs:
    """One file from a record on, a buffer's worth at a time. Holds one descriptor and a buffer until close().

    spool            False: a packed file ends at its first damage with an error, because looking behind it
                     takes room to unpack it all
    offset, record   where to begin, in bytes of what the file unpacks to, and the number of the record there
    on_bytes         sees the file's own bytes, once and in order; not where damage is searched through
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify: Verify = "all",
        on_corrupt: OnCorrupt = "raise",
        keep_doubtful: bool = False,
        spool: bool = True,
        offset: int = 0,
        record: int = 0,
        progress: Progress | None = None,
        on_bytes: Callable[[memoryview], None] | None = None,
    ) -> None:
        source = open_source(path)
        try:
            self.compression = source.compression
            self.file_bytes = source.file_bytes()
            packed = source.compression != "none"
            # Only a plain file's place tells how much of it is done.
            self._progress = None if packed else progress
            source.on_bytes = _both(on_bytes, progress if packed else None)
            self._source = source
            mode: OnCorrupt = "raise" if packed and not spool else on_corrupt
            self._stream = FrameStream(source, verify=verify, on_corrupt=mode, keep_doubtful=keep_doubtful)
        except OSError as error:
            source.close()
            where = f"into {tempfile.gettempdir()} (TMPDIR names another place)"
            raise InputError(f"{source.path}: cannot be unpacked {where}: {error.strerror}") from error
        except BaseException:
            source.close()
            raise
        self._stream.offset = offset
        self._stream.record = record
        self._starts = np.empty(MOST_RECORDS, np.int64)

    @property
    def stream(self) -> FrameStream:
        return self._stream

    @property
    def offset(self) -> int:
        """Where the next run begins, in bytes of what the file unpacks to."""
        return self._stream.offset

    @property
    def record(self) -> int:
        """The number of the next run's first record."""
        return self._stream.record

    @property
    def problems(self) -> list[Problem]:
        """What was left out so far, and why."""
        return self._stream.problems

    def next(self, put: Put, most: int = MOST_RECORDS) -> int | None:
        """Hands at most `most` records to `put`. How many they were, or None when the file is at its end."""
        handed = 0

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            nonlocal handed
            starts = self._starts[: min(most - handed, MOST_RECORDS)]
            walk = codec.scan(buf, start, stop, self._stream.verify_data, starts)
            if walk[0]:
                put(memoryview(buf)[start : start + walk[1]], starts[: walk[0]])
                handed += walk[0]
            return walk

        return handed if self._pump(feed) else None

    def count(self) -> int | None:
        """How many records a next stretch of the file has, without showing them; None at its end."""
        counted = 0

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            nonlocal counted
            walk = codec.scan(buf, start, stop, self._stream.verify_data)
            counted += walk[0]
            return walk

        def feed_file(fd: int, buf: Any, start: int, stop: int, at: int) -> tuple[int, int, int, int, int, int]:
            nonlocal counted
            walk = codec.scan_file(fd, buf, start, stop, at, self._stream.verify_data, None, STRETCH_BYTES)
            counted += walk[0]
            return walk

        return counted if self._pump(feed, feed_file) else None

    def _pump(self, feed: Feed, feed_file: FeedFile | None = None) -> bool:
        before = self._stream.offset
        more = self._stream.pump(feed, feed_file)
        if self._stream.problems:
            self._source.on_bytes = None
        if self._progress and self._stream.offset > before:
            self._progress(self._stream.offset - before)
        return more

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _both(
    on_bytes: Callable[[memoryview], None] | None, progress: Progress | None
) -> Callable[[memoryview], None] | None:
    if progress is None:
        return on_bytes

    def see(data: memoryview) -> None:
        if on_bytes:
            on_bytes(data)
        progress(len(data))

    return see
