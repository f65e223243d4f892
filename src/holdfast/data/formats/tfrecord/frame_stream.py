"""Streams the frames of a file through one reused buffer (`Window`), and handles corrupt frames (`FrameStream`)."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ...._native import codec
from ....errors import CorruptError, InputError
from ..base import Problem
from ..columns import Ints
from .diagnostics import describe, error_for
from .recovery import FrameSearch, Recovery, recover
from .source import PAGE_BYTES, InflateSource, RecordSource, front_of, new_buffer, open_source, spool

# Small enough to stay in a core's cache between the read and the decode, large enough for few calls.
BUFFER_BYTES = 1 << 18


class Window:
    """buf[start:stop] holds the source's bytes from `offset` on. The buffer is reused."""

    def __init__(self, source: RecordSource, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.source = source
        self.offset = 0
        self.buf = new_buffer(buffer_bytes)
        self.start = self.stop = front_of(self.buf, 0)
        self._known_size = source.size()
        self._view = memoryview(self.buf)

    @property
    def empty(self) -> bool:
        return self.start == self.stop

    def next_frame_bytes(self) -> int:
        """Returns the size that the next header claims, at most what the source has; a minimum if there is no valid
        one."""
        if self.stop - self.start < codec.HEADER_BYTES and not self.refill(codec.HEADER_BYTES):
            return codec.OVERHEAD_BYTES
        if codec.find_header(self.buf, self.start, self.start + codec.HEADER_BYTES) != self.start:
            return codec.OVERHEAD_BYTES
        claimed = int.from_bytes(self.buf[self.start : self.start + 8], "little")
        return min(claimed, self.left()) + codec.OVERHEAD_BYTES

    def use(self, n: int) -> None:
        """Advances by n bytes."""
        self.start += n
        self.offset += n

    def advance_to(self, n: int, start: int, stop: int) -> None:
        """Advances by n bytes; the caller has refilled the buffer, and what follows is at buf[start:stop]."""
        self.offset += n
        self.start, self.stop = start, stop

    def jump(self, offset: int) -> None:
        """Continues at `offset`, which may be buffered already."""
        ahead = offset - self.offset
        self.start = min(self.start + ahead, self.stop) if ahead >= 0 else self.stop
        self.offset = offset

    def left(self) -> int:
        """Returns how many bytes there are from here to the end; of compressed data only those in the buffer."""
        size = self.source.size()
        return self.stop - self.start if size is None else max(size - self.offset, 0)

    def refill(self, needed: int) -> bool:
        """Reads until `needed` bytes are buffered. Returns False if the source has fewer.

        Memory grows with bytes that exist, never with what a header claims.
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
        """Returns up to where to fill the buffer."""
        return len(self.buf)

    def _make_room(self, needed: int, sure: int) -> None:
        """Makes room behind `stop` for `needed` bytes in total, but allocates at most `sure` bytes for them."""
        have = self.stop - self.start
        front = front_of(self.buf, self.offset)
        if self.start > front or not have:
            self._view[front : front + have] = self._view[self.start : self.stop]
            self.start, self.stop = front, front + have
        if self.stop == len(self.buf):
            try:
                self._move(new_buffer(max(sure, have + BUFFER_BYTES)))
            except MemoryError as error:
                limit = resource.getrlimit(resource.RLIMIT_AS)[0]
                by = "memory" if limit == resource.RLIM_INFINITY else f"RLIMIT_AS of {limit:,} bytes"
                text = f"the record at byte {self.offset:,} needs {needed:,} bytes, more than the {by} leaves"
                hint = "; it may be a gzip bomb" if self.source.size() is None else ""
                raise InputError(f"{self.source.path}: {text}{hint}; raise the limit to read it") from error

    def _move(self, fresh: Any) -> None:
        """Continues in another buffer."""
        view, front, have = memoryview(fresh), front_of(fresh, self.offset), self.stop - self.start
        view[front : front + have] = self._view[self.start : self.stop]
        self.buf, self._view = fresh, view
        self.start, self.stop = front, front + have


# Bytes read and decoded at a time into a buffer that holds a full batch, so that they stay in the CPU's cache.
PIECE_BYTES = 1 << 20


class BorrowedWindow(Window):
    """Continues a window with buffers that the batches keep, so that large values are not copied.

    Bytes do not move until `renew`, so positions in the buffer stay valid. A buffer that no batch refers to any more is
    reused: fresh memory costs as much as reading into it.
    """

    def __init__(self, window: Window, size: int) -> None:
        self.source = window.source
        self.offset = window.offset
        self.buf, self._view = window.buf, window._view
        self.start, self.stop = window.start, window.stop
        self._known_size = window._known_size
        self._buffers: list[Any] = []
        self.renew(size)

    def plain(self) -> Window:
        """Returns an ordinary window that continues from here."""
        window = Window(self.source, 0)
        window.offset, window.start, window.stop = self.offset, self.start, self.stop
        window.buf, window._view = self.buf, self._view
        window._move(new_buffer(max(self.stop - self.start, BUFFER_BYTES)))
        return window

    def expect(self, more: int) -> None:
        """Sets how many bytes the batch will probably take from here on."""
        self._until = self.start + more

    def renew(self, size: int) -> None:
        """Leaves the buffer to the batch that refers to it, and moves unused bytes to one for `size` bytes."""
        self._move(self._fresh(max(self.stop - self.start, self._bounded(size))))
        self.expect(size)

    def _end(self, needed: int) -> int:
        # In pieces that fit the cache; and little more than the batch takes, because the rest must be copied.
        must = self.start + needed
        return min(max(must, min(self._until, self.stop + PIECE_BYTES)), len(self.buf))

    def _make_room(self, needed: int, sure: int) -> None:
        goal = max(self.start + sure, self.start + self._bounded(self._until - self.start))
        if goal > len(self.buf):
            bigger = self._fresh(goal)
            view = memoryview(bigger)
            view[: self.stop] = self._view[: self.stop]  # to the same positions
            self.buf, self._view = bigger, view

    def _bounded(self, size: int) -> int:
        """Limits a guess to the bytes that the source has; to one piece if its size is unknown."""
        known = self._known_size
        return min(size, self.stop - self.start + PIECE_BYTES if known is None else max(known - self.offset, 0))

    def _fresh(self, size: int) -> Any:
        """Returns a buffer of at least this size: an unused one, or a new one. At most three are remembered."""
        for i in range(len(self._buffers)):
            # Two references, the list's and this call's: neither a batch nor the window uses it.
            if len(self._buffers[i]) >= size + PAGE_BYTES and sys.getrefcount(self._buffers[i]) == 2:
                return self._buffers[i]
        buffer = new_buffer(size + size // 8)  # the next batch may be a little larger
        self._buffers = [*self._buffers[-2:], buffer]
        return buffer


Verify = Literal["all", "header"]
OnCorrupt = Literal["raise", "skip", "salvage"]
VERIFY = ("all", "header")
ON_CORRUPT = ("raise", "skip", "salvage")

# How many bytes a call into C scans before it returns to Python, for progress and Ctrl-C.
STRETCH_BYTES = 1 << 23

# feed(buf, start, stop) -> (frames, bytes, status, needed), as codec.scan
Feed = Callable[[Any, int, int], tuple[int, int, int, int]]

# feed_file(fd, buf, start, stop, offset) -> (frames, bytes, status, needed, start, stop), as codec.scan_file
FeedFile = Callable[[int, Any, int, int, int], tuple[int, int, int, int, int, int]]


class FrameStream:
    """Frames of one source, from `offset` on. Each `pump(feed)` passes the buffered bytes to `feed`.

    on_corrupt: "raise" stops at the first corrupt frame. "skip" leaves out a record with corrupt data, and the rest of
    the file after a corrupt length. "salvage" searches for the next record after any corrupt one; with `keep_doubtful`,
    it also takes what might be data of a corrupt record. `problems` lists what was left out.
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
        self.record = 0  # the number of the next frame
        self._over = False  # the rest is left out
        self._busy = False
        self._closing = False
        self._search: FrameSearch | None = None  # created at the first corrupt frame
        if on_corrupt == "salvage" and isinstance(source, InflateSource):
            # Salvage needs random access, which compressed data do not have.
            self.source, problem = spool(source)
            source.close()
            self._decompression_error = problem
        else:
            self._decompression_error = None
        self.window = Window(self.source, buffer_bytes)

    @property
    def offset(self) -> int:
        """The offset of the next frame in the file."""
        return self.window.offset

    @offset.setter
    def offset(self, offset: int) -> None:
        self.window.jump(offset)

    def close(self) -> None:
        if self._busy:  # the reading thread closes it, or it could read another file's bytes
            self._closing = True
        else:
            self.source.close()

    def pump(self, feed: Feed, feed_file: FeedFile | None = None) -> bool:
        """Calls `feed` once with the buffered bytes, after a refill if there are none. Returns False at the end.

        If the file is not compressed, `feed_file` is called instead where given: it may refill the buffer itself.
        """
        if self._busy:
            raise RuntimeError(f"{self.source.path}: two threads use one reader; open one for each")
        self._busy = True
        try:
            return self._pump(feed, feed_file)
        except CorruptError as error:
            if self.on_corrupt != "skip":
                raise
            self._give_up(error.reason)  # the data cannot be decompressed any further
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
                window.advance_to(used, start, stop)
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
        if self._decompression_error:
            lost = Problem(self.offset, self.record, self._decompression_error.reason, 1)
            self._decompression_error = None
            self.problems.append(lost)
        return False

    def _damage(self, feed: Feed, status: int, needed: int) -> None:
        reason = describe(status, needed, self.window.left())
        if self.on_corrupt == "raise":
            raise error_for(self.source, self.record, self.offset, reason)
        if self._decompression_error:
            # Corrupt compressed data can decompress to copies of earlier records with valid CRCs.
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
        """Returns whether the record here, whose data are corrupt, ends where its header says: bytes may be missing.

        Compressed data have a checksum of their own, and cannot be searched.
        """
        if isinstance(self.source, InflateSource):
            return True
        if self._search is None:
            self._search = FrameSearch(self.source)
        if self._search.one_byte_wrong(self.offset, frame_bytes - codec.OVERHEAD_BYTES):
            return True  # without a search of the rest of the file
        return recover(self._search, self.offset).resume == self.offset + frame_bytes

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
            self.problems.append(Problem(self.offset, self.record, f"{reason}; its data are intact and were kept"))
            self.record += 1
        else:
            self._leave_out(found, reason)
        self.window.jump(found.resume)

    def _recover(self) -> Recovery:
        if self._search is None:
            self._search = FrameSearch(self.source)
        return recover(self._search, self.offset, self.keep_doubtful)

    def _leave_out(self, found: Recovery, reason: str) -> None:
        if found.gave_up:
            reason += "; the search for the next record took too long: given up"
        if found.repeated:
            reason += f"; up to byte {found.resume:,}, the records before it were written a second time: left out"
        doubtful = 0
        if found.doubtful is not None:
            doubtful = found.doubtful.records
            reason += f"; {found.doubtful.describe()}: {'kept' if self.keep_doubtful else 'left out'}"
        self.problems.append(
            Problem(self.offset, self.record, reason, found.records_lost, found.resume - self.offset, doubtful)
        )
        self.record += found.records_lost


# Copying, counting and measuring records as frames, without decoding them. A frame depends on its record alone,
# so it can be copied to another file unchanged.

Progress = Callable[[int], None]  # called with the bytes of the file that were read since the last call

# Called with the frames' bytes and where in them each frame starts. Both are reused for the next batch.
Put = Callable[[memoryview, Ints], None]

MAX_RECORDS = 1 << 16  # of one batch


class FrameBatches:
    """Frames of one file in batches of a buffer's size. Holds one descriptor and a buffer until close().

    spool            False: a corrupt compressed file raises an error, because searching behind the corrupt record
                     needs space to decompress the entire file
    offset, record   where to begin, in bytes of the decompressed file, and the number of the record there
    on_bytes         called with the file's own bytes, once and in order, up to the first corrupt record
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
            compressed = source.compression != "none"
            # The offset shows the progress of a plain file only.
            self._progress = None if compressed else progress
            source.on_bytes = _both(on_bytes, progress if compressed else None)
            self._source = source
            mode: OnCorrupt = "raise" if compressed and not spool else on_corrupt
            self._stream = FrameStream(source, verify=verify, on_corrupt=mode, keep_doubtful=keep_doubtful)
        except OSError as error:
            source.close()
            where = f"into {tempfile.gettempdir()} (set TMPDIR to use another folder)"
            raise InputError(f"{source.path}: cannot be decompressed {where}: {error.strerror}") from error
        except BaseException:
            source.close()
            raise
        self._stream.offset = offset
        self._stream.record = record
        self._starts = np.empty(MAX_RECORDS, np.int64)

    @property
    def stream(self) -> FrameStream:
        return self._stream

    @property
    def offset(self) -> int:
        """Where the next batch begins, in bytes of the decompressed file."""
        return self._stream.offset

    @property
    def record(self) -> int:
        """The number of the next batch's first record."""
        return self._stream.record

    @property
    def problems(self) -> list[Problem]:
        """What was left out so far, and why."""
        return self._stream.problems

    def next(self, put: Put, maximum: int = MAX_RECORDS) -> int | None:
        """Passes at most `maximum` records to `put`. Returns how many, or None at the end of the file."""
        handed = 0

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            nonlocal handed
            starts = self._starts[: min(maximum - handed, MAX_RECORDS)]
            result = codec.scan(buf, start, stop, self._stream.verify_data, starts)
            if result[0]:
                put(memoryview(buf)[start : start + result[1]], starts[: result[0]])
                handed += result[0]
            return result

        return handed if self._pump(feed) else None

    def count(self) -> int | None:
        """Scans the next part of the file. Returns how many records it has, or None at the end of the file."""
        counted = 0

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            nonlocal counted
            result = codec.scan(buf, start, stop, self._stream.verify_data)
            counted += result[0]
            return result

        def feed_file(fd: int, buf: Any, start: int, stop: int, at: int) -> tuple[int, int, int, int, int, int]:
            nonlocal counted
            result = codec.scan_file(fd, buf, start, stop, at, self._stream.verify_data, None, STRETCH_BYTES)
            counted += result[0]
            return result

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

    def __enter__(self) -> FrameBatches:
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
