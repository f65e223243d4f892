"""Reads the bytes of one tar: plain ones by pread, so that processes can share the descriptor after a fork; compressed
ones from the start."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import warnings
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import IO, Literal, Protocol

from ...._util.atomic import cache_key
from ....errors import CorruptError, FormatError, InputError, cannot_open
from ..base import fill_from

TarCompression = Literal["none", "gzip", "bzip2", "xz"]
_SKIP_BYTES = 1 << 20

_MAGIC: dict[bytes, TarCompression] = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
_ZSTD = b"\x28\xb5\x2f\xfd"


class TarBytes(Protocol):
    """Input of a scan, which only reads forward."""

    path: str

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes; fewer only at the end."""

    def fill(self, offset: int, view: memoryview) -> int: ...


def open_file(path: str, fd: int | None = None) -> int:
    """Opens a regular file, or raises an InputError that says why it cannot. `fd`: the file, already open."""
    try:
        if fd is None:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a FIFO would block
    except OSError as error:
        raise cannot_open(path, error) from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise InputError(f"{path}: expected a file to read, this is {kind}")
    return fd


def detect_compression(path: str) -> TarCompression:
    """Detects the compression by the first bytes, because names can be wrong (`tar -czf x.tar`)."""
    with closing(PlainBytes(path)) as file:
        return file.compression()


def _compression_by(path: str, fd: int) -> TarCompression:
    try:
        head = os.pread(fd, 8, 0)
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error
    if not head:
        raise FormatError(path, None, None, "the file is empty: its writer has not finished, or died")
    if head.startswith(_ZSTD):
        raise FormatError(path, None, None, "this is a zstd file, which cannot be read", "Decompress it with `zstd -d`")
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "none")


class PlainBytes:
    """A plain tar. Holds one descriptor until close(). `fd`: the file, already open, which this object takes over."""

    def __init__(self, path: str, fd: int | None = None) -> None:
        self.path = path
        self.fd = open_file(path, fd)

    def compression(self) -> TarCompression:
        return _compression_by(self.path, self.fd)

    def read_at(self, offset: int, size: int) -> bytes:
        self._check_open()
        parts: list[bytes] = []
        try:
            while size and (data := os.pread(self.fd, min(size, _SKIP_BYTES), offset)):
                parts.append(data)
                offset += len(data)
                size -= len(data)
        except OSError as error:
            raise InputError(f"{self.path}: cannot read at byte {offset:,}: {error.strerror}") from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fill(self, offset: int, view: memoryview) -> int:
        self._check_open()
        return fill_from(self.fd, self.path, offset, view)

    def size(self) -> int:
        return self.stamp()["size"]

    def stamp(self) -> dict[str, int]:
        self._check_open()
        return cache_key(self.fd)

    def _check_open(self) -> None:
        if self.fd < 0:
            raise ValueError(f"{self.path}: the file is closed")

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            warnings.warn(f"{self.path}: the file was read and never closed", ResourceWarning, 2)
            self.close()


class DecompressedBytes:
    """The data of a compressed file, which can only be read forward."""

    def __init__(self, path: str, fd: int, file: IO[bytes], compression: TarCompression) -> None:
        self.path = path
        self._fd = fd
        self._file = file
        self._compression = compression
        self._at = 0

    def stamp(self) -> dict[str, int]:
        """Returns the stamp of the compressed file."""
        return cache_key(self._fd)

    def read_at(self, offset: int, size: int) -> bytes:
        parts: list[bytes] = []
        if self._skip_to(offset):
            # no buffer for a size that a header only claims
            while size and (data := self._read_some(min(size, _SKIP_BYTES))):
                parts.append(data)
                size -= len(data)
        return b"".join(parts)

    def fill(self, offset: int, view: memoryview) -> int:
        data = self.read_at(offset, len(view))
        view[: len(data)] = data
        return len(data)

    def _skip_to(self, offset: int) -> bool:
        assert offset >= self._at, "it can only be read forward"
        while self._at < offset:
            if not self._read_some(min(offset - self._at, _SKIP_BYTES)):
                return False
        return True

    def _read_some(self, maximum: int) -> bytes:
        try:
            data = self._file.read(maximum)
        except EOFError:
            reason = f"the {self._compression} data are cut short"
            raise CorruptError(self.path, None, None, reason, "Write it again") from None
        except (zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError) as error:
            raise self._damaged(error) from None
        except OSError as error:
            if error.errno is None:  # how bz2 reports corrupt data
                raise self._damaged(error) from None
            raise InputError(f"{self.path}: cannot read: {error.strerror}") from error
        self._at += len(data)
        return data

    def _damaged(self, error: Exception) -> CorruptError:
        reason = f"the {self._compression} data are corrupt: {error}"
        return CorruptError(self.path, None, None, reason, "Write it again")


@contextmanager
def decompress(path: str, compression: TarCompression) -> Iterator[DecompressedBytes]:
    with io.FileIO(open_file(path), "r") as raw, _decompressor(raw, compression) as file:
        yield DecompressedBytes(path, raw.fileno(), file, compression)


def _decompressor(raw: io.FileIO, compression: TarCompression) -> IO[bytes]:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[return-value]
    return bz2.BZ2File(raw) if compression == "bzip2" else lzma.LZMAFile(raw)
