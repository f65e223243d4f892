"""Reads the bytes of one file, compressed or not, with `read_at(offset, view)`. Uses pread: processes that share the
descriptor after a fork do not disturb each other."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
import warnings
import zlib
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ...._native import codec
from ....errors import CorruptError, FormatError, InputError, cannot_open
from ..base import fill_from

Compression = Literal["auto", "none", "gzip", "zlib"]
COMPRESSIONS = ("auto", "none", "gzip", "zlib")
_CHUNK_BYTES = 1 << 16
PAGE_BYTES = 4096

# Other formats, to name in the error for a file that is not a TFRecord.
_MAGIC = {
    b"\x89HDF": "an HDF5 file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a Parquet file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
}


def detect_compression(head: bytes) -> Literal["none", "gzip", "zlib"]:
    """Detects the compression by the first bytes. A valid TFRecord header wins: a plain file can begin with 78 01
    too."""
    if len(head) >= codec.HEADER_BYTES and codec.find_header(head, 0, codec.HEADER_BYTES) == 0:
        return "none"
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if len(head) >= 2 and head[0] & 15 == 8 and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0:
        return "zlib"
    return "none"


def describe_magic(head: bytes) -> str:
    """Names the format of a file that is not a TFRecord, for an error message; empty if unknown."""
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    if head[257:262] == b"ustar":
        return "a tar archive"
    if head and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head[:64]):
        return "a text file"
    return ""


def new_buffer(size: int) -> Any:
    """Returns an array with room for `size` bytes, wherever in its first page they begin."""
    return np.empty(size + PAGE_BYTES, np.uint8)


def front_of(buf: Any, offset: int) -> int:
    """Returns where in a buffer the file's bytes from `offset` on should begin: half a page off their offset in the
    page.

    The kernel's copy is ten times slower on some CPUs (AMD's Zen 3) where the target's offset in its page is a few
    bytes behind the source's.
    """
    return int((offset + PAGE_BYTES // 2 - buf.ctypes.data) % PAGE_BYTES)


class RecordSource:
    """One open file. Holds one descriptor until close()."""

    compression: Literal["none", "gzip", "zlib"] = "none"

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.on_bytes: Callable[[memoryview], None] | None = None  # called with the file's own bytes, once and in order

    def read_at(self, offset: int, view: memoryview) -> int:
        """Fills the view from byte `offset` on and returns how many bytes there were: fewer only at the end."""
        if self.fd < 0:
            raise ValueError(f"{self.path}: the file is closed")
        got = fill_from(self.fd, self.path, offset, view)
        if self.on_bytes and got:
            self.on_bytes(view[:got])
        return got

    def size(self) -> int | None:
        """Returns how many bytes read_at can return now; None if that is unknown, as for compressed data."""
        return os.fstat(self.fd).st_size

    def file_bytes(self) -> int:
        """Returns the file's size on disk."""
        return os.fstat(self.fd).st_size

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1  # first: after Ctrl-C in between, nobody must close the number again
            os.close(fd)

    def __enter__(self) -> RecordSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            warnings.warn(f"{self.path}: the file was read and never closed", ResourceWarning, 2)
            self.close()


class InflateSource(RecordSource):
    """A GZIP or ZLIB file, decompressed while reading. Going back starts over from the beginning."""

    def __init__(self, path: str, fd: int, compression: Literal["gzip", "zlib"]) -> None:
        super().__init__(path, fd)
        self.compression = compression
        self.keep_last_bytes = False  # return every byte before corrupt data; slower
        self._start()

    def _start(self) -> None:
        self._inflate = self._new()
        self._compressed = b""
        self._at = 0  # in the file
        self._position = 0  # in the decompressed data
        self._ended = False
        self._failed: CorruptError | None = None  # raised once all bytes before it were returned

    def _new(self) -> zlib._Decompress:
        return zlib.decompressobj(zlib.MAX_WBITS | (16 if self.compression == "gzip" else 0))

    def size(self) -> int | None:
        return None

    def read_at(self, offset: int, view: memoryview) -> int:
        if offset < self._position:
            self._start()
        while self._position < offset:
            skipped = self._read_some(min(offset - self._position, _CHUNK_BYTES))
            if not skipped:
                return 0
        got = 0
        while got < len(view):
            try:
                data = self._read_some(len(view) - got)
            except CorruptError as error:
                if not got:
                    raise
                self._failed = error
                break
            if not data:
                break
            view[got : got + len(data)] = data
            got += len(data)
        return got

    def _read_some(self, limit: int) -> bytes:
        """Returns at least one and at most `limit` bytes; none at the end."""
        if self._failed is not None:
            raise self._failed
        while not self._ended:
            if not self._compressed:
                self._compressed = self._read_compressed()
            data = self._decompress(limit)
            at_end = not self._compressed
            self._compressed = self._inflate.unconsumed_tail
            if self._inflate.eof:
                try:
                    self._next_member()
                except CorruptError as error:
                    self._failed = error
                    if not data:
                        raise
            if data:
                self._position += len(data)
                return data
            if at_end and not self._inflate.eof and not self._ended:
                raise self._corrupt(f"the {self.compression} data are cut short")
        return b""

    def _read_compressed(self) -> bytes:
        buf = bytearray(_CHUNK_BYTES)
        n = RecordSource.read_at(self, self._at, memoryview(buf))
        self._at += n
        return bytes(buf[:n])

    def _decompress(self, limit: int) -> bytes:
        before = self._inflate.copy() if self.keep_last_bytes else None
        try:
            return self._inflate.decompress(self._compressed, limit)
        except zlib.error as error:
            data = self._until_error(before) if before else b""
            if data:
                return data
            raise self._corrupt(f"the {self.compression} data are corrupt: {error}") from None

    def _until_error(self, inflate: zlib._Decompress) -> bytes:
        # A failed call returns nothing of what it had decompressed: decompress byte by byte and keep what comes first.
        data = b""
        compressed, self._compressed = self._compressed, b"\xff" * 64  # the next call fails at once
        self._inflate, self.keep_last_bytes = zlib.decompressobj(), False
        try:
            for i in range(len(compressed)):
                data += inflate.decompress(compressed[i : i + 1])
        except zlib.error:
            pass
        return data

    def _next_member(self) -> None:
        # gzip and TensorFlow read files joined with `cat` as one file; zeros after the end are padding.
        rest = self._inflate.unused_data or self._read_compressed()
        while rest and self.compression == "gzip":
            stripped = rest.lstrip(b"\0")
            if stripped:
                rest = stripped
                break
            rest = self._read_compressed()
        if not rest:
            self._ended = True
            return
        if self.compression == "gzip" and rest[:1] == b"\x1f":
            self._inflate = self._new()
            self._compressed = rest
            return
        raise self._corrupt(f"unexpected bytes after the end of the {self.compression} data")

    def _corrupt(self, reason: str) -> CorruptError:
        return CorruptError(
            self.path,
            None,
            self._at,
            reason,
            f"`holdfast salvage {shlex.quote(self.path)} OUT` keeps what can be decompressed",
        )


def open_source(
    path: str | os.PathLike[str], compression: Compression = "auto", *, fd: int | None = None
) -> RecordSource:
    """Opens a file for reading, or raises. `fd`: the file, already open; the source takes it over."""
    if compression not in COMPRESSIONS:
        raise ValueError(f"expected compression to be one of {', '.join(COMPRESSIONS)}, got {compression!r}")
    name = os.fsdecode(path)
    try:
        if fd is None:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a FIFO would block
    except OSError as error:
        raise cannot_open(name, error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            kind = "a folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "not a regular file"
            raise InputError(f"{name}: expected a file to read, this is {kind}")
        try:
            head = os.pread(fd, 512, 0)
        except OSError as error:
            raise InputError(f"{name}: cannot read: {error.strerror}") from error
        found = _confirm_compression(fd, detect_compression(head))
        if compression not in ("auto", "none") and found != compression and head:
            raise FormatError(
                name, None, 0, f"expected {compression} data, got other data", "Read it with compression='auto'"
            )
        if compression == "none" and found != "none":
            hint = "Read it with compression='auto'"
            raise FormatError(name, 0, 0, f"expected plain data, got {found} data", hint)
        if found == "none":
            return RecordSource(name, fd)
        return InflateSource(name, fd, found)
    except BaseException:
        os.close(fd)
        raise


def _confirm_compression(fd: int, found: Literal["none", "gzip", "zlib"]) -> Literal["none", "gzip", "zlib"]:
    """Tells a plain file with a corrupt first header from a compressed one: it does not decompress, but has records."""
    if found == "none":
        return found
    try:
        if zlib.decompressobj(zlib.MAX_WBITS | (16 if found == "gzip" else 0)).decompress(os.pread(fd, 4096, 0), 64):
            return found
    except zlib.error:
        pass
    start = os.pread(fd, 1 << 20, 0)
    return "none" if codec.find_header(start, 0, len(start)) >= 0 else found


def spool(source: InflateSource) -> tuple[RecordSource, CorruptError | None]:
    """Decompresses all that is possible into an unnamed temporary file, for random access.

    Also returns the error that the compressed data ended with, if any.
    """
    problem = None
    source.keep_last_bytes = True
    with tempfile.TemporaryFile() as file:
        try:
            while data := source._read_some(_CHUNK_BYTES):
                file.write(data)
        except CorruptError as error:
            problem = error
        file.flush()
        return RecordSource(source.path, os.dup(file.fileno())), problem
