"""The walk over a file's frames: one reused buffer, refilled by pread, and what to do about damage on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ..._native import codec
from .problems import Problem, describe, error_for
from .resync import recover
from .source import InflateSource, Source, spool

Verify = Literal["all", "header"]
OnCorrupt = Literal["raise", "skip", "salvage"]
VERIFY = ("all", "header")
ON_CORRUPT = ("raise", "skip", "salvage")

# Small enough to stay in a core's cache between the read and the decode, large enough for few calls.
BUFFER_BYTES = 1 << 19

# feed(buf, start, stop) -> (frames, bytes, status, needed), as codec.scan
Feed = Callable[[bytearray, int, int], tuple[int, int, int, int]]


class FrameStream:
    """Frames of one source, from `offset` on. `pump(feed)` hands what is buffered to `feed` until nothing is left.

    on_corrupt: "raise" stops at the first damage. "skip" leaves out a record whose data are bad; where a length is bad
    it gives the rest of the file up. "salvage" looks for the next record behind any damage. What was left out is in
    `problems`.
    """

    def __init__(
        self,
        source: Source,
        *,
        verify: Verify = "all",
        on_corrupt: OnCorrupt = "raise",
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        if verify not in VERIFY:
            raise ValueError(f"wanted verify to be one of {', '.join(VERIFY)}, got {verify!r}")
        if on_corrupt not in ON_CORRUPT:
            raise ValueError(f"wanted on_corrupt to be one of {', '.join(ON_CORRUPT)}, got {on_corrupt!r}")
        self.source = source
        self.verify_data = verify == "all"
        self.on_corrupt = on_corrupt
        self.problems: list[Problem] = []
        self.offset = 0  # of buf[start], in the file
        self.record = 0  # the number of the frame there
        self._buf = bytearray(buffer_bytes)
        self._view = memoryview(self._buf)
        self._start = self._stop = 0
        self._over = False  # the rest was given up
        if on_corrupt == "salvage" and isinstance(source, InflateSource):
            # Salvage goes back and forth, which packed data cannot.
            self.source, problem = spool(source)
            source.close()
            self._packed_problem = problem
        else:
            self._packed_problem = None

    def close(self) -> None:
        self.source.close()

    def pump(self, feed: Feed) -> bool:
        """One call of `feed` with what is buffered, after a refill if there is nothing. False: at the end."""
        while True:
            if self._over or (self._start == self._stop and not self._refill(1)):
                return self._finish()
            frames, used, status, needed = feed(self._buf, self._start, self._stop)
            self._start += used
            self.offset += used
            self.record += frames
            if status == codec.NEED_MORE:
                if not self._refill(needed):
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

    def _refill(self, needed: int) -> bool:
        """More bytes behind those at hand, so that `needed` are there. False when the file has not that many.

        Memory grows with bytes that are there, never with what a header claims.
        """
        size = self.source.size()
        have = self._stop - self._start
        if size is not None and needed > size - self.offset:
            return False
        while True:
            if self._start:
                self._view[:have] = self._view[self._start : self._stop]
                self._start, self._stop = 0, have
            if have == len(self._buf):
                self._grow(min(needed, 2 * len(self._buf)) if size is None else needed)
            got = self.source.read_at(self.offset + have, self._view[have:])
            self._stop += got
            have += got
            if have >= needed:
                return True
            if not got:
                return False

    def _grow(self, size: int) -> None:
        bigger = bytearray(max(size, len(self._buf) + BUFFER_BYTES))
        bigger[: self._stop] = self._view[: self._stop]
        self._view.release()
        self._buf = bigger
        self._view = memoryview(bigger)

    def _left(self) -> int:
        size = self.source.size()
        return self._stop - self._start if size is None else max(size - self.offset, 0)

    def _damage(self, feed: Feed, status: int, needed: int) -> None:
        reason = describe(status, needed, self._left())
        if self.on_corrupt == "raise":
            raise error_for(self.source, self.record, self.offset, reason)
        if self.on_corrupt == "salvage":
            self._salvage(feed, reason)
        elif status == codec.BAD_DATA_CRC:
            self.problems.append(Problem(self.offset, self.record, reason, 1, needed))
            self._move(self.offset + needed)
            self.record += 1
        else:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        reason = f"{reason}; the rest of the file was given up"
        self.problems.append(Problem(self.offset, self.record, reason, 1, self._left()))
        self._over = True

    def _salvage(self, feed: Feed, reason: str) -> None:
        found = recover(self.source, self.offset)
        if found.repaired is not None:
            start, stop = found.repaired
            data = bytearray(stop - start)
            self.source.read_at(start, memoryview(data))
            frame = bytearray(codec.frame(data))
            feed(frame, 0, len(frame))
            self.problems.append(Problem(self.offset, self.record, f"{reason}; its data are whole and were kept"))
            self.record += 1
        else:
            lost = found.resume - self.offset
            if found.gave_up:
                reason += "; too much of what follows looks like records without being any: given up"
            self.problems.append(Problem(self.offset, self.record, reason, found.records_lost, lost))
            self.record += found.records_lost
        self._move(found.resume)

    def _move(self, offset: int) -> None:
        """On with the frame at `offset`, which may be buffered already."""
        ahead = offset - self.offset
        self._start = min(self._start + ahead, self._stop) if ahead >= 0 else self._stop
        if self._start == self._stop:
            self._start = self._stop = 0
        self.offset = offset
