"""Where a file goes on behind a damage, and which of the frames there are records.

Frames are chained by their lengths, so after a damage the place of the next record must be found. A place where both
CRCs match is not enough: a record may hold another TFRecord, whose frames are just as good. A frame is taken for a
record only where it cannot be data of a damaged one. What can be told:

- *The length of the damaged record.* Its header is good, or one byte of it is wrong and the rest show which; or its
  data are whole, and their CRC and what is left of the header agree on where they end. What lies before that end is
  data, whatever it looks like. The end itself is believed if one byte is all that is wrong with the data (a CRC tells
  that, too), or if the records from there on stand in step up to the end of the file: bytes may have been put into the
  record or taken out of it, and then its end is not there.
- *What reaches the end of the file.* Behind the data of a record come four bytes of CRC, so a chain of good frames in
  there stops short of the next record, or of the end of the file. A chain that reaches it is one of records, and so is
  one that reaches a record of that chain over a header with one wrong byte. But behind a good header whose record would
  end after the end of the file, a chain may be data of that record, and the file be cut right behind one of its frames.

All else that looks like records might be data. It is left out, and its count and its bytes are told (`Doubt`): that is
every good frame between a damage after which no length can be told and the last chain. With one damage in a file,
nothing is left out but what it touched.

Bytes that were taken out can put the frames of a damaged record in step with what follows it, as when the file is cut
right behind one of them and the header before them is damaged. Such bytes are those of another file with another
damage, and are taken for that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cache
from typing import NamedTuple

import numpy as np

from ..._native import codec
from .source import RecordSource

_WINDOW_BYTES = 1 << 20
_HEADER = codec.HEADER_BYTES
_FOOTER = codec.FOOTER_BYTES
_OVERHEAD = codec.OVERHEAD_BYTES
_FIRST_BYTES = 1 << 14

# How far, and over how many runs of good frames, the record before a known boundary is looked for.
_LENGTH = 8
_NEAR_BYTES = 64 << 20
_CHAINS = 16

# How much of a write that was done twice is looked for.
_REPEATED_BYTES = 1 << 18

# No record is longer. Eight bytes of data and their CRC look like a header too, and text or floats like a length above.
_MOST_BYTES = 1 << 40

# A wrong byte is looked for in records up to this length.
_CORRECTED_BYTES = 1 << 20

# A damaged header that shares this many of its 12 bytes with the right one was that header. The seven high bytes of a
# length below 256 are zero in any case, so they count for nothing.
_ALIKE_BYTES = 3


class Doubt(NamedTuple):
    """Good frames that might be data of the damaged record before them."""

    records: int
    start: int
    stop: int

    def words(self) -> str:
        records = "1 record" if self.records == 1 else f"{self.records:,} records"
        return f"{records} in bytes {self.start:,}–{self.stop:,} might be data of a damaged record"


class Recovery(NamedTuple):
    resume: int  # where the next frame begins, or the end of the file
    records_lost: int  # at least
    repaired: tuple[int, int] | None = None  # the damaged record's data, when only its header was damaged
    doubt: Doubt | None = None  # what lies between here and `resume`, or from there on when it is kept
    repeated: bool = False  # what lies between here and `resume` are the records before it once more
    gave_up: bool = False  # the search cost too much: made to look like records all over


def recover(walker: Walker, at: int, keep_doubtful: bool = False) -> Recovery:
    """Finds how to go on behind the bad frame that begins at byte `at`, which is where a record began."""
    walker.begin()
    try:
        found = _recover(walker, at, keep_doubtful)
        again = 0 if found.repaired else walker.repeated(at, found.resume)
        return Recovery(found.resume + again, 0, repeated=True) if again else found
    except _TooMuchWorkError:
        return Recovery(walker.size, 1, gave_up=True)


def _recover(walker: Walker, at: int, keep_doubtful: bool) -> Recovery:
    boundary = walker.boundary_after(at)
    good = walker.length_at(at)
    length = walker.corrected_length(at) if good is None else good
    end = None if length is None else at + _OVERHEAD + length
    if end is not None and boundary < end:
        boundary = walker.whole_from  # in the extent of this record, nothing less is believed
    data = walker.data_behind_bad_header(at, length, boundary) if good is None else None
    if data is not None:
        return Recovery(data[1] + _FOOTER, 0, data)
    if length is not None and end is not None and walker.may_end(end, boundary):
        if good is not None:
            sure = walker.in_step(end) == walker.size or walker.one_byte_wrong(at, length)
        else:
            sure = walker.past_written_length(at, end, walker.one_byte_wrong(at, length))
        if sure and not walker.is_crossed(at, end):
            return Recovery(end, 1)
    if end is not None and end > walker.size:
        # The rest of the file is this record's, or bytes are missing from it. Whatever looks like records in there may
        # be its data.
        boundary = walker.size
    lost = 1 if boundary - at >= _OVERHEAD else 0
    runs = walker.runs(at + 1, boundary)
    if not runs:
        return Recovery(boundary, lost)
    if keep_doubtful:
        first = next((run for run in runs if run.start == end), runs[0])
        return Recovery(first.start, lost, doubt=first)
    return Recovery(boundary, lost, doubt=Doubt(sum(run.records for run in runs), runs[0].start, runs[-1].stop))


class _TooMuchWorkError(Exception):
    pass


class Walker:
    """Questions about the frames of one source, answered with two reused windows and a bounded number of bytes read."""

    def __init__(self, source: RecordSource) -> None:
        size = source.size()
        if size is None:
            raise ValueError("a source of unknown size cannot be searched")
        self.source = source
        self.size = size
        self.whole_from = size  # from here on, all frames are good
        self._boundaries: list[int] = []  # behind the first damage: where records are known to begin
        self._runs: list[Doubt] = []  # all runs of good frames there
        self._in_step: dict[int, int] = {}
        self._has_cut_record = False  # whether a good header was passed whose record ends behind the end of the file
        window = min(_WINDOW_BYTES, max(size, 1))
        self._walk = bytearray(window)
        self._check = memoryview(bytearray(window))
        self.begin()

    def begin(self) -> None:
        # A file can be made to hold a good header at every twelfth byte, each asking for a CRC over all the rest.
        self._budget = 16 * self.size + (64 << 20)

    def _read_into(self, at: int, view: memoryview) -> int:
        n = self.source.read_at(at, view)
        self._budget -= n
        if self._budget < 0:
            raise _TooMuchWorkError
        return n

    def _read(self, at: int, n: int) -> bytes:
        data = bytearray(max(0, min(n, self.size - at)))
        return bytes(data[: self.source.read_at(at, memoryview(data))])

    def length_at(self, at: int) -> int | None:
        """The length of the record at `at`, when its header is good."""
        header = self._read(at, _HEADER)
        if len(header) < _HEADER or codec.find_header(header, 0, _HEADER) != 0:
            return None
        return int.from_bytes(header[:8], "little")

    def frame_end(self, at: int) -> int | None:
        """The end of the frame at `at`, when it is good."""
        length = self.length_at(at)
        if length is None or length > self.size - at - _OVERHEAD:
            return None
        stop = at + _HEADER + length
        return stop + _FOOTER if self.crc_matches(at + _HEADER, stop) else None

    def crc_matches(self, start: int, stop: int) -> bool:
        """Whether the four bytes at `stop` are the masked CRC of the bytes from `start` to there."""
        if stop < start:
            return False
        crc, at = 0, start
        while at < stop:
            n = self._read_into(at, self._check[: stop - at])
            if n == 0:
                return False
            crc = codec.crc32c(self._check[:n], crc)
            at += n
        return self._read(stop, _FOOTER) == _masked(crc)

    def chain(self, at: int) -> tuple[int, int]:
        """The end of the run of good frames that begins at `at`, and how many they are."""
        frames = 0
        piece = _FIRST_BYTES  # a chain may end at once: begin with little
        while at < self.size:
            n = self._read_into(at, memoryview(self._walk)[:piece])
            count, used, status, _ = codec.scan(self._walk, 0, n, True)
            at += used
            frames += count
            piece = min(4 * piece, len(self._walk))
            if status == codec.OK or used:
                continue
            end = self.frame_end(at) if status == codec.NEED_MORE else None  # longer than what was read
            if end is None:
                break
            at = end
            frames += 1
        return at, frames

    def next_frame(self, at: int) -> int:
        """The first good frame at or behind `at`; the file's size when there is none."""
        piece = _FIRST_BYTES
        while at + _OVERHEAD <= self.size:
            n = self._read_into(at, memoryview(self._walk)[:piece])
            piece = min(4 * piece, len(self._walk))
            place = -1
            while (place := codec.find_header(self._walk, place + 1, n)) >= 0:
                if self.frame_end(at + place) is not None:
                    return at + place
                length = self.length_at(at + place)
                if length is not None and self.size - at - place - _OVERHEAD < length <= _MOST_BYTES:
                    self._has_cut_record = True
            at += max(n - _HEADER + 1, 1)
        return self.size

    def boundary_after(self, at: int) -> int:
        """The first place behind `at` that is known to be the beginning of a record, or the end of the file."""
        if not self._boundaries:
            self._find_boundaries(at + 1)
        return self._boundaries[bisect_right(self._boundaries, at)]

    def _find_boundaries(self, at: int) -> None:
        """Goes through the file once: behind the last damage, all that is left is known by its reaching the end."""
        known = [self.size]
        bad = [at - 1]  # where bad frames begin
        before_cut: list[int] = []  # those before a record that was passed and that the end of the file cuts
        while (start := self.next_frame(at)) < self.size:
            at, frames = self.chain(start)
            if self._has_cut_record and (at == self.size or not before_cut):
                before_cut = before_cut or bad[:_CHAINS]
                # Unless it lies in the data of one record with a bad header.
                if any(self.crc_matches(one + _HEADER, start - _FOOTER) for one in before_cut):
                    self._has_cut_record, before_cut = False, []
            bad.append(at)
            self._runs.append(Doubt(frames, start, at))
            if at == self.size and not self._has_cut_record:
                self.whole_from = start
                known.append(start)
        # A record whose data's CRC stands right before a boundary is one; then so are the good frames it follows.
        tried = 0
        for _, start, end in reversed(self._runs):
            tried += 1
            if tried > _CHAINS or known[-1] - end > _NEAR_BYTES:
                break
            length = known[-1] - end - _OVERHEAD
            if self.corrected_length(end) == length and self.crc_matches(end + _HEADER, known[-1] - _FOOTER):
                known += [end, start]
                tried = 0
        self._boundaries = known[::-1]

    def in_step(self, at: int) -> int:
        """How far the records from `at` on stand in step: up to the end of the file, or to a damage.

        A record with bad data is stepped over by its header, one with a bad header where its data end.
        """
        passed: list[int] = []
        end = self.size
        while at < self.size:
            if at in self._in_step:
                end = self._in_step[at]
                break
            passed.append(at)
            end, _ = self.chain(at)
            following = self._step(end) if end < self.size else end
            if following is None or following > self.size:
                break
            at = end = following
        self._in_step.update(dict.fromkeys(passed, end))
        return end

    def may_end(self, end: int, boundary: int) -> bool:
        """Whether a record can end at `end`: not in the midst of one of the records from `boundary` on."""
        if end <= boundary:
            return True
        while boundary < end <= self.size:
            boundary = self.frame_end(boundary) or self.boundary_after(boundary)
        return end == boundary

    def is_crossed(self, at: int, end: int) -> bool:
        """Whether a good header in the record at `at` leads past its `end`, to records in step up to the file's end.

        Frames in the data of a record end before it does. Such a header is that of the next record, drawn into this one
        by bytes that were taken out of it: then what begins at `end` is data of the next record.
        """
        place = at
        while place + 1 < end:
            n = self._read_into(place + 1, memoryview(self._walk)[: end + _HEADER - place - 2])
            found = codec.find_header(self._walk, 0, n)
            if found < 0:
                place += max(n - _HEADER + 1, 1)
                continue
            place += 1 + found
            length = self.length_at(place)
            if length is not None:
                reached = place + _OVERHEAD + length
                if end < reached <= self.size and self.in_step(reached) == self.size:
                    return True
        return False

    def past_written_length(self, at: int, end: int, sure: bool) -> bool:
        """Whether records stand in step from `end` on, where the record at `at` ends as its corrected header says.

        Where bytes were taken out, the rest of a header and that of the first frame in its data can make one such
        header. Then the length that is written there is the outer record's, and the frames do not reach past it.
        """
        written = int.from_bytes(self._read(at, 8), "little")
        reached = self.in_step(end)
        past = written >= self.size or reached > at + _OVERHEAD + written
        return reached == self.size or (sure and past)

    def data_behind_bad_header(self, at: int, length: int | None, boundary: int) -> tuple[int, int] | None:
        """The data of the record at `at`, whose header is bad, if they are whole. `length`: the corrected header's."""
        start = at + _HEADER
        if length is not None:
            stop = start + length
            good = self.crc_matches(start, stop) and self.past_written_length(at, stop + _FOOTER, True)
            return (start, stop) if good else None
        stop = boundary - _FOOTER
        if stop - start != _LENGTH and self.crc_matches(start, stop):  # eight bytes and their CRC may be a header
            return start, stop
        end = self.end_of_data(at, boundary)
        return (start, end) if end is not None and self.past_written_length(at, end + _FOOTER, False) else None

    def _step(self, at: int) -> int | None:
        """The end of the bad frame at `at`, as far as header or data still show it."""
        length = self.length_at(at)
        if length is None:
            length = self.corrected_length(at)
        if length is not None:
            return at + _OVERHEAD + length
        boundary = self.boundary_after(at)
        if self.crc_matches(at + _HEADER, boundary - _FOOTER):
            return boundary
        end = self.end_of_data(at, boundary)
        return None if end is None else end + _FOOTER

    def repeated(self, at: int, resume: int) -> int:
        """How many bytes from `resume` on are records that were written a second time: those right before `at`.

        A write that was broken off and then done again leaves the beginning of a record, the end of an earlier one, and
        the records from there on. All of it must be so: equal records alone are nothing strange, nor are equal damages.
        """
        gap = self._read(at, resume - at) if resume - at <= _REPEATED_BYTES else b""
        first = self._read(resume, _OVERHEAD)
        before = self._read(max(at - _REPEATED_BYTES, 0), min(at, _REPEATED_BYTES))
        place = before.rfind(first) if gap and len(first) == _OVERHEAD else -1
        length = self.length_at(at) if place >= 0 else None
        one_record = length is not None and length + _OVERHEAD == len(gap)
        for _ in range(_CHAINS):
            if place < 0:
                break
            size = len(before) - place
            head = _common(gap, self._read(resume + size, len(gap)))
            tail = _common(gap[::-1], before[max(place - len(gap), 0) : place][::-1])
            torn = not one_record or max(head, tail) < len(gap)
            if torn and head + tail >= len(gap) and self._read(resume, size) == before[place:]:
                return size
            place = before.rfind(first, 0, place)
        return 0

    def runs(self, at: int, stop: int) -> list[Doubt]:
        """The runs of good frames that begin in [at, stop)."""
        first = bisect_left(self._runs, at, key=_start)
        return self._runs[first : bisect_left(self._runs, stop, key=_start)]

    def corrected_length(self, at: int) -> int | None:
        """The length in the bad header at `at`, if one byte of the header is wrong and the others show which it was."""
        header = self._read(at, _HEADER)
        if len(header) < _HEADER:
            return None
        right = _masked(codec.crc32c(header[:8]))
        if sum(a == b for a, b in zip(header[8:], right, strict=True)) == 3:
            return int.from_bytes(header[:8], "little")
        wrong = _changes().get(_unmasked(header[8:]) ^ codec.crc32c(header[:8]))
        return None if wrong is None else int.from_bytes(header[:8], "little") ^ wrong

    def one_byte_wrong(self, at: int, length: int) -> bool:
        """Whether one byte is all that is wrong with the record at `at` of this length: then it ends where that says.

        What a wrong byte does to a CRC tells where it is, if it is one. A chance match is one in 2**24 / length.
        """
        if length > _CORRECTED_BYTES or at + _OVERHEAD + length > self.size:
            return False
        record = self._read(at + _HEADER, length + _FOOTER)
        data, footer = record[:length], record[length:]
        crc = codec.crc32c(data)
        same = [a == b for a, b in zip(footer, _masked(crc), strict=True)]
        if sum(same) == 3:
            return same[3]  # what comes behind a wrong byte must be right, or bytes may be missing from there on
        difference = crc ^ _unmasked(footer)
        after_byte, by_high_byte = _crc_tables()
        for _ in range(length):
            byte = by_high_byte[difference >> 24]
            difference = (difference ^ after_byte[byte]) << 8 & 0xFFFFFFFF | byte
            if difference < 256:
                return True
        return False

    def end_of_data(self, at: int, before: int) -> int | None:
        """Where the data of the record at `at` end: a place before `before` on which its header and their CRC agree."""
        crc, place = 0, at + _HEADER
        while before - place >= _FOOTER:
            n = self._read_into(place, self._check[: before - place])
            if n < _FOOTER:
                return None
            found, crc = codec.find_end(self._check, 0, n, crc)
            if found < 0:
                place += n - _FOOTER + 1
            elif self.alike(at, place + found + _FOOTER):
                return place + found
            else:
                crc = codec.crc32c(self._check[found : found + 1], crc)
                place += found + 1
        return None

    def alike(self, at: int, end: int) -> bool:
        """Whether the bad header at `at` still shows that its record ended at `end`."""
        length = end - at - _OVERHEAD
        if length < 0:
            return False
        right = length.to_bytes(8, "little")
        right += _masked(codec.crc32c(right))
        telling = [0, *(i for i in range(1, 8) if right[i]), 8, 9, 10, 11]
        got = self._read(at, _HEADER)
        return len(got) == _HEADER and sum(got[i] == right[i] for i in telling) >= _ALIKE_BYTES


def _masked(crc: int) -> bytes:
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def _common(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    n = min(len(one), len(other))
    differ = np.flatnonzero(np.frombuffer(one, np.uint8, n) != np.frombuffer(other, np.uint8, n))
    return int(differ[0]) if differ.size else n


def _unmasked(footer: bytes) -> int:
    crc = int.from_bytes(footer, "little") - 0xA282EAD8 & 0xFFFFFFFF
    return (crc >> 17 | crc << 15) & 0xFFFFFFFF


def _start(run: Doubt) -> int:
    return run.start


@cache
def _changes() -> dict[int, int]:
    """What a change of one byte of a length does to its CRC: the change by its effect."""
    none = codec.crc32c(bytes(8))
    changes = (byte << 8 * place for place in range(8) for byte in range(1, 256))
    return {codec.crc32c(change.to_bytes(8, "little")) ^ none: change for change in changes}


@cache
def _crc_tables() -> tuple[list[int], list[int]]:
    """What a wrong byte makes of a CRC that was right; and that byte, by the high byte of what it makes."""
    after = [codec.crc32c(bytes([byte])) ^ codec.crc32c(b"\0") for byte in range(256)]
    return after, sorted(range(256), key=lambda byte: after[byte] >> 24)
