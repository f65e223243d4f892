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
_NOWHERE = 0xFFFFFFFFFFFFFFFF


class Superblock(NamedTuple):
    at: int  # where in the file: behind a user block, which is 512 bytes long, or 1,024, …
    version: int
    end: int  # where the file ends, as it says itself
    flags: int
    whole: bool  # its checksum is right; versions 0 and 1 have none
    raw: bytes

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
    """Of the bytes from its signature on. Only addresses of eight bytes, which all files have in practice."""
    version = head[8] if len(head) > 8 else -1
    if version in (0, 1):
        place = 24 + 4 * version  # of the base address, the first of four
        if len(head) < place + 32 or head[13] != 8:
            return None
        return Superblock(at, version, _number(head, place + 16), 0, True, head[: place + 32])
    if version in (2, 3):
        if len(head) < 48 or head[9] != 8:
            return None
        whole = lookup3(head[:44]) == int.from_bytes(head[44:48], "little")
        return Superblock(at, version, _number(head, 28), head[11], whole, head[:48])
    return None


def mended(block: Superblock, size: int) -> bytes:
    """The same superblock as its writer would have left it: closed, and ending where the file ends."""
    raw = bytearray(block.raw)
    if block.version < 2:
        place = 24 + 4 * block.version
        raw[place + 16 : place + 24] = size.to_bytes(8, "little")
        raw[place + 24 : place + 32] = _NOWHERE.to_bytes(8, "little")  # of a driver's own block; there is none
        return bytes(raw)
    raw[11] = 0
    raw[28:36] = size.to_bytes(8, "little")
    raw[44:48] = lookup3(bytes(raw[:44])).to_bytes(4, "little")
    return bytes(raw)


def with_root(block: Superblock, *, root: int, end: int) -> bytes:
    """One of version 2 or 3 that leads to another root group."""
    raw = bytearray(block.raw)
    raw[28:36], raw[36:44] = end.to_bytes(8, "little"), root.to_bytes(8, "little")
    raw[44:48] = lookup3(bytes(raw[:44])).to_bytes(4, "little")
    return bytes(raw)


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")
