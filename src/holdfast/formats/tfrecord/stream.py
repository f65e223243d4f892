"""The walk over a file's frames: one reused buffer, refilled by pread, and what to do about damage on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ..._native import codec
from ...errors import CorruptError
from .problems import Problem, describe, error_for
from .resync import Recovery, Walker, recover
from .source import InflateSource, Source, spool
from .window import BUFFER_BYTES, Window

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
        source: Source,
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
