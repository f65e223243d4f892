"""The words of a path: what each thing on it is called, and by which name it holds the next.

Nothing here calls code of the things' authors: attributes are read from instance dictionaries and C members only.
"""

from __future__ import annotations

import gc
from collections import deque
from threading import local
from types import (
    AsyncGeneratorType,
    BuiltinMethodType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    TracebackType,
)
from typing import Any, TypeGuard, TypeVar

from .frames import locals_of, place_of
from .paths import Held
from .roots import Root

T = TypeVar("T")

_KEY_LENGTH = 40
_MANY = 64
_FRAME_OF = {GeneratorType: "gi_frame", CoroutineType: "cr_frame", AsyncGeneratorType: "ag_frame"}
_FILES = ("FileIO", "BufferedReader", "BufferedWriter", "BufferedRandom", "BufferedRWPair", "TextIOWrapper")
_dict_of_type = vars(type)["__dict__"].__get__
# Their type says nothing that the name before them and the brackets after them do not.
_PLAIN = (dict, list, tuple, set, frozenset, deque)
_SILENT = (*_PLAIN, CellType, TracebackType)


def is_a(thing: object, kind: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Unlike isinstance it never asks the thing for its `__class__`, which may be somebody's property."""
    return issubclass(type(thing), kind)


class Labels:
    """Keeps the places of elements in large containers, for paths that go through the same ones."""

    def __init__(self) -> None:
        self._places: dict[int, dict[int, str]] = {}

    def words(self, root: Root, things: list[object]) -> tuple[str, tuple[str, ...], str]:
        """The root's words, the steps', and the owner's name. The last of the things is the owner."""
        things = _without_inner_files(things)
        current, at = root.text, 0
        if root.held is Held.MODULE:
            name = _key(things[0], things[1], {}) if len(things) > 1 else None
            current, at = root.of_variable(str(name)), 1
        said = []
        while at < len(things) - 1:
            name = name_of(things[at])
            edge, taken = self._edge(things, at)
            if name:
                said.append(current)
                current = name
            current += edge
            at += taken
        said.append(current)
        return said[0], tuple(said[1:]), name_of(things[-1]) or type(things[-1]).__name__

    def _edge(self, things: list[object], at: int) -> tuple[str, int]:
        """How a thing holds the next one that matters, and how many things on that is."""
        thing, child = things[at], things[at + 1]
        after = things[at + 2] if at + 2 < len(things) else None
        if after is not None and is_a(child, dict) and _is_namespace(thing, child):
            return f".{_key(child, after, {})}", 2
        if is_a(thing, FunctionType) and child is thing.__closure__ and is_a(after, CellType):
            # Not by index(): cells are compared by what is in them.
            which = _key(child, after, {})
            return f" closure '{thing.__code__.co_freevars[which]}'", 2
        if is_a(thing, local) and is_a(child, dict) and is_a(after, dict):
            inside = things[at + 3] if at + 3 < len(things) else None
            return f".{_key(after, inside, {})}", 3
        return self._simple_edge(thing, child), 1

    def _simple_edge(self, thing: object, child: object) -> str:
        if is_a(thing, (dict, list, tuple, deque)):
            return self._element(thing, child)
        if is_a(thing, (set, frozenset)):
            return "{…}"
        if is_a(thing, BaseException) and is_a(child, TracebackType):
            return " traceback"
        if is_a(thing, FrameType):
            return _local(thing, child)
        if type(thing) in _FRAME_OF:
            return _local(getattr(thing, _FRAME_OF[type(thing)]), child)
        if is_a(thing, (*_SILENT, MethodType, BuiltinMethodType)):
            return ""
        name = _attribute(thing, child)
        return f".{name}" if name else ""

    def _element(self, thing: Any, child: object) -> str:
        fields = getattr(type(thing), "_fields", None) if is_a(thing, tuple) else None
        if len(thing) <= _MANY:
            places: dict[int, str] = {}
        else:
            places = self._places.setdefault(id(thing), {})
        place = _key(thing, child, places)
        if isinstance(fields, tuple) and isinstance(place, int) and place < len(fields):
            return f".{fields[place]}"
        return f"[{place if isinstance(place, int) else _short(place)}]"


def name_of(thing: object) -> str:
    """What a thing is called; "" for those that are only on the way."""
    if type(thing) in _SILENT or type(thing).__name__ in ("defaultdict", "OrderedDict"):
        return ""
    if is_a(thing, FrameType):
        return place_of(thing)
    if is_a(thing, FunctionType):
        return f"function {thing.__name__}"
    if is_a(thing, MethodType):
        return f"method {thing.__func__.__name__}" if isinstance(thing.__func__, FunctionType) else "method"
    if type(thing) in _FRAME_OF:
        return f"{type(thing).__name__.replace('_', ' ')} {vars(type(thing))['__name__'].__get__(thing)}()"
    if is_a(thing, type):
        return f"class {thing.__name__}"
    if is_a(thing, BuiltinMethodType):
        return f"method {thing.__name__}"
    return "thread-local" if is_a(thing, local) else type(thing).__name__


def _without_inner_files(things: list[object]) -> list[object]:
    """A text file holds a buffer, which holds the file that owns the descriptor: one file to anybody."""
    end = len(things)
    while end > 1 and all(type(one).__name__ in _FILES for one in things[end - 2 : end]):
        end -= 1
    return things[:end]


def _is_namespace(thing: object, child: dict[Any, Any]) -> bool:
    if is_a(thing, type):
        return any(one is child for one in gc.get_referents(_dict_of_type(thing)))
    return dict_of(thing) is child


def dict_of(thing: object) -> dict[str, Any] | None:
    """An instance's own dictionary, not by way of a property of that name."""
    for base in type(thing).__mro__:
        found = _dict_of_type(base).get("__dict__")
        if found is not None:
            space = found.__get__(thing) if isinstance(found, GetSetDescriptorType) else None
            return space if type(space) is dict else None
    return None


def _attribute(thing: object, child: object) -> str:
    for name, value in (dict_of(thing) or {}).items():
        if value is child:
            return name
    for base in type(thing).__mro__:
        for name, member in _dict_of_type(base).items():
            if isinstance(member, MemberDescriptorType):
                try:
                    if member.__get__(thing) is child:
                        return str(name)
                except AttributeError:  # a slot without a value
                    continue
    return ""


def _local(frame: FrameType | None, child: object) -> str:
    if frame is not None:
        for name, value in locals_of(frame).items():
            if value is child:
                return f" local '{name}'"
    return ""


def _key(container: Any, child: object, places: dict[int, Any]) -> Any:
    """The key or number by which a container has the thing; None if it is not there any more, or is a key itself."""
    if not places:
        items = dict.items(container) if is_a(container, dict) else enumerate(container)
        # The last one first: of several places of a thing the first one is kept.
        places.update((id(value), key) for key, value in reversed(list(items)))
    return places.get(id(child))


def _short(key: object) -> str:
    if type(key) in (str, int, bytes, float, bool):
        text = repr(key)
        return text if len(text) <= _KEY_LENGTH else text[: _KEY_LENGTH - 1] + "…"
    return "…"
