"""Finds known errors in logs: which kinds, how often, and the first and last line of each.

Memory is bounded for any input: lines of any length, and any encoding that contains ASCII. Only lines that contain a
needle of a rule are matched; the rest is searched at the speed of `bytes.find`.
"""

from __future__ import annotations

import codecs
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import BinaryIO

from ...errors import InputError
from .cause_chain import NEEDLES, rule_of
from .rules import Rule

_SCANNED = 200  # a timestamp is at the start of a line, or a little later in JSON
_LINES_AWAY = 200

_FORMS = (
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?Z|[+-]\d\d:?\d\d)?",  # 2026-05-01 12:34:56,789
    r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?",  # nginx, Go
    r"\d\d/[A-Z][a-z]{2}/\d{4}[: ]\d\d:\d\d:\d\d(?: [+-]\d{4})?",  # Apache
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d",  # syslog
    r"(?:(?<=^)|(?<=\s))[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+",  # glog, TensorFlow
    r"(?:(?<=^)|(?<=[\[ ]))\d\d:\d\d:\d\d(?:[.,]\d+)?",  # only the time of day
)


@cache
def _pattern() -> re.Pattern[str]:
    return re.compile("|".join(_FORMS))


def stamp_of(line: str) -> str | None:
    """Return the timestamp of a line as it is written; it is not parsed, because its time zone is unknown."""
    found = _pattern().search(line[:_SCANNED])
    return found[0] if found else None


class Clock:
    """Finds the nearest timestamp above a line, because the lines of a traceback have none.

    It searches each line once: the caller passes positions in order, each with the text before it.
    """

    def __init__(self) -> None:
        self._stamp: str | None = None
        self._stamped = 0
        self._scanned = 0

    def at(self, line: int, text: str, before: str) -> str | None:
        """Return the timestamp for a line. `line` counts from 1 and never decreases."""
        own = stamp_of(text)
        if own is None and line > self._scanned + 1:
            above = before.splitlines()[-(line - self._scanned - 1) :]
            for back, other in enumerate(reversed(above), 1):
                if stamp := stamp_of(other):
                    self._stamp, self._stamped = stamp, line - back
                    break
        if own is not None:
            self._stamp, self._stamped = own, line
        self._scanned = line
        return self._stamp if line - self._stamped <= _LINES_AWAY else None


_NEEDLES = tuple(needle.encode() for needle in NEEDLES)
_BLOCK_BYTES = 1 << 20
_BEFORE_BYTES = 4096  # kept of the text above a line
_LINE_BYTES = 8192  # a longer line is searched only around its needles
_AROUND_BYTES = 1024
_KEPT_CHARS = 400


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Names a line, counted from 1. `time` is its timestamp, or the nearest one above it; None if there is none."""

    source: str
    line: int
    time: str | None


@dataclass(slots=True)
class Sighting:
    """Counts one kind of error in a text. `text` is its first line, shortened, and `context` the text above that."""

    rule: Rule
    count: int
    first: LogPosition
    last: LogPosition
    text: str
    context: str


class Scanner:
    """Scans sources: call begin(), feed() with pieces of any size, and end(). sightings() covers all sources so far."""

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
                # A needle may span the cut, so the end of this piece is searched again.
                self._take(len(self._rest), again=_AROUND_BYTES)

    def end(self) -> None:
        """Search the last line, which may lack a newline."""
        if self._rest:
            self._take(len(self._rest))
            self.lines += 1

    def sightings(self) -> list[Sighting]:
        """Return the kinds found, by rank and then by count."""
        return sorted(self._found.values(), key=lambda one: (-one.rule.rank, -one.count))

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
            self._scan(line, _text(block[begin:stop]), _text(above))

    def _scan(self, line: int, text: str, before: str) -> None:
        rule = rule_of(text, before)
        if rule is None:
            return
        known = self._found.get(rule.name)
        if known and (known.last.source, known.last.line) == (self._source, line):
            return  # the same line, searched in parts
        position = LogPosition(self._source, line, self._clock.at(line, text, before))
        if known:
            known.count += 1
            known.last = position
        else:
            self._found[rule.name] = Sighting(rule, 1, position, position, _short(text), before)


def _spans(block: bytes) -> set[tuple[int, int, int]]:
    """Return where each line with a needle starts, and the range of it to match."""
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
    """Shorten a line, and replace control characters, which could affect the terminal."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= _KEPT_CHARS else text[: _KEPT_CHARS - 1] + "…"


def scan_text(text: str) -> list[Sighting]:
    """Scan a text in memory."""
    scanner = Scanner()
    scanner.feed(text.encode("utf-8", "replace"))
    scanner.end()
    return scanner.sightings()


_PIECE_BYTES = 1 << 18
_GZIP = b"\x1f\x8b"
_TELLING_BYTES = 4
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def scan_file(scanner: Scanner, path: str, progress: Callable[[int], None] = lambda n: None) -> None:
    """Scan a log file, which may be compressed with gzip. Raises InputError if it cannot be read."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; expected a log file, a text in quotes, or - for stdin")
    try:
        with open(path, "rb", buffering=0) as file:
            scan_stream(scanner, file, path, progress)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except zlib.error as error:
        raise InputError(f"cannot decompress {path}: {error}") from error


def scan_stream(
    scanner: Scanner, stream: BinaryIO, source: str, progress: Callable[[int], None] = lambda n: None
) -> None:
    """Scan a stream. Positions carry the name `source`; progress(n) is called for every n bytes read."""
    scanner.begin(source)
    for piece in _as_utf8(_unpacked(_pieces(stream, progress))):
        scanner.feed(piece)
    scanner.end()


def _pieces(stream: BinaryIO, progress: Callable[[int], None]) -> Iterator[bytes]:
    while piece := stream.read(_PIECE_BYTES):
        yield piece
        progress(len(piece))


def _unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress gzip, with several members (appended logs) and without an end (logs still being written)."""
    unpack = None
    for at, piece in enumerate(_whole_start(pieces)):
        if at == 0 and piece.startswith(_GZIP):
            unpack = zlib.decompressobj(wbits=31)
        if unpack is None:
            yield piece
            continue
        while piece:
            if unpack.eof:
                if not _GZIP.startswith(piece[:2]):
                    return  # data after the last gzip member is ignored
                unpack = zlib.decompressobj(wbits=31)
            # Bounded, because a few bytes can decompress to gigabytes.
            yield unpack.decompress(piece, _PIECE_BYTES)
            piece = unpack.unconsumed_tail or unpack.unused_data.lstrip(b"\0")


def _whole_start(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join the first pieces until the encoding can be detected: a pipe may return a single byte at first."""
    start = b""
    for piece in pieces:
        start += piece
        if len(start) >= _TELLING_BYTES:
            yield start
            yield from pieces
            return
    yield start


def _as_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Convert UTF-16 and UTF-32, detected by their byte order mark; other encodings contain plain ASCII."""
    decoder = None
    for at, piece in enumerate(_whole_start(pieces)):
        if at == 0:
            name = next((name for mark, name in _MARKS if piece.startswith(mark)), None)
            decoder = codecs.getincrementaldecoder(name)("replace") if name else None
        yield piece if decoder is None else decoder.decode(piece).encode("utf-8", "replace")
