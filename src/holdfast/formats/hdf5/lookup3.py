"""Bob Jenkins' lookup3 (hashlittle): the checksum of HDF5's metadata."""

from __future__ import annotations

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
