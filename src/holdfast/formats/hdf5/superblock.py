"""The first bytes of an HDF5 file: its version, where it says that it ends, and whether its writer closed it.

Read and mended here in plain Python, because the library refuses to open a file whose marks are not those of a closed
one. The file itself is never changed: what is mended is laid over its bytes when they are read.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from .lookup3 import lookup3

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
