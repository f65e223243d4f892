"""Where a file goes on behind a damage.

Frames are chained by their lengths, so after a damage the place of the next record must be found. A place where both
CRCs match is not enough: a record may hold another TFRecord, whose frames are just as good. But a chain of such inner
frames breaks off where the record around it ends, while the chain of true ones goes on to the end of the file or to the
next damage. So: the earliest place whose chain can be trusted. With one damage in a file this is exact, unless the
damaged record itself holds a TFRecord that is damaged or cut; with several, a chain whose end explains itself in no way
is left out rather than taken for records.
"""

from __future__ import annotations

from typing import NamedTuple

from ..._native import codec
from .source import Source

_WINDOW_BYTES = 1 << 20
_HEADER = codec.HEADER_BYTES
_FOOTER = codec.FOOTER_BYTES
_OVERHEAD = codec.OVERHEAD_BYTES
_SECTOR = 512
_FIRST_BYTES = 1 << 14

# How far, and over how many runs of good frames, the end of one damaged record is looked for.
_NEAR_BYTES = 64 << 20
_CHAINS = 16

# A damaged header that shares this many of its 12 bytes with the right one was that header. The seven high bytes of a
# length below 256 are zero in any case, so they count for nothing.
_ALIKE_BYTES = 3


class Recovery(NamedTuple):
    resume: int  # where the next frame begins, or the end of the file
    records_lost: int  # at least
    repaired: tuple[int, int] | None = None  # the damaged record's data, when only its header was damaged
    gave_up: bool = False  # the search cost too much: made to look like records all over


def recover(walker: Walker, at: int) -> Recovery:
    """How to go on behind the bad frame that begins at byte `at`."""
    walker.begin()
    try:
        found = _behind_good_header(walker, at) if walker.length_at(at) is not None else _behind_bad_header(walker, at)
    except _TooMuchWorkError:
        found = Recovery(walker.size, 1, gave_up=True)
    walker.damages += 1
    return found


def _behind_bad_header(walker: Walker, at: int) -> Recovery:
    # With one damage all told, the file is whole from some place on. If this record's data run up to there, that is
    # proof, whatever they look like.
    whole = walker.next_whole(at + 1)
    if whole is not None and walker.crc_matches(at + _HEADER, whole - _FOOTER):
        return Recovery(whole, 0, (at + _HEADER, whole - _FOOTER))
    resume = walker.next_record(at + 1)
    repaired = walker.repaired(at, resume)
    if repaired is not None:
        return Recovery(repaired[1] + _FOOTER, 0, repaired)
    return Recovery(resume, 1 if resume - at >= _OVERHEAD else 0)


def _behind_good_header(walker: Walker, at: int) -> Recovery:
    end = at + _OVERHEAD + (walker.length_at(at) or 0)
    if end > walker.size:
        # The rest of the file is this record's. Whatever looks like records in there may be its data, and nothing must
        # be invented. But behind another damage this very header may be data: then what is whole up to the end counts.
        return Recovery((walker.next_whole(at + 1) or walker.size) if walker.damages else walker.size, 1)
    if end == walker.size or walker.trusted(end):
        return Recovery(end, 1)
    resume = walker.next_record(at + 1, end)
    whole_behind = end + _OVERHEAD <= resume and walker.length_at(end) is None
    if whole_behind and walker.crc_matches(end + _HEADER, resume - _FOOTER):
        return Recovery(end, 1)  # the damage reached into the next header, and that record's data are whole
    return Recovery(resume, 1)


class _TooMuchWorkError(Exception):
    pass


class Walker:
    """Questions about the frames of one source, answered with two reused windows and a bounded number of bytes read."""

    def __init__(self, source: Source) -> None:
        size = source.size()
        if size is None:
            raise ValueError("a source of unknown size cannot be searched")
        self.source = source
        self.size = size
        self.damages = 0  # recovered from so far
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

    def chain_end(self, at: int) -> int:
        """The end of the run of good frames that begins at `at`; `at` itself when there is none."""
        piece = _FIRST_BYTES  # a chain may end at once: begin with little
        while at < self.size:
            n = self._read_into(at, memoryview(self._walk)[:piece])
            _, used, status, _ = codec.scan(self._walk, 0, n, True)
            at += used
            piece = min(4 * piece, len(self._walk))
            if status == codec.OK or used:
                continue
            end = self.frame_end(at) if status == codec.NEED_MORE else None  # longer than what was read
            if end is None:
                return at
            at = end
        return at

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
            at += max(n - _HEADER + 1, 1)
        return self.size

    def next_whole(self, at: int) -> int | None:
        """The first place from which on the file is whole up to its end: the end itself, if no record is. None when it
        is not near."""
        start = at
        for _ in range(_CHAINS):
            place = self.next_frame(at)
            if place == self.size:
                return place
            if place - start > _NEAR_BYTES:
                return None
            at = self.chain_end(place)
            if at == self.size:
                return place
        return None

    def next_record(self, at: int, inside: int = 0) -> int:
        """The first true record at or behind `at`. What ends before `inside` lies in a record known to reach there."""
        while True:
            place = self.next_frame(at)
            if place == self.size or self.trusted(place, inside):
                return place
            at = self.chain_end(place)

    def trusted(self, at: int, inside: int = 0) -> bool:
        """Whether the frames from `at` on are records of this file, and not data that look like some."""
        end = self.chain_end(at)
        if end == self.size:
            return True
        if end <= inside:
            return False
        length = self.length_at(end)
        if end == at:
            # One good header is no proof: eight bytes of data and their CRC are one, too. Two in step are.
            return length is not None and self.length_at(end + _OVERHEAD + length) is not None
        if length is not None:
            return True  # in step with the next record, though that one is bad
        # The chain breaks off: at a record with a bad header, or at the end of a record around it. With one damage in
        # the file it is the latter, so the former needs a sign.
        return self.hole_at(end) or self.repaired(end, self.next_frame(end)) is not None

    def hole_at(self, at: int) -> bool:
        """Whether a zeroed sector begins in the header at `at`, or covers it: pages that never reached the disk."""
        first = at // _SECTOR * _SECTOR
        return any(
            block <= at + _HEADER and self._read(block, _SECTOR) == bytes(_SECTOR) for block in (first, first + _SECTOR)
        )

    def repaired(self, at: int, following: int) -> tuple[int, int] | None:
        """The data of the record at `at`, whose header is bad, if they are whole and end at or before `following`."""
        start, stop = at + _HEADER, following - _FOOTER
        if self.crc_matches(start, stop):
            return start, stop
        # Another damaged record may come before `following`: look where the data's CRC runs into their footer.
        crc, place = 0, start
        while following - place >= _FOOTER:
            n = self._read_into(place, self._check[: following - place])
            if n < _FOOTER:
                return None
            found, crc = codec.find_end(self._check, 0, n, crc)
            if found < 0:
                place += n - _FOOTER + 1
            elif self.alike(at, place + found + _FOOTER):
                return start, place + found
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
