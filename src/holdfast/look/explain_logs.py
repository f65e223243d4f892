"""Log files and streams of any size, read piece by piece."""

from __future__ import annotations

import codecs
import os
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ..diagnose.explain.logs import Scanner
from ..errors import InputError

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
    """InputError: it cannot be read. Rotated logs may be packed with gzip."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; expected a log file, a text in quotes, or - for stdin")
    try:
        with open(path, "rb", buffering=0) as file:
            scan_stream(scanner, file, path, progress)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except zlib.error as error:
        raise InputError(f"cannot unpack {path}: {error}") from error


def scan_stream(
    scanner: Scanner, stream: BinaryIO, source: str, progress: Callable[[int], None] = lambda n: None
) -> None:
    """`source` is the name that places in it get; progress(n) hears of every n bytes."""
    scanner.begin(source)
    for piece in _as_utf8(_unpacked(_pieces(stream, progress))):
        scanner.feed(piece)
    scanner.end()


def _pieces(stream: BinaryIO, progress: Callable[[int], None]) -> Iterator[bytes]:
    while piece := stream.read(_PIECE_BYTES):
        yield piece
        progress(len(piece))


def _unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Out of gzip, if it is; with several members, as appended logs have, and a cut end, as running ones have."""
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
                    return  # what stands behind the last member is not packed, and not meant
                unpack = zlib.decompressobj(wbits=31)
            # Bounded: a few bytes can unpack to gigabytes.
            yield unpack.decompress(piece, _PIECE_BYTES)
            piece = unpack.unconsumed_tail or unpack.unused_data.lstrip(b"\0")


def _whole_start(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """A pipe may give a byte at first: too little to tell what it is."""
    start = b""
    for piece in pieces:
        start += piece
        if len(start) >= _TELLING_BYTES:
            yield start
            yield from pieces
            return
    yield start


def _as_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Two and four bytes a character are told by their mark; any other encoding has ASCII as it is."""
    decoder = None
    for at, piece in enumerate(_whole_start(pieces)):
        if at == 0:
            name = next((name for mark, name in _MARKS if piece.startswith(mark)), None)
            decoder = codecs.getincrementaldecoder(name)("replace") if name else None
        yield piece if decoder is None else decoder.decode(piece).encode("utf-8", "replace")
