"""Reads which descriptors an object owns, without running any code of the object's author.

Known types are read by their own C methods. Instances of other Python classes are searched for attributes that usually
hold descriptors; a property of such a name is never called.

A mmap object has a descriptor of its own but does not expose it. The address of its memory leads to the file in
`/proc/self/maps`; two mmap objects of one file cannot be distinguished.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterable
from types import MemberDescriptorType
from typing import Any, NamedTuple

from ...procfs.descriptors import Kind
from ...procfs.procfs import REAL, read_or_none


class _Buffer(ctypes.Structure):
    """The first fields of Py_buffer, and space for the others."""

    _fields_ = (("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("room", ctypes.c_byte * 256))


class Mapping(NamedTuple):
    start: int
    end: int
    inode: int
    path: str


def parse_maps(text: str) -> list[Mapping]:
    """Parses `/proc/PID/maps`, files only, in the order of their addresses.

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
    """Returns, for each of these descriptors, the mmap objects of the same file."""
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
        return os.fstat(fd).st_ino, REAL.readlink(f"/proc/self/fd/{fd}")
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


Reader = Callable[[Any], tuple[int, ...]]

ATTRIBUTES = ("_fd", "fd", "_handle", "_fileno", "_pidfd", "_inotify_fd", "_forkserver_alive_fd")
_HEAP_TYPE = 1 << 9
_HAVE_GC = 1 << 14
# Objects of these packages hold numbers of descriptors but own none.
_NOT_OWNERS = tuple(
    f"holdfast.{package}." for package in ("procfs", "process.fd_owners", "process.filelocks", "process.leakcheck")
)


def _socket(obj: Any) -> tuple[int, ...]:
    return (sys.modules["_socket"].socket.fileno(obj),)


def _file(obj: Any) -> tuple[int, ...]:
    kind = sys.modules["_io"].FileIO
    try:
        fd = kind.fileno(obj)
    except ValueError:  # closed
        return ()
    # The standard streams do not close their descriptors, but count as owners all the same.
    return (fd,) if fd <= 2 or kind.closefd.__get__(obj) else ()


def _epoll(obj: Any) -> tuple[int, ...]:
    try:
        return (sys.modules["select"].epoll.fileno(obj),)
    except ValueError:
        return ()


def _popen(obj: Any) -> tuple[int, ...]:
    """Reads a Popen of multiprocessing, whose finalizer has the ends of the pipes to its process."""
    finalizer = _attribute(obj, "finalizer")
    args = _attribute(finalizer, "_args")
    numbers = args if isinstance(args, tuple) else (_attribute(obj, "sentinel"),)
    return tuple(number for number in numbers if _is_number(number))


def read_map(obj: Any) -> tuple[int, ...]:
    """Marks mmap objects, which do not expose their descriptor: `match_mapped` finds it."""
    return ()


def _connection(obj: Any) -> tuple[int, ...]:
    return _numbers(obj, ["_handle"])


_KNOWN: tuple[tuple[str, str, Reader, Kind | None], ...] = (
    ("_socket", "socket", _socket, Kind.SOCKET),
    ("_io", "FileIO", _file, None),
    ("select", "epoll", _epoll, Kind.EVENTPOLL),
    ("mmap", "mmap", read_map, None),
    ("multiprocessing.connection", "_ConnectionBase", _connection, None),
    ("multiprocessing.popen_fork", "Popen", _popen, None),
)


class Readers:
    """Finds the reader for each type and caches it, for a single search only: the cache keeps types alive."""

    def __init__(self) -> None:
        self._known: list[tuple[type, Reader]] = []
        self._sure: dict[type, Reader | None] = {}
        self._likely: dict[type, Reader | None] = {}
        self.untracked: set[Kind] = set()
        """Kinds whose owners the garbage collector may not track: they are only found through their referrers."""
        for module, name, reader, kind in _KNOWN:
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, type):
                self._known.append((found, reader))
                if kind is not None and not found.__flags__ & _HAVE_GC:
                    self.untracked.add(kind)

    def sure(self, kind: type) -> Reader | None:
        """Returns the reader for a known type."""
        try:
            return self._sure[kind]
        except KeyError:
            found = next((reader for known, reader in self._known if issubclass(kind, known)), None)
            self._sure[kind] = found
            return found

    def likely(self, kind: type) -> Reader | None:
        """Returns the reader for a Python class with an attribute that usually holds a descriptor."""
        try:
            return self._likely[kind]
        except KeyError:
            self._likely[kind] = found = _find_likely(kind)
            return found


def _find_likely(kind: type) -> Reader | None:
    if issubclass(kind, type) or not kind.__flags__ & _HEAP_TYPE or str(kind.__module__).startswith(_NOT_OWNERS):
        return None
    names = [name for name in ATTRIBUTES if _is_plain(kind, name)]
    return (lambda obj: _numbers(obj, names)) if names else None


def _is_plain(kind: type, name: str) -> bool:
    """Returns whether an instance may have the attribute and reading it runs no code."""
    for base in kind.__mro__:
        found = vars(base).get(name)
        if name in vars(base):
            return isinstance(found, MemberDescriptorType) or found is None or type(found) is int
    return bool(kind.__dictoffset__)


def _numbers(obj: object, names: list[str]) -> tuple[int, ...]:
    return tuple(value for name in names if _is_number(value := _attribute(obj, name)))


def _attribute(obj: object, name: str) -> Any:
    try:
        return object.__getattribute__(obj, name)
    except AttributeError:
        return None


def _is_number(value: object) -> bool:
    return type(value) is int and value >= 0
