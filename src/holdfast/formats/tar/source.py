"""The bytes of one tar: plain by pread, so that no offset is shared over fork; packed, unpacked from the start."""

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

from ..._util.atomic import FileStamp
from ...errors import CorruptError, FormatError, InputError, cannot_open
from ..base import fill_from

Packing = Literal["none", "gzip", "bzip2", "xz"]
_SKIP_BYTES = 1 << 20

_MAGIC: dict[bytes, Packing] = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
_ZSTD = b"\x28\xb5\x2f\xfd"


class TarBytes(Protocol):
    """What a walk reads from: ever further on, never back."""

    path: str

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end."""

    def fill(self, offset: int, view: memoryview) -> int: ...


def open_file(path: str, fd: int | None = None) -> int:
    """A descriptor of a regular file, or an InputError that says why not. `fd`: the file, already open."""
    try:
        if fd is None:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would block the open else
    except OSError as error:
        raise cannot_open(path, error) from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise InputError(f"{path}: expected a file to read, this is {kind}")
    return fd


def packing_of(path: str) -> Packing:
    """How a file is packed, by its first bytes: names lie (`tar -czf x.tar`)."""
    with closing(PlainBytes(path)) as file:
        return file.packing()


def _packing_by(path: str, fd: int) -> Packing:
    try:
        head = os.pread(fd, 8, 0)
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error
    if not head:
        raise FormatError(path, None, None, "the file is empty: its writer has not finished, or died")
    if head.startswith(_ZSTD):
        raise FormatError(path, None, None, "this is a zstd file, which cannot be read", "Unpack it with `zstd -d`")
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "none")


class PlainBytes:
    """Holds one descriptor until close(). `fd`: the file, already open, which this object takes over."""

    def __init__(self, path: str, fd: int | None = None) -> None:
        self.path = path
        self.fd = open_file(path, fd)

    def packing(self) -> Packing:
        """How the file is packed, by its first bytes: names lie (`tar -czf x.tar`)."""
        return _packing_by(self.path, self.fd)

    def read_at(self, offset: int, size: int) -> bytes:
        self._must_be_open()
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
        self._must_be_open()
        return fill_from(self.fd, self.path, offset, view)

    def size(self) -> int:
        return self.stamp()["size"]

    def stamp(self) -> dict[str, int]:
        self._must_be_open()
        return FileStamp.of(self.fd).as_dict()

    def _must_be_open(self) -> None:
        if self.fd < 0:
            raise ValueError(f"{self.path}: it was closed")

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            warnings.warn(f"{self.path}: it was read and never closed", ResourceWarning, 2)
            self.close()


class UnpackedBytes:
    """What comes out of a packed file, forward only."""

    def __init__(self, path: str, file: IO[bytes], packing: Packing) -> None:
        self.path = path
        self._file = file
        self._packing = packing
        self._at = 0

    def read_at(self, offset: int, size: int) -> bytes:
        parts: list[bytes] = []
        if self._skip_to(offset):
            while size and (data := self._some(min(size, _SKIP_BYTES))):  # never a buffer for what a header claims
                parts.append(data)
                size -= len(data)
        return b"".join(parts)

    def fill(self, offset: int, view: memoryview) -> int:
        data = self.read_at(offset, len(view))
        view[: len(data)] = data
        return len(data)

    def _skip_to(self, offset: int) -> bool:
        assert offset >= self._at, "it goes forward only"
        while self._at < offset:
            if not self._some(min(offset - self._at, _SKIP_BYTES)):
                return False
        return True

    def _some(self, most: int) -> bytes:
        try:
            data = self._file.read(most)
        except EOFError:
            reason = f"the {self._packing} data are cut short"
            raise CorruptError(self.path, None, None, reason, "Write it again") from None
        except (zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError) as error:
            raise self._damaged(error) from None
        except OSError as error:
            if error.errno is None:  # how bz2 says that data are damaged
                raise self._damaged(error) from None
            raise InputError(f"{self.path}: cannot read: {error.strerror}") from error
        self._at += len(data)
        return data

    def _damaged(self, error: Exception) -> CorruptError:
        return CorruptError(self.path, None, None, f"the {self._packing} data are damaged: {error}", "Write it again")


@contextmanager
def unpack(path: str, packing: Packing) -> Iterator[UnpackedBytes]:
    with io.FileIO(open_file(path), "r") as raw, _unpacker(raw, packing) as file:
        yield UnpackedBytes(path, file, packing)


def _unpacker(raw: io.FileIO, packing: Packing) -> IO[bytes]:
    if packing == "gzip":
        return gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[return-value]
    return bz2.BZ2File(raw) if packing == "bzip2" else lzma.LZMAFile(raw)
