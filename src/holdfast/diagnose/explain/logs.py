"""A whole log, piece by piece: which kinds of errors are in it, how often, first and last.

Memory is bounded whatever comes: a line of any length, without an end, in any encoding that has ASCII in it. Only lines
that hold a needle of the table are looked at closely; the rest is searched at the speed of `bytes.find`.
"""

from __future__ import annotations

from dataclasses import dataclass

from .row import Row
from .stamps import Clock
from .table import NEEDLES, row_of

_NEEDLES = tuple(needle.encode() for needle in NEEDLES)
_BLOCK_BYTES = 1 << 20
_BEFORE_BYTES = 4096  # what is kept of the text above a line
_LINE_BYTES = 8192  # a longer line is looked at around its needles only
_AROUND_BYTES = 1024
_KEPT_CHARS = 400


@dataclass(frozen=True, slots=True)
class Place:
    """`line` counts from 1. `time` is the line's own stamp, or the nearest one above it; None: none was there."""

    source: str
    line: int
    time: str | None


@dataclass(slots=True)
class Sighting:
    """One kind of error in a text. `text` is its first line, shortened, and `context` what stood above that."""

    row: Row
    count: int
    first: Place
    last: Place
    text: str
    context: str


class Scanner:
    """begin() a source, feed() pieces of any size, end() it; sightings() of all sources at any time."""

    def __init__(self) -> None:
        self._found: dict[str, Sighting] = {}
        self._rest = bytearray()
        self._before = b""
        self._source = ""
        self._line = 1
        self._clock = Clock()
        self.lines = 0  # of all sources

    def begin(self, source: str) -> None:
        self._source, self._line, self._before = source, 1, b""
        self._clock = Clock()

    def feed(self, data: bytes) -> None:
        for start in range(0, len(data), _BLOCK_BYTES):
            self._rest += data[start : start + _BLOCK_BYTES]
            end = self._rest.rfind(b"\n") + 1
            if end:
                self._take(end)
            elif len(self._rest) >= _BLOCK_BYTES:
                # A needle may lie across the cut: what it could begin in is seen again.
                self._take(len(self._rest), again=_AROUND_BYTES)

    def end(self) -> None:
        """The last line may have no end."""
        if self._rest:
            self._take(len(self._rest))
            self.lines += 1

    def sightings(self) -> list[Sighting]:
        """The most telling kind first, then the most frequent."""
        return sorted(self._found.values(), key=lambda one: (-one.row.rank, -one.count))

    def _take(self, end: int, again: int = 0) -> None:
        block = bytes(self._rest[:end])
        self._search(block)
        del self._rest[: end - again]
        lines = block.count(b"\n")
        self._line += lines
        self.lines += lines
        self._before = (self._before + block[: end - again])[-_BEFORE_BYTES:]

    def _search(self, block: bytes) -> None:
        seen, line = 0, self._line
        for start, begin, stop in sorted(_spans(block)):
            line += block.count(b"\n", seen, start)
            seen = start
            above = block[max(0, start - _BEFORE_BYTES) : start]
            if start < _BEFORE_BYTES:
                above = (self._before + above)[-_BEFORE_BYTES:]
            self._look(line, _text(block[begin:stop]), _text(above))

    def _look(self, line: int, text: str, before: str) -> None:
        row = row_of(text, before)
        if row is None:
            return
        known = self._found.get(row.name)
        if known and (known.last.source, known.last.line) == (self._source, line):
            return  # the same line, seen in parts
        place = Place(self._source, line, self._clock.at(line, text, before))
        if known:
            known.count += 1
            known.last = place
        else:
            self._found[row.name] = Sighting(row, 1, place, place, _short(text), before)


def _spans(block: bytes) -> set[tuple[int, int, int]]:
    """Where lines with needles start, and from where to where each is looked at."""
    lower = block.lower()
    found = set()
    for needle in _NEEDLES:
        at = lower.find(needle)
        while at >= 0:
            start = lower.rfind(b"\n", 0, at) + 1
            end = lower.find(b"\n", at)
            end = len(lower) if end < 0 else end
            if end - start <= _LINE_BYTES:
                found.add((start, start, end))
                at = lower.find(needle, end)
            else:
                stop = min(end, at + _AROUND_BYTES)
                found.add((start, max(start, at - _AROUND_BYTES), stop))
                at = lower.find(needle, stop)
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\r", "")


def _short(text: str) -> str:
    """Logs come from anywhere: what could play tricks on a terminal is a blank here."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= _KEPT_CHARS else text[: _KEPT_CHARS - 1] + "…"


def scan_text(text: str) -> list[Sighting]:
    """The same for a text in memory."""
    scanner = Scanner()
    scanner.feed(text.encode("utf-8", "replace"))
    scanner.end()
    return scanner.sightings()
