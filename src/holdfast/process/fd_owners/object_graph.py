"""Walks the graph of Python objects from roots to the objects that own some descriptors.

It walks forwards and not back from the owner: one walk serves any number of descriptors and finds objects that the
garbage collector does not track, and what it does not reach is verified to have no root. It is breadth first, so that
paths are short. User modules are walked to their end first, then running functions of the user, then libraries.

The walk is bounded: `MAX_OBJECTS` visited, `MAX_STEPS` from a root, and the given time.
"""

from __future__ import annotations

import gc
import mmap
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from types import (
    CodeType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, cast

from .fd_readers import Reader, Readers, read_map
from .paths import OUTSIDE, Root, Start, frame_starts, module_starts

MAX_OBJECTS = 3_000_000
MAX_STEPS = 200
MAX_ELEMENTS = 500_000  # of one list, tuple, set or dict

_LEAVES = frozenset(
    {int, float, complex, bool, str, bytes, bytearray, range, slice, type(None), type(...), type(NotImplemented)}
    | {CodeType, ModuleType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType}
)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_CHECK_EVERY = 4096
_NOTE_S = 1.0  # to find the owners themselves, however little time there is for what holds them


class ObjectWalk:
    """Finds the `owners` of the wanted descriptors; `path_to` returns how one of them is held."""

    def __init__(self, wanted: Collection[int], readers: Readers, within_s: float, clock: Callable[[], float]) -> None:
        self.owners: dict[int, tuple[object, tuple[int, ...]]] = {}  # by id
        self.maps: dict[int, mmap.mmap] = {}
        self.complete = False  # everything was visited
        self._wanted = frozenset(wanted)
        self._until_owned: frozenset[int] = frozenset()
        self._readers = readers
        self._clock = clock
        self._began = clock()
        self._deadline = self._began + within_s
        # The objects on the way are kept alive during the walk: the id of a freed one would be reused.
        self._from: dict[int, object] = {}
        self._types: list[tuple[object, object]] = []
        self.interrupted = False  # by one of the bounds: an owner may not have been found
        self._note_all(readers.sure)
        # An object that only has the number of a descriptor that another one owns does not count.
        self._wanted -= self.owned()
        if self._wanted:
            self._note_all(readers.likely)

    def _note_all(self, reader_of: Callable[[type], Reader | None]) -> None:
        objs = gc.get_objects()
        for at in range(0, len(objs), _CHECK_EVERY):
            if self._is_late(self._began + _NOTE_S):
                return
            for obj in objs[at : at + _CHECK_EVERY]:
                if reader := reader_of(type(obj)):
                    self._note(obj, reader)

    def _is_late(self, but_not_before: float = 0.0) -> bool:
        if self._clock() > max(self._deadline, but_not_before):
            self.interrupted = True
        return self.interrupted

    def _note(self, obj: object, reader: Reader) -> None:
        if reader is read_map:
            self.maps[id(obj)] = cast("mmap.mmap", obj)
            return
        fds = reader(obj)
        if fds and not self._wanted.isdisjoint(fds) and id(obj) not in self.owners:
            self.owners[id(obj)] = obj, tuple(fd for fd in fds if fd in self._wanted)

    def owned(self) -> set[int]:
        return {fd for _, fds in self.owners.values() for fd in fds}

    def add_owner(self, obj: object, fd: int) -> None:
        _, fds = self.owners.get(id(obj), (obj, ()))
        self.owners[id(obj)] = obj, (*fds, fd)

    def run(self, until_owned: Collection[int] = ()) -> None:
        """Walks until every owner is reached and each of `until_owned` has an owner, or everything was visited."""
        self._until_owned = frozenset(until_owned)
        for own in self._own():  # no path goes through the walk itself
            self._from[id(own)] = OUTSIDE
        modules, frames = module_starts(), frame_starts()
        for start in modules:  # marked at once: no path goes through another module's namespace
            self._from[id(start.obj)] = start.root
        theirs = [start for start in (*modules, *frames) if not start.mine]
        # Variables of modules come before local ones: they last.
        for starts in ([one for one in modules if one.mine], [one for one in frames if one.mine], theirs):
            if self._done() or self.interrupted:
                return
            self._walk(self._begin(starts))
        if not self._done() and not self.interrupted:
            self._walk(self._begin_types())
        if not self._done() and not self.interrupted:
            self._walk(self._begin_outside())
            self.complete = not self.interrupted

    def _done(self) -> bool:
        return all(one in self._from for one in self.owners) and self.owned().issuperset(self._until_owned)

    def _own(self) -> list[object]:
        return [self, vars(self), self.owners, self.maps, self._from, self._types]

    def _begin(self, starts: Iterable[Start]) -> list[object]:
        level = []
        for start in starts:
            is_space = start.root.module is not None
            if is_space or (type(start.obj) not in _LEAVES and id(start.obj) not in self._from):
                self._reach(start.obj, start.root)
                level.append(start.obj)
        return level

    def _begin_types(self) -> list[object]:
        """Starts at classes that no module holds, reached from an instance: a class is rarely what holds an owner."""
        level = []
        for kind, instance in self._types:
            if id(kind) not in self._from:
                self._reach(kind, instance)
                level.append(kind)
        self._types.clear()
        return level

    def _begin_outside(self) -> list[object]:
        """Starts at unreached objects with more references than the other unreached objects account for."""
        rest = self.unreached()
        inner: dict[int, int] = {}
        for at, obj in enumerate(rest):
            if at % _CHECK_EVERY == 0 and self._is_late():
                return []
            for child in _referents(obj):
                inner[id(child)] = inner.get(id(child), 0) + 1
        ours = _count_references([object()])[0]
        level: list[object] = []
        for obj, count in zip(rest, _count_references(rest), strict=True):
            noted = (id(obj) in self.owners) + (id(obj) in self.maps)
            if count > ours + noted + inner.get(id(obj), 0):
                level.append(obj)
        for obj in level:
            self._reach(obj, OUTSIDE)
        return level

    def unreached(self) -> list[object]:
        own = {id(one) for one in (*self._own(), *self.owners.values())}
        return [obj for obj in gc.get_objects() if id(obj) not in self._from and id(obj) not in own]

    def _reach(self, obj: object, by: object) -> None:
        self._from[id(obj)] = by
        if reader := self._readers.sure(type(obj)):
            self._note(obj, reader)

    def _walk(self, level: list[object]) -> None:
        for _ in range(MAX_STEPS):
            level = list(self._spread(level))
            if not level or self.interrupted or self._done():
                return
        self.interrupted = True

    def _spread(self, level: list[object]) -> Iterator[object]:
        """Yields the referents of these objects that were not reached before."""
        reached, reader_of = self._from, self._readers.sure
        for at, obj in enumerate(level):
            if at % _CHECK_EVERY == 0 and (len(reached) > MAX_OBJECTS or self._is_late()):
                self.interrupted = True
                return
            own_type = type(obj)
            for child in _referents(obj):
                if type(child) in _LEAVES or id(child) in reached:
                    continue
                if child is own_type:
                    self._types.append((child, obj))
                    continue
                reached[id(child)] = obj
                if not gc.is_tracked(child) and (reader := reader_of(type(child))):  # tracked ones were read at first
                    self._note(child, reader)
                yield child

    def path_to(self, obj: object) -> tuple[Root, list[object]] | None:
        """Returns the root and the objects from it to this one; None if it was not reached."""
        path: list[object] = []
        while type(obj) is not Root:
            path.append(obj)
            if id(obj) not in self._from or len(path) > 2 * MAX_STEPS:
                return None
            obj = self._from[id(obj)]
        return obj, path[::-1]


def _referents(obj: Any) -> Iterable[object]:
    if type(obj) in _CONTAINERS and len(obj) > MAX_ELEMENTS:
        return list(islice(obj.values() if type(obj) is dict else obj, MAX_ELEMENTS))
    return gc.get_referents(obj)


def _count_references(objs: list[object]) -> list[int]:
    return [sys.getrefcount(obj) for obj in objs]


class Cycles:
    """Finds the referrers among objects that no root holds."""

    def __init__(self, objs: Iterable[object]) -> None:
        members = {id(one): one for one in objs}
        self._holders: dict[int, object] = {}
        for one in members.values():
            for child in gc.get_referents(one):
                if id(child) in members and child is not one:
                    self._holders.setdefault(id(child), one)

    def path_to(self, obj: object, maximum: int = 8) -> list[object]:
        """Returns up to `maximum` objects: a chain of referrers that ends with this one."""
        path = [obj]
        while len(path) < maximum and (holder := self._holders.get(id(path[0]))) is not None:
            if any(holder is one for one in path):
                break
            path.insert(0, holder)
        return path
