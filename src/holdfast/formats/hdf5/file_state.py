"""Bob Jenkins' lookup3 (hashlittle): the checksum of HDF5's metadata."""

from __future__ import annotations

import io
import os
import stat
from typing import Any, NamedTuple

from ...errors import InputError, cannot_open
from ...procfs.locks import Holder, locks_of, writers_of

_MASK = 0xFFFFFFFF


def lookup3(data: bytes, start: int = 0) -> int:
    """The 32-bit hash of `data`; HDF5 starts from 0."""
    a = b = c = (0xDEADBEEF + len(data) + start) & _MASK
    at = 0
    while len(data) - at > 12:
        a = (a + _word(data, at)) & _MASK
        b = (b + _word(data, at + 4)) & _MASK
        c = (c + _word(data, at + 8)) & _MASK
        a, b, c = _mix(a, b, c)
        at += 12
    if at == len(data):
        return c
    tail = data[at:].ljust(12, b"\0")
    a = (a + _word(tail, 0)) & _MASK
    b = (b + _word(tail, 4)) & _MASK
    c = (c + _word(tail, 8)) & _MASK
    return _final(a, b, c)


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _rotated(x: int, by: int) -> int:
    return (x << by | x >> (32 - by)) & _MASK


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for by in (4, 6, 8, 16, 19, 4):
        a = (a - c & _MASK) ^ _rotated(c, by)
        c = c + b & _MASK
        a, b, c = b, c, a
    return a, b, c


def _final(a: int, b: int, c: int) -> int:
    for by in (14, 11, 25, 16, 4, 14, 24):
        c = (c ^ b) - _rotated(b, by) & _MASK
        a, b, c = b, c, a
    return b


# The first bytes of an HDF5 file: its version, where it says that it ends, and whether its writer closed it.
#
# Read and mended here in plain Python, because the library refuses to open a file whose marks are not those of a closed
# one. The file itself is never changed: what is mended is laid over its bytes when they are read.

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_OPEN_FOR_WRITE = 0x01
_SWMR = 0x04
_LONGEST = 128
_ADDRESS_SIZES = (2, 4, 8)


class Superblock(NamedTuple):
    at: int  # where in the file: behind a user block, which is 512 bytes long, or 1,024, …
    version: int
    end: int  # where the file ends, as it says itself
    flags: int
    whole: bool  # its checksum is right; versions 0 and 1 have none
    raw: bytes
    address_bytes: int = 8  # how long an address is

    @property
    def open_for_write(self) -> bool:
        return bool(self.flags & (_OPEN_FOR_WRITE | _SWMR))

    @property
    def swmr(self) -> bool:
        return bool(self.flags & _SWMR)


def find_superblock(path: str) -> Superblock | None:
    """None: there is no signature, or what follows it cannot be a superblock. OSError: the file cannot be read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size, at = os.fstat(fd).st_size, 0
        while at < size:
            head = os.pread(fd, _LONGEST, at)
            if head.startswith(SIGNATURE):
                return parse_superblock(head, at)
            at = at * 2 or 512
        return None
    finally:
        os.close(fd)


def parse_superblock(head: bytes, at: int = 0) -> Superblock | None:
    """Of the bytes from its signature on."""
    version = head[8] if len(head) > 8 else -1
    if version not in (0, 1, 2, 3) or len(head) < 14:
        return None
    place = _first_address(version)
    size = head[13 if version < 2 else 9]
    end = place + 4 * size  # of four addresses; the third is where the file ends
    if size not in _ADDRESS_SIZES or len(head) < end + (0 if version < 2 else 4):
        return None
    file_end = int.from_bytes(head[place + 2 * size : place + 3 * size], "little")
    if version < 2:
        return Superblock(at, version, file_end, 0, True, head[:end], size)
    whole = lookup3(head[:end]) == int.from_bytes(head[end : end + 4], "little")
    return Superblock(at, version, file_end, head[11], whole, head[: end + 4], size)


def _first_address(version: int) -> int:
    return 24 + 4 * version if version < 2 else 12


def mended(block: Superblock, size: int) -> bytes:
    """The same superblock as its writer would have left it: closed, and ending where the file ends."""
    raw, n, place = bytearray(block.raw), block.address_bytes, _first_address(block.version)
    raw[place + 2 * n : place + 3 * n] = min(size, (1 << 8 * n) - 1).to_bytes(n, "little")
    if block.version < 2:
        raw[place + 3 * n : place + 4 * n] = b"\xff" * n  # of a driver's own block; there is none
        return bytes(raw)
    raw[11] = 0
    raw[-4:] = lookup3(bytes(raw[:-4])).to_bytes(4, "little")
    return bytes(raw)


def with_root(block: Superblock, *, root: int, end: int) -> bytes:
    """One of version 2 or 3, with addresses of eight bytes, that leads to another root group."""
    raw = bytearray(block.raw)
    raw[28:36], raw[36:44] = end.to_bytes(8, "little"), root.to_bytes(8, "little")
    raw[44:48] = lookup3(bytes(raw[:44])).to_bytes(4, "little")
    return bytes(raw)


# A file read through its mended superblock: the library sees a closed file, the file on disk stays as it is.
#
# No copy is made: a damaged file may be larger than what is free on the disk, and a copy is one more thing that can
# fail.


class PatchedView(io.RawIOBase):
    """For h5py's driver of Python file objects. Reading only.

    stretch   a file that is cut seems as long as it was, and reading behind the cut is an error: a dataset without
              chunks that was cut can be opened in no other way
    """

    def __init__(self, path: str, block: Superblock, *, stretch: bool = False) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._fd).st_size
        if stretch:
            self._size = max(self._size, block.end)
        self._patch, self._patch_at = mended(block, self._size), block.at
        self._tail = b""
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, into: Any) -> int:
        view = memoryview(into).cast("B")
        done = 0
        while done < len(view):
            n = os.preadv(self._fd, [view[done:]], self._at + done)
            if not n:
                break
            done += n
        if done < len(view) and self._at + done < self._size:
            done += self._behind(self._at + done, view[done:])
        low, high = max(self._at, self._patch_at), min(self._at + done, self._patch_at + len(self._patch))
        if low < high:
            view[low - self._at : high - self._at] = self._patch[low - self._patch_at : high - self._patch_at]
        self._at += done
        return done

    def _behind(self, at: int, view: memoryview) -> int:
        if not self._tail:
            raise OSError(f"the file is cut at byte {at:,}")
        start = len(self._tail) - (self._size - at)
        data = self._tail[start : start + len(view)]
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        super().close()


class RootlessView(PatchedView):
    """A file whose superblock is lost, read with an empty file's in its place, whose empty root group is put behind it.

    `empty` is all of such a file. Nothing is listed then, but what is found by its bytes can be opened.
    """

    def __init__(self, path: str, empty: bytes) -> None:
        block = parse_superblock(empty)
        assert block is not None
        super().__init__(path, block)
        size, self._tail = self._size, empty[len(block.raw) :]
        self._patch = with_root(block, root=size, end=size + len(self._tail))
        self._patch_at = 0
        self._size = size + len(self._tail)


# What can be said of a file without the HDF5 library: is it one, does somebody write it, was it closed, is it cut.


class State(NamedTuple):
    path: str
    size: int
    block: Superblock | None
    writer: Holder | None  # pid 0: somebody holds a lock, who may not be seen

    @property
    def is_hdf5(self) -> bool:
        return self.block is not None

    @property
    def mend(self) -> bool:
        """Whether the library would refuse it as it is."""
        block = self.block
        return block is not None and (block.open_for_write or not block.whole or block.end != self.size)

    @property
    def written_by(self) -> str:
        if self.writer is None:
            return ""
        if not self.writer.pid:
            return "by a process that may not be seen: it holds a lock on it"
        if self.writer.pid == os.getpid():
            return "by this process itself"
        return f"by process {self.writer.pid} ({self.writer.command})"


def look_at(path: str) -> State:
    """InputError: it cannot be read."""
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):
            kind = "a folder" if stat.S_ISDIR(info.st_mode) else "not a regular file"
            raise InputError(f"{path}: expected a file to read, this is {kind}")
        return State(path, info.st_size, find_superblock(path), _writer(path))
    except OSError as error:
        raise cannot_open(path, error) from error


def _writer(path: str) -> Holder | None:
    writers = writers_of(path)
    if writers:
        return writers[0]
    for lock in locks_of(path) or []:
        if lock.exclusive and not lock.waiting:
            return Holder(lock.pid or 0, -1, lock.command)
    return None


def troubles(state: State) -> list[tuple[int | None, str]]:
    """(offset, reason) of each thing that is not as in a file that was closed and left alone."""
    block, size = state.block, state.size
    if block is None:
        if not size:
            return [(None, "the file is empty: its writer has not finished, or died")]
        return [(0, "not an HDF5 file: it has no superblock that can be read")]
    found: list[tuple[int | None, str]] = []
    if state.writer is not None:
        found.append((None, f"not finished: still being written {state.written_by}"))
    if not block.whole:
        found.append((block.at, "the checksum of its superblock is wrong"))
    if state.writer is not None:
        return found
    if block.open_for_write:
        mode = " (SWMR)" if block.swmr else ""
        found.append((block.at + 11, f"not closed properly{mode}: its writer died, nobody has it open for writing"))
    if block.end > size:
        found.append((size, f"cut: it should have {block.end:,} bytes, it has {size:,}"))
    elif block.end < size and not block.swmr:
        behind = size - block.end
        found.append((block.end, f"{behind:,} bytes behind its end: its writer died before it told of them"))
    return found
