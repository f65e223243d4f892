"""Finds the next record after a corrupt frame, and decides which of the frames there are records.

Frames are chained by their lengths, so after a corrupt one the start of the next record must be searched. A place where
both CRCs match is not enough: a record may contain another TFRecord, whose frames are just as valid. A frame counts as
a record only where it cannot be data of a corrupt record. Two things can be known:

- *The length of the corrupt record.* Its header is valid, or one byte of it is wrong and the others show which; or its
  data are intact, and their CRC and the rest of the header agree on where they end. What lies before that end is data,
  whatever it looks like. The end itself is trusted if a single byte of the data is wrong (the CRC shows that, too), or
  if the records from there on are aligned up to the end of the file: if bytes were inserted into the record or removed
  from it, its end is elsewhere.
- *What reaches the end of the file.* A record ends with four bytes of CRC, so a chain of valid frames in its data stops
  short of the next record or of the end of the file. A chain that reaches the end consists of records, and so does one
  that reaches a record of that chain over a header with one wrong byte. But after a valid header whose record would end
  after the end of the file, a chain may be data of that record, and the file may be cut right after one of its frames.

Everything else that looks like records might be data. It is left out and reported (`DoubtfulFrames`): every valid frame
between a corrupt record of unknown length and the last chain. If a file has one corrupt place, only the records that it
touches are left out, with two exceptions. If the corrupt record contains headers without their records, and one of them
leads past the end of the file, that could be a record which the file's end cuts. If bytes are missing from one of the
last records and its header leads past the end of the file, the file could be cut instead. The records after it are then
doubtful.

Removed bytes can align the frames inside a corrupt record with what follows it, for instance when the file is cut right
after one of them and the header before them is corrupt. Those bytes could equally come from another file with another
corruption, and are treated as such.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cache
from typing import NamedTuple

import numpy as np

from ...._native import codec
from .source import RecordSource

_WINDOW_BYTES = 1 << 20
_HEADER = codec.HEADER_BYTES
_FOOTER = codec.FOOTER_BYTES
_OVERHEAD = codec.OVERHEAD_BYTES
_FIRST_BYTES = 1 << 14

_LENGTH = 8

# How far, and over how many chains of valid frames, the record before a known boundary is searched.
_NEAR_BYTES = 64 << 20
_CHAINS = 16

# How many bytes of a repeated write are searched, and how few could come twice by chance: with empty records and one
# inserted byte, for instance.
_REPEATED_BYTES = 1 << 18
_LEAST_REPEATED_BYTES = 32

# Longer records do not count: eight bytes of data and their CRC look like a header too, of a length above this if they
# are text or floats.
_MAX_BYTES = 1 << 40

# A single wrong byte is searched in records up to this length.
_CORRECTED_BYTES = 1 << 20

# A corrupt header that shares this many of its 12 bytes with the right one was that header. Zero bytes of a short
# length do not count.
_ALIKE_BYTES = 3


class DoubtfulFrames(NamedTuple):
    """Valid frames that might be data of the corrupt record before them."""

    records: int
    start: int
    stop: int
    cut_record: int | None = None  # the header between here and the corrupt record whose data they might be

    def describe(self) -> str:
        records = "1 record" if self.records == 1 else f"{self.records:,} records"
        said = f"{records} in bytes {self.start:,}–{self.stop:,} might be data of a corrupt record"
        if self.cut_record is None:
            return said
        return f"{said}, whose header at byte {self.cut_record:,} leads past the end of the file"


class Recovery(NamedTuple):
    resume: int  # where the next frame begins, or the end of the file
    records_lost: int  # at least
    repaired: tuple[int, int] | None = None  # the record's data, if only its header is corrupt
    doubtful: DoubtfulFrames | None = None  # between here and `resume`, or from there on if they are kept
    repeated: bool = False  # the bytes up to `resume` repeat the records before
    gave_up: bool = False  # the search exceeded its budget, as for a file made to look like records all over


def recover(search: FrameSearch, at: int, keep_doubtful: bool = False) -> Recovery:
    """Finds where to continue after the corrupt frame at byte `at`, where a record began."""
    search.begin()
    try:
        found = _recover(search, at, keep_doubtful)
        again = 0 if found.repaired else search.repeated(at, found.resume)
        return Recovery(found.resume + again, 0, repeated=True) if again else found
    except _BudgetError:
        return Recovery(search.size, 1, gave_up=True)


def _recover(search: FrameSearch, at: int, keep_doubtful: bool) -> Recovery:
    boundary = search.boundary_after(at)
    good = search.length_at(at)
    length = search.corrected_length(at) if good is None else good
    end = None if length is None else at + _OVERHEAD + length
    if end is not None and boundary < end:
        boundary = search.intact_from  # inside this record only a chain up to the end of the file counts
    data = search.data_behind_bad_header(at, length, boundary) if good is None else None
    if data is not None:
        return Recovery(data[1] + _FOOTER, 0, data)
    if length is not None and end is not None and search.may_end(end, boundary):
        if good is not None:
            sure = search.in_step(end) == search.size and not search.is_crossed(at, end)
            sure = sure or search.one_byte_wrong(at, length)
        else:
            sure = search.past_written_length(at, end, search.one_byte_wrong(at, length))
            sure = sure and not search.is_crossed(at, end)
        if sure:
            return Recovery(end, 1)
    if end is not None and end > search.size:
        # The rest of the file belongs to this record, or bytes are missing. Frames in there may be its data.
        boundary = search.size
    lost = 1 if boundary - at >= _OVERHEAD else 0
    runs = search.runs(at + 1, boundary)
    if not runs:
        return Recovery(boundary, lost)
    if keep_doubtful:
        first = next((run for run in runs if run.start == end), runs[0])
        return Recovery(first.start, lost, doubtful=first)
    records = sum(run.records for run in runs)
    cut = search.cut_record if search.cut_record is not None and at < search.cut_record < runs[-1].start else None
    return Recovery(boundary, lost, doubtful=DoubtfulFrames(records, runs[0].start, runs[-1].stop, cut))


class _BudgetError(Exception):
    pass


class FrameSearch:
    """Answers questions about the frames of one source, with two reused windows and a bounded number of bytes read."""

    def __init__(self, source: RecordSource) -> None:
        size = source.size()
        if size is None:
            raise ValueError("a source of unknown size cannot be searched")
        self.source = source
        self.size = size
        self.intact_from = size  # from here on, all frames are valid
        self._boundaries: list[int] = []  # after the first corrupt frame: where records are known to begin
        self._runs: list[DoubtfulFrames] = []  # all chains of valid frames there
        self._in_step: dict[int, int] = {}
        self.cut_record: int | None = None  # the first valid header whose record ends after the end of the file
        window = min(_WINDOW_BYTES, max(size, 1))
        self._walk = bytearray(window)
        self._check = memoryview(bytearray(window))
        self.begin()

    def begin(self) -> None:
        # A crafted file can have a valid header at every twelfth byte, each asking for a CRC over the rest of the file.
        self._budget = 16 * self.size + (64 << 20)

    def _read_into(self, at: int, view: memoryview) -> int:
        n = self.source.read_at(at, view)
        self._budget -= n
        if self._budget < 0:
            raise _BudgetError
        return n

    def _read(self, at: int, n: int) -> bytes:
        data = bytearray(max(0, min(n, self.size - at)))
        return bytes(data[: self.source.read_at(at, memoryview(data))])

    def length_at(self, at: int) -> int | None:
        """Returns the length of the record at `at` if its header is valid, else None."""
        header = self._read(at, _HEADER)
        if len(header) < _HEADER or codec.find_header(header, 0, _HEADER) != 0:
            return None
        return int.from_bytes(header[:8], "little")

    def frame_end(self, at: int) -> int | None:
        """Returns the end of the frame at `at` if it is valid, else None."""
        length = self.length_at(at)
        if length is None or length > self.size - at - _OVERHEAD:
            return None
        stop = at + _HEADER + length
        return stop + _FOOTER if self.crc_matches(at + _HEADER, stop) else None

    def crc_matches(self, start: int, stop: int) -> bool:
        """Returns whether the four bytes at `stop` are the masked CRC of the bytes from `start` to there."""
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
        """Returns the end of the chain of valid frames that begins at `at`, and how many they are."""
        frames = 0
        piece = _FIRST_BYTES  # chains may be short
        while at < self.size:
            n = self._read_into(at, memoryview(self._walk)[:piece])
            count, used, status, _ = codec.scan(self._walk, 0, n, True)
            at += used
            frames += count
            piece = min(4 * piece, len(self._walk))
            if status == codec.OK or used:
                continue
            end = self.frame_end(at) if status == codec.NEED_MORE else None  # longer than the window
            if end is None:
                break
            at = end
            frames += 1
        return at, frames

    def next_frame(self, at: int) -> int:
        """Returns the first valid frame from `at` on; the file's size if there is none."""
        piece = _FIRST_BYTES
        while at + _OVERHEAD <= self.size:
            n = self._read_into(at, memoryview(self._walk)[:piece])
            piece = min(4 * piece, len(self._walk))
            place = -1
            while (place := codec.find_header(self._walk, place + 1, n)) >= 0:
                if self.frame_end(at + place) is not None:
                    return at + place
                length = self.length_at(at + place)
                is_cut = length is not None and self.size - at - place - _OVERHEAD < length <= _MAX_BYTES
                if is_cut and self.cut_record is None:
                    self.cut_record = at + place
            at += max(n - _HEADER + 1, 1)
        return self.size

    def boundary_after(self, at: int) -> int:
        """Returns the first offset after `at` where a record is known to begin, or the end of the file."""
        if not self._boundaries:
            self._find_boundaries(at + 1)
        return self._boundaries[bisect_right(self._boundaries, at)]

    def _find_boundaries(self, at: int) -> None:
        """Scans the file once and collects all offsets where records are known to begin."""
        known = [self.size]
        bad = [at - 1]  # where corrupt frames begin
        before_cut: list[int] = []  # those before a record that the end of the file cuts
        while (start := self.next_frame(at)) < self.size:
            at, frames = self.chain(start)
            if self.cut_record is not None and (at == self.size or not before_cut):
                before_cut = before_cut or bad[:_CHAINS]
                # Unless that record lies in the data of one with a corrupt header.
                if any(self.crc_matches(one + _HEADER, start - _FOOTER) for one in before_cut):
                    self.cut_record, before_cut = None, []
            bad.append(at)
            self._runs.append(DoubtfulFrames(frames, start, at))
            if at == self.size and self.cut_record is None:
                self.intact_from = start
                known.append(start)
        # If the CRC right before a boundary fits a corrupt record, that is a record, and so are the frames before it.
        tried = 0
        for _, start, end, _ in reversed(self._runs):
            tried += 1
            if tried > _CHAINS or known[-1] - end > _NEAR_BYTES:
                break
            length = known[-1] - end - _OVERHEAD
            if self.corrected_length(end) == length and self.crc_matches(end + _HEADER, known[-1] - _FOOTER):
                known += [end, start]
                tried = 0
        self._boundaries = known[::-1]

    def in_step(self, at: int) -> int:
        """Returns how far the records from `at` on are aligned: up to the end of the file, or to a corrupt frame.

        A record with corrupt data is skipped by its header, one with a corrupt header by the end of its data.
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
        """Returns whether a record can end at `end`: not inside one of the records from `boundary` on."""
        if end <= boundary:
            return True
        while boundary < end <= self.size:
            boundary = self.frame_end(boundary) or self.boundary_after(boundary)
        return end == boundary

    def is_crossed(self, at: int, end: int) -> bool:
        """Returns whether a valid header in the record at `at` leads past its `end`, to records aligned up to the end
        of the file.

        Frames in the data of a record end before it does. Such a header is that of the next record, drawn into this one
        by removed bytes: then what begins at `end` is data of the next record.
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
        """Returns whether records are aligned from `end` on, where the record at `at` ends by its corrected header.

        Where bytes were removed, the rest of a header and that of the first frame in its data can form such a header.
        Then the length that is written there is the outer record's, and the frames do not reach past it.
        """
        written = int.from_bytes(self._read(at, 8), "little")
        reached = self.in_step(end)
        past = written >= self.size or reached > at + _OVERHEAD + written
        return reached == self.size or (sure and past)

    def data_behind_bad_header(self, at: int, length: int | None, boundary: int) -> tuple[int, int] | None:
        """Returns the data of the record at `at`, whose header is corrupt, if they are intact. `length`: as
        corrected."""
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
        """Returns the end of the corrupt frame at `at` if header or data still show it."""
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
        """Returns how many bytes from `resume` on repeat the records right before `at`.

        A write that was interrupted and then repeated leaves the beginning of a record, the end of an earlier one, and
        the records from there on. All of that must be found: equal records alone are normal, and so they are if one
        of the two that it leaves parts of occurs elsewhere before.
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
            torn = torn and len(gap) + size - _OVERHEAD >= _LEAST_REPEATED_BYTES
            if torn and head + tail >= len(gap) and self._read(resume, size) == before[place:]:
                following = self._read(resume + size, (self.length_at(resume + size) or 0) + _OVERHEAD)
                equal = following and following in before
                return 0 if equal or (len(gap) > _FOOTER and gap in before[: place - 1]) else size
            place = before.rfind(first, 0, place)
        return 0

    def runs(self, at: int, stop: int) -> list[DoubtfulFrames]:
        """Returns the chains of valid frames that begin in [at, stop)."""
        first = bisect_left(self._runs, at, key=_start)
        return self._runs[first : bisect_left(self._runs, stop, key=_start)]

    def corrected_length(self, at: int) -> int | None:
        """Returns the length in the corrupt header at `at` if one byte of it is wrong and the others show which, else
        None."""
        header = self._read(at, _HEADER)
        if len(header) < _HEADER:
            return None
        right = _masked(codec.crc32c(header[:8]))
        if sum(a == b for a, b in zip(header[8:], right, strict=True)) == 3:
            return int.from_bytes(header[:8], "little")
        wrong = _changes().get(_unmasked(header[8:]) ^ codec.crc32c(header[:8]))
        return None if wrong is None else int.from_bytes(header[:8], "little") ^ wrong

    def one_byte_wrong(self, at: int, length: int) -> bool:
        """Returns whether exactly one byte of the record at `at` of this length is wrong: then the length is right.

        The change of the CRC shows which byte it is. A match by chance has a probability of length / 2**24.
        """
        if length > _CORRECTED_BYTES or at + _OVERHEAD + length > self.size:
            return False
        record = self._read(at + _HEADER, length + _FOOTER)
        data, footer = record[:length], record[length:]
        crc = codec.crc32c(data)
        same = [a == b for a, b in zip(footer, _masked(crc), strict=True)]
        if sum(same) == 3:
            return same[3]  # bytes after the wrong one must be right, else some may be missing
        difference = crc ^ _unmasked(footer)
        after_byte, by_high_byte = _crc_tables()
        for _ in range(length):
            byte = by_high_byte[difference >> 24]
            difference = (difference ^ after_byte[byte]) << 8 & 0xFFFFFFFF | byte
            if difference < 256:
                return True
        return False

    def end_of_data(self, at: int, before: int) -> int | None:
        """Returns where the data of the record at `at` end: an offset up to `before` that fits its header and their
        CRC."""
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
        """Returns whether the corrupt header at `at` still shows that its record ended at `end`."""
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
    """Returns how many leading bytes are equal."""
    n = min(len(one), len(other))
    differ = np.flatnonzero(np.frombuffer(one, np.uint8, n) != np.frombuffer(other, np.uint8, n))
    return int(differ[0]) if differ.size else n


def _unmasked(footer: bytes) -> int:
    crc = int.from_bytes(footer, "little") - 0xA282EAD8 & 0xFFFFFFFF
    return (crc >> 17 | crc << 15) & 0xFFFFFFFF


def _start(run: DoubtfulFrames) -> int:
    return run.start


@cache
def _changes() -> dict[int, int]:
    """Maps the effect on the CRC to the change of one byte of a length."""
    none = codec.crc32c(bytes(8))
    changes = (byte << 8 * place for place in range(8) for byte in range(1, 256))
    return {codec.crc32c(change.to_bytes(8, "little")) ^ none: change for change in changes}


@cache
def _crc_tables() -> tuple[list[int], list[int]]:
    """Returns the effect of every byte on the CRC, and the bytes sorted by the high byte of their effect."""
    after = [codec.crc32c(bytes([byte])) ^ codec.crc32c(b"\0") for byte in range(256)]
    return after, sorted(range(256), key=lambda byte: after[byte] >> 24)
