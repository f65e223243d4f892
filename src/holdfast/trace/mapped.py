"""Which mmap objects map the file of a descriptor.

A mmap object keeps a descriptor of its own and shows it nowhere. Its memory's address leads to the file, in
`/proc/self/maps`; two of them on one file cannot be told apart.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
from collections.abc import Iterable
from typing import NamedTuple

from ..proc.procfs import REAL, read_or_none


class _Buffer(ctypes.Structure):
    """Py_buffer, as far as it must be understood; the rest is room."""

    _fields_ = (("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("room", ctypes.c_byte * 256))


class Mapping(NamedTuple):
    start: int
    end: int
    inode: int
    path: str


def parse_maps(text: str) -> list[Mapping]:
    """`/proc/PID/maps`, files only, in the order of their addresses.

    ```
    7f1c6a400000-7f1c6a401000 rw-s 00000000 00:19 1031                       /dev/shm/psm_4f2a (deleted)
    ```
    """
    found = []
    for line in text.splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[4] != "0":
            start, _, end = words[0].partition("-")
            found.append(Mapping(int(start, 16), int(end, 16), int(words[4]), words[5]))
    return found


def match_mapped(fds: Iterable[int], maps: Iterable[mmap.mmap]) -> dict[int, list[mmap.mmap]]:
    """The mmap objects of each of these descriptors' files."""
    rows = parse_maps(read_or_none(REAL, "/proc/self/maps") or "")
    by_file: dict[tuple[int, str], list[mmap.mmap]] = {}
    for one in maps:
        row = _row_of(rows, _address(one))
        if row is not None:
            by_file.setdefault((row.inode, row.path), []).append(one)
    found = {fd: by_file.get(_file_of(fd), []) for fd in fds} if by_file else {}
    return {fd: owners for fd, owners in found.items() if owners}


def _file_of(fd: int) -> tuple[int, str]:
    try:
        return os.fstat(fd).st_ino, os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # closed meanwhile
        return -1, ""


def _row_of(rows: list[Mapping], address: int | None) -> Mapping | None:
    if address is None:
        return None
    at = bisect.bisect_right(rows, address, key=lambda row: row.start) - 1
    return rows[at] if at >= 0 and address < rows[at].end else None


def _address(one: mmap.mmap) -> int | None:
    buffer = _Buffer()
    try:
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(one), ctypes.byref(buffer), 0)
    except (ValueError, BufferError):  # closed
        return None
    address: int | None = buffer.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address
