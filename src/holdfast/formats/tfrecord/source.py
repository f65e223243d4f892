"""The bytes of one file, plain or unpacked: `read_at(offset, view)`, by pread, so no offset is shared over fork."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
import warnings
import zlib
from collections.abc import Callable
from typing import Literal

from ..._native import codec
from ...errors import CorruptError, FormatError, InputError, cannot_open
from ..base import fill_from

Compression = Literal["auto", "none", "gzip", "zlib"]
COMPRESSIONS = ("auto", "none", "gzip", "zlib")
_CHUNK_BYTES = 1 << 16

# What a file that is not a TFRecord often is.
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


def sniff(head: bytes) -> Literal["none", "gzip", "zlib"]:
    """How a file is packed, by its first bytes. A good TFRecord header wins: a plain file can begin with 78 01 too."""
    if len(head) >= codec.HEADER_BYTES and codec.find_header(head, 0, codec.HEADER_BYTES) == 0:
        return "none"
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if len(head) >= 2 and head[0] & 15 == 8 and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0:
        return "zlib"
    return "none"


def what_else(head: bytes) -> str:
    """What a file that is no TFRecord seems to be, for an error message."""
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    if head[257:262] == b"ustar":
        return "a tar archive"
    if head and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head[:64]):
        return "a text file"
    return ""


class RecordSource:
    """One open file. Holds one descriptor until close()."""

    compression: Literal["none", "gzip", "zlib"] = "none"

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.on_bytes: Callable[[memoryview], None] | None = None  # sees the file's own bytes once, in order

    def read_at(self, offset: int, view: memoryview) -> int:
        """Fills the view from the file's byte `offset` on; fewer bytes than asked for only at the end."""
        if self.fd < 0:
            raise ValueError(f"{self.path}: it was closed")
        got = fill_from(self.fd, self.path, offset, view)
        if self.on_bytes and got:
            self.on_bytes(view[:got])
        return got

    def size(self) -> int | None:
        """How many bytes read_at can give, now; None when only reading will tell."""
        return os.fstat(self.fd).st_size

    def file_bytes(self) -> int:
        """The file's size on disk."""
        return os.fstat(self.fd).st_size

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1  # first: Ctrl-C in between must not lead to closing the number twice
            os.close(fd)

    def __enter__(self) -> RecordSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            warnings.warn(f"{self.path}: it was read and never closed", ResourceWarning, 2)
            self.close()


class InflateSource(RecordSource):
    """A GZIP or ZLIB file, unpacked on the way. Forward only; going back starts over."""

    def __init__(self, path: str, fd: int, compression: Literal["gzip", "zlib"]) -> None:
        super().__init__(path, fd)
        self.compression = compression
        self.patient = False  # get out the last byte before a damage, too; slower
        self._start()

    def _start(self) -> None:
        self._inflate = self._new()
        self._packed = b""
        self._at = 0  # in the file
        self._position = 0  # in what comes out
        self._ended = False
        self._failed: CorruptError | None = None  # to be raised once all that came before it was given

    def _new(self) -> zlib._Decompress:
        return zlib.decompressobj(zlib.MAX_WBITS | (16 if self.compression == "gzip" else 0))

    def size(self) -> int | None:
        return None

    def read_at(self, offset: int, view: memoryview) -> int:
        if offset < self._position:
            self._start()
        while self._position < offset:
            skipped = self._some(min(offset - self._position, _CHUNK_BYTES))
            if not skipped:
                return 0
        got = 0
        while got < len(view):
            try:
                data = self._some(len(view) - got)
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

    def _some(self, limit: int) -> bytes:
        """At least one and at most `limit` bytes; none at the end."""
        if self._failed is not None:
            raise self._failed
        while not self._ended:
            if not self._packed:
                self._packed = self._read_packed()
            data = self._unpack(limit)
            at_end = not self._packed
            self._packed = self._inflate.unconsumed_tail
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
                raise self._damaged(f"the {self.compression} data are cut short")
        return b""

    def _read_packed(self) -> bytes:
        buf = bytearray(_CHUNK_BYTES)
        n = RecordSource.read_at(self, self._at, memoryview(buf))
        self._at += n
        return bytes(buf[:n])

    def _unpack(self, limit: int) -> bytes:
        before = self._inflate.copy() if self.patient else None
        try:
            return self._inflate.decompress(self._packed, limit)
        except zlib.error as error:
            data = self._up_to_damage(before) if before else b""
            if data:
                return data
            raise self._damaged(f"the {self.compression} data are damaged: {error}") from None

    def _up_to_damage(self, inflate: zlib._Decompress) -> bytes:
        # A failed call gives nothing of what it had unpacked: go again in single bytes and keep what comes first.
        data = b""
        packed, self._packed = self._packed, b"\xff" * 64  # whatever comes next fails, with nothing left to give
        self._inflate, self.patient = zlib.decompressobj(), False
        try:
            for i in range(len(packed)):
                data += inflate.decompress(packed[i : i + 1])
        except zlib.error:
            pass
        return data

    def _next_member(self) -> None:
        # Files joined with `cat` are one file to gzip and to TensorFlow; zeros behind the end are padding.
        rest = self._inflate.unused_data or self._read_packed()
        while rest and self.compression == "gzip":
            stripped = rest.lstrip(b"\0")
            if stripped:
                rest = stripped
                break
            rest = self._read_packed()
        if not rest:
            self._ended = True
            return
        if self.compression == "gzip" and rest[:1] == b"\x1f":
            self._inflate = self._new()
            self._packed = rest
            return
        raise self._damaged(f"there is something else behind the end of the {self.compression} data")

    def _damaged(self, reason: str) -> CorruptError:
        return CorruptError(
            self.path,
            None,
            self._at,
            reason,
            f"`holdfast salvage {shlex.quote(self.path)} OUT` keeps what can be unpacked",
        )


def open_source(
    path: str | os.PathLike[str], compression: Compression = "auto", *, fd: int | None = None
) -> RecordSource:
    """Opens a file for reading; says plainly why it cannot. `fd`: the file, already open; the source takes it over."""
    if compression not in COMPRESSIONS:
        raise ValueError(f"expected compression to be one of {', '.join(COMPRESSIONS)}, got {compression!r}")
    name = os.fsdecode(path)
    try:
        if fd is None:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would block the open else
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
        found = _believe(fd, sniff(head))
        if compression not in ("auto", "none") and found != compression and head:
            raise FormatError(
                name, None, 0, f"read as {compression}, but it is not", "Leave compression to be found out"
            )
        if compression == "none" and found != "none":
            hint = "Read it with compression='auto'"
            raise FormatError(name, 0, 0, f"this is {found} data read as plain", hint)
        if found == "none":
            return RecordSource(name, fd)
        return InflateSource(name, fd, found)
    except BaseException:
        os.close(fd)
        raise


def _believe(fd: int, found: Literal["none", "gzip", "zlib"]) -> Literal["none", "gzip", "zlib"]:
    """A plain file with a damaged first header can begin like a packed one: it does not unpack, but has records."""
    if found == "none":
        return found
    try:
        if zlib.decompressobj(zlib.MAX_WBITS | (16 if found == "gzip" else 0)).decompress(os.pread(fd, 4096, 0), 64):
            return found
    except zlib.error:
        pass
    look = os.pread(fd, 1 << 20, 0)
    return "none" if codec.find_header(look, 0, len(look)) >= 0 else found


def spool(source: InflateSource, folder: str | None = None) -> tuple[RecordSource, CorruptError | None]:
    """Everything that can be unpacked, in a nameless temporary file, for those who must go back and forth in it.

    The second part says where the packed data broke off, if they did.
    """
    problem = None
    source.patient = True
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            while data := source._some(_CHUNK_BYTES):
                file.write(data)
        except CorruptError as error:
            problem = error
        file.flush()
        return RecordSource(source.path, os.dup(file.fileno())), problem
