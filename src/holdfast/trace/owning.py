"""Which descriptors an object owns, read without running any code of the object's author.

Known types are asked by their own C methods. Instances of other Python classes are looked at for attributes by which
descriptors usually go; a property of such a name is never called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any

from ..proc.descriptors import Kind

Reader = Callable[[Any], tuple[int, ...]]

ATTRIBUTES = ("_fd", "fd", "_handle", "_fileno", "_pidfd", "_inotify_fd", "_forkserver_alive_fd")
_HEAP_TYPE = 1 << 9
_HAVE_GC = 1 << 14
# They carry numbers of descriptors and own none.
_ONLY_TELL = ("holdfast.proc.", "holdfast.trace.", "holdfast.guard.")


def _socket(thing: Any) -> tuple[int, ...]:
    return (sys.modules["_socket"].socket.fileno(thing),)


def _file(thing: Any) -> tuple[int, ...]:
    kind = sys.modules["_io"].FileIO
    try:
        fd = kind.fileno(thing)
    except ValueError:  # closed
        return ()
    # Python's own standard streams leave theirs open; whoever holds them is still what a person looks for.
    return (fd,) if fd <= 2 or kind.closefd.__get__(thing) else ()


def _epoll(thing: Any) -> tuple[int, ...]:
    try:
        return (sys.modules["select"].epoll.fileno(thing),)
    except ValueError:
        return ()


def _popen(thing: Any) -> tuple[int, ...]:
    """Of multiprocessing: the ends of the pipes to its process are with its finalizer."""
    finalizer = _attribute(thing, "finalizer")
    args = _attribute(finalizer, "_args")
    numbers = args if isinstance(args, tuple) else (_attribute(thing, "sentinel"),)
    return tuple(number for number in numbers if _is_number(number))


def read_map(thing: Any) -> tuple[int, ...]:
    """A mmap object has a descriptor and tells nobody: see `mapped`."""
    return ()


def _connection(thing: Any) -> tuple[int, ...]:
    return _numbers(thing, ["_handle"])


_KNOWN: tuple[tuple[str, str, Reader, Kind | None], ...] = (
    ("_socket", "socket", _socket, Kind.SOCKET),
    ("_io", "FileIO", _file, None),
    ("select", "epoll", _epoll, Kind.EVENTPOLL),
    ("mmap", "mmap", read_map, None),
    ("multiprocessing.connection", "_ConnectionBase", _connection, None),
    ("multiprocessing.popen_fork", "Popen", _popen, None),
)


class Readers:
    """A reader for each type, found once. Kept for one search only: it would keep types alive."""

    def __init__(self) -> None:
        self._known: list[tuple[type, Reader]] = []
        self._sure: dict[type, Reader | None] = {}
        self._likely: dict[type, Reader | None] = {}
        self.untracked: set[Kind] = set()
        """Kinds whose owners the garbage collector may not know: they are only found through what holds them."""
        for module, name, reader, kind in _KNOWN:
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, type):
                self._known.append((found, reader))
                if kind is not None and not found.__flags__ & _HAVE_GC:
                    self.untracked.add(kind)

    def sure(self, kind: type) -> Reader | None:
        """For the known types."""
        try:
            return self._sure[kind]
        except KeyError:
            found = next((reader for known, reader in self._known if issubclass(kind, known)), None)
            self._sure[kind] = found
            return found

    def likely(self, kind: type) -> Reader | None:
        """For Python classes: by the names of attributes."""
        try:
            return self._likely[kind]
        except KeyError:
            self._likely[kind] = found = _find_likely(kind)
            return found


def _find_likely(kind: type) -> Reader | None:
    if issubclass(kind, type) or not kind.__flags__ & _HEAP_TYPE or str(kind.__module__).startswith(_ONLY_TELL):
        return None
    names = [name for name in ATTRIBUTES if _is_plain(kind, name)]
    return (lambda thing: _numbers(thing, names)) if names else None


def _is_plain(kind: type, name: str) -> bool:
    """Whether an instance may have the attribute, and reading it runs no code."""
    for base in kind.__mro__:
        found = vars(base).get(name)
        if name in vars(base):
            return isinstance(found, MemberDescriptorType) or found is None or type(found) is int
    return bool(kind.__dictoffset__)


def _numbers(thing: object, names: list[str]) -> tuple[int, ...]:
    return tuple(value for name in names if _is_number(value := _attribute(thing, name)))


def _attribute(thing: object, name: str) -> Any:
    try:
        return object.__getattribute__(thing, name)
    except AttributeError:
        return None


def _is_number(value: object) -> bool:
    return type(value) is int and value >= 0
