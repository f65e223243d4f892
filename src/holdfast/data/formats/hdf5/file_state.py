"""Reads the state of an HDF5 file without the library: is it HDF5, being written, closed properly, truncated?

The library refuses to open a file whose superblock is not that of a closed file. PatchedView gives it the file with a
repaired superblock. The file on disk is never changed, and never copied: it may be larger than the free disk space.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...._util.atomic import pread_into
from ....errors import InputError, cannot_open
from ....procfs.locks import Holder, locks_of, writers_of

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_OPEN_FOR_WRITE = 0x01
_SWMR = 0x04
_MAX_BYTES = 128
_ADDRESS_SIZES = (2, 4, 8)
_MASK = 0xFFFFFFFF
_HEAP_READ_BYTES = 4096  # the library reads so much of a heap to see its size, and then the rest


class Superblock(NamedTuple):
    at: int  # its offset: 0, or the size of a user block, which is 512, 1,024, …
    version: int
    end: int  # the size of the file according to itself
    flags: int
    checksum_ok: bool  # True for versions 0 and 1, which have none
    raw: bytes
    address_bytes: int = 8

    @property
    def size_bytes(self) -> int:
        """The width of sizes in the file."""
        return self.raw[14 if self.version < 2 else 10]

    @property
    def open_for_write(self) -> bool:
        return bool(self.flags & (_OPEN_FOR_WRITE | _SWMR))

    @property
    def swmr(self) -> bool:
        return bool(self.flags & _SWMR)


def find_superblock(path: str) -> Superblock | None:
    """Returns None where there is no signature, or no valid superblock after it. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size, at = os.fstat(fd).st_size, 0
        while at < size:
            head = os.pread(fd, _MAX_BYTES, at)
            if head.startswith(SIGNATURE):
                return parse_superblock(head, at)
            at = at * 2 or 512
        return None
    finally:
        os.close(fd)


def parse_superblock(head: bytes, at: int = 0) -> Superblock | None:
    """Parses the bytes that begin with the signature."""
    version = head[8] if len(head) > 8 else -1
    if version not in (0, 1, 2, 3) or len(head) < 14:
        return None
    place = _first_address(version)
    size = head[13 if version < 2 else 9]
    end = place + 4 * size  # of four addresses; the third is the end of the file
    if size not in _ADDRESS_SIZES or len(head) < end + (0 if version < 2 else 4):
        return None
    file_end = int.from_bytes(head[place + 2 * size : place + 3 * size], "little")
    if version < 2:
        return Superblock(at, version, file_end, 0, True, head[:end], size)
    checksum_ok = lookup3(head[:end]) == int.from_bytes(head[end : end + 4], "little")
    return Superblock(at, version, file_end, head[11], checksum_ok, head[: end + 4], size)


def _first_address(version: int) -> int:
    return 24 + 4 * version if version < 2 else 12


def repaired(block: Superblock, size: int) -> bytes:
    """Returns the superblock as its writer would have left it: closed, and ending where the file ends."""
    raw, n, place = bytearray(block.raw), block.address_bytes, _first_address(block.version)
    raw[place + 2 * n : place + 3 * n] = min(size, (1 << 8 * n) - 1).to_bytes(n, "little")
    if block.version < 2:
        raw[place + 3 * n : place + 4 * n] = b"\xff" * n  # no driver information block
        return bytes(raw)
    raw[11] = 0
    raw[-4:] = lookup3(bytes(raw[:-4])).to_bytes(4, "little")
    return bytes(raw)


def with_root(block: Superblock, *, root: int, end: int) -> bytes:
    """Returns a superblock of version 2 or 3 with 8-byte addresses that points to another root group."""
    raw = bytearray(block.raw)
    raw[28:36], raw[36:44] = end.to_bytes(8, "little"), root.to_bytes(8, "little")
    raw[44:48] = lookup3(bytes(raw[:44])).to_bytes(4, "little")
    return bytes(raw)


def lookup3(data: bytes, start: int = 0) -> int:
    """Returns Bob Jenkins' lookup3 (hashlittle) of `data`, the checksum of HDF5's metadata; HDF5 starts from 0."""
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


class HeapEnd(NamedTuple):
    """Bytes to show instead of those at `at` when the heap at `heap` is read: there its last object ends."""

    heap: int
    at: int
    data: bytes


class PatchedView(io.RawIOBase):
    """A read-only file object for h5py that shows the file with a repaired superblock.

    full_length   a truncated file seems as long as it was, and reading after its end raises: a contiguous dataset that
                  was truncated cannot be opened otherwise
    """

    def __init__(self, path: str, block: Superblock, *, full_length: bool = False) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._fd).st_size
        if full_length:
            self._size = max(self._size, block.end)
        self._patch, self._patch_at = repaired(block, self._size), block.at
        self._tail = b""
        self._at = 0
        self.heap_ends: Sequence[HeapEnd] = ()
        self.ended_heap: Callable[[int], object] = lambda at: None  # called with the offset where a heap was ended

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
        done = pread_into(self._fd, view, self._at)
        if done < len(view) and self._at + done < self._size:
            done += self._after_end(self._at + done, view[done:])
        self._patch_into(view[:done], self._patch_at, self._patch)
        for heap, at, data in self.heap_ends:
            # Only where the library reads the heap: elsewhere these bytes are values.
            if self._at in (heap, heap + _HEAP_READ_BYTES) and self._patch_into(view[:done], at, data):
                self.ended_heap(at)
        self._at += done
        return done

    def _patch_into(self, view: memoryview, at: int, data: bytes) -> bool:
        """Writes `data`, of offset `at` in the file, into what was read; returns whether any of it is in there."""
        low, high = max(self._at, at), min(self._at + len(view), at + len(data))
        if low < high:
            view[low - self._at : high - self._at] = data[low - at : high - at]
        return low < high

    def _after_end(self, at: int, view: memoryview) -> int:
        if not self._tail:
            raise OSError(f"the file is truncated at byte {at:,}")
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
    """Shows a file without a superblock as one with an empty root group, which is appended to it.

    `empty` is the content of an empty HDF5 file. Objects that are found by their bytes can then be opened by address.
    """

    def __init__(self, path: str, empty: bytes) -> None:
        block = parse_superblock(empty)
        assert block is not None
        super().__init__(path, block)
        size, self._tail = self._size, empty[len(block.raw) :]
        self._patch = with_root(block, root=size, end=size + len(self._tail))
        self._patch_at = 0
        self._size = size + len(self._tail)


class State(NamedTuple):
    path: str
    size: int
    block: Superblock | None
    writer: Holder | None  # pid 0: the holder of a lock is not visible

    @property
    def is_hdf5(self) -> bool:
        return self.block is not None

    @property
    def needs_repair(self) -> bool:
        """Returns whether the library would refuse the file as it is."""
        block = self.block
        return block is not None and (block.open_for_write or not block.checksum_ok or block.end != self.size)

    @property
    def written_by(self) -> str:
        return "" if self.writer is None else describe_writer(self.writer)


def describe_writer(writer: Holder) -> str:
    if not writer.pid:
        return "by a process that is not visible from here, which holds a lock on it"
    if writer.pid == os.getpid():
        return "by this process itself"
    return f"by process {writer.pid} ({writer.command})"


def check_regular(path: str, mode: int) -> None:
    """Raises InputError for what is not a file."""
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a special file"
        raise InputError(f"{path}: expected a file to read, got {kind}")


def read_state(path: str) -> State:
    """Raises InputError if the file cannot be read."""
    try:
        info = os.stat(path)
        check_regular(path, info.st_mode)
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


def state_problems(state: State) -> list[tuple[int | None, str]]:
    """Returns (offset, reason) of everything that a file that was closed and left alone would not have."""
    block, size = state.block, state.size
    if block is None:
        if not size:
            return [(None, "the file is empty: its writer has not finished, or died")]
        return [(0, "not an HDF5 file: it has no valid superblock")]
    found: list[tuple[int | None, str]] = []
    if state.writer is not None:
        found.append((None, f"not finished: still being written {state.written_by}"))
    if not block.checksum_ok:
        found.append((block.at, "the checksum of its superblock is wrong"))
    if state.writer is not None:
        return found
    if block.open_for_write:
        mode = " (SWMR)" if block.swmr else ""
        found.append(
            (block.at + 11, f"not closed properly{mode}: its writer died, and no process has it open for writing")
        )
    if block.end > size:
        found.append((size, f"truncated: expected {block.end:,} bytes, got {size:,}"))
    elif block.end < size and not block.swmr:
        extra = size - block.end
        found.append((block.end, f"{extra:,} bytes after its end: its writer died before it recorded them"))
    return found
