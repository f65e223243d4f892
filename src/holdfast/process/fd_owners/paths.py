"""Describes the path from a root to the object that owns a descriptor, and groups similar paths.

Roots are variables of modules and local variables of running functions, which the garbage collector does not report.
Those of the user's code come before those of libraries. No code of the objects is called: attributes are read from
instance dictionaries and C members only.
"""

from __future__ import annotations

import gc
import inspect
import linecache
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
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
    ModuleType,
    TracebackType,
)
from typing import Any, TypeGuard, TypeVar

# Before Python 3.13 `f_locals` is a copy that the frame keeps.
_COPIES = sys.version_info < (3, 13)
_OWN = ("holdfast.process.fd_owners", "holdfast.process.filelocks", "holdfast.process.leakcheck", "holdfast.pytest")


def running_frames() -> list[tuple[FrameType, str]]:
    """Returns the frames of all threads except those of this package, with the thread's name; "" is the main thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    tops = sys._current_frames()
    # This function's own frame must not be in its own variables: that would be a cycle, which keeps the variables of
    # its callers alive until the next garbage collection.
    tops[threading.get_ident()] = sys._getframe(1)
    found = []
    for ident, top in tops.items():
        name = "" if ident == main else names.get(ident, str(ident))
        frame: FrameType | None = top
        while frame is not None:
            if not str(frame.f_globals.get("__name__", "")).startswith(_OWN):
                found.append((frame, name))
            frame = frame.f_back
    return found


def locals_of(frame: FrameType) -> dict[str, object]:
    """Copies the local variables. Empty for the body of a module or class, whose variables are reached otherwise."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    seen = frame.f_locals
    found = dict(seen)
    # The frame's copy would keep alive what the function drops later. If nothing else refers to it, it is emptied
    # again: the next access to `f_locals` refills it.
    if _COPIES and sys.getrefcount(seen) <= 3:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            seen.pop(name, None)
    return found


def place_of(frame: FrameType) -> str:
    """Formats `worker.py:88 main()`."""
    return f"{short_file(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}()"


def short_file(path: str) -> str:
    """Returns the file's name, with its folder for `__init__.py` and `__main__.py`."""
    folder, name = os.path.split(path)
    return f"{os.path.basename(folder)}/{name}" if name in ("__init__.py", "__main__.py") else name


ARROW = " → "
# Paths that differ only in the element of a container are grouped.
_SUBSCRIPT = re.compile(r"\[[^\[\]]*\]")


class HeldBy(StrEnum):
    """What keeps a descriptor open."""

    MODULE = "module"  # a variable of a module
    FRAME = "frame"  # a local variable of a running function
    OUTSIDE = "outside"  # a reference that Python does not expose
    CYCLE = "cycle"  # only a reference cycle
    NOBODY = "nobody"  # no Python object owns it
    UNKNOWN = "unknown"  # an object owns it; what holds that object was not found within the search limits


ROOTS = {
    HeldBy.OUTSIDE: "a running statement, or C code",
    HeldBy.CYCLE: "only a reference cycle: gc.collect() frees it",
    HeldBy.NOBODY: "no Python object owns it: opened by C code or as a bare number, or its owner is lost",
    HeldBy.UNKNOWN: "not found within the search limits",
}
TORCH_STORAGE = (
    "no Python object leads to it: the shared storage of a torch tensor, open as long as a tensor of a worker's "
    "batch is kept; clone() the tensors that you keep"
)


@dataclass(frozen=True, slots=True)
class OwnerPath:
    """The path to the owner of a descriptor. `str()` formats it:

    worker.py:31 module variable 'keep'[3] → _MultiProcessingDataLoaderIter._index_queues[0] → Queue._reader
    → Connection(fd 17)
    """

    __module__ = "holdfast"

    fd: int
    held: HeldBy
    root: str
    steps: tuple[str, ...] = ()
    owner: str = ""  # the type of the object that owns it; "" if none does

    def __str__(self) -> str:
        if not self.owner:
            return f"fd {self.fd}: {self.root}"
        return ARROW.join((self.root, *self.steps, f"{self.owner}(fd {self.fd})"))

    @property
    def shape(self) -> str:
        """Returns the path without numbers and keys: the same for everything that one line of a program leaks."""
        return _SUBSCRIPT.sub("[…]", ARROW.join(filter(None, (self.root, *self.steps, self.owner))))


@dataclass(frozen=True, slots=True)
class OwnerGroup:
    """Descriptors that are held in the same way. `count` is an estimate if `exact` is False."""

    __module__ = "holdfast"

    shape: str
    held: HeldBy
    count: int
    example: OwnerPath
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.shape}  [{'' if self.exact else 'about '}{self.count:,} ×]"


def group_paths(paths: Iterable[OwnerPath], asked: int | None = None) -> list[OwnerGroup]:
    """Groups paths by shape, the largest first. `asked`: how many descriptors the sampled ones represent."""
    shapes: dict[str, list[OwnerPath]] = {}
    scanned: set[int] = set()
    for path in paths:
        # A descriptor with two owners counts once, for its first path.
        if path.fd not in scanned:
            scanned.add(path.fd)
            shapes.setdefault(path.shape, []).append(path)
    scale = 1.0 if asked is None or not scanned else asked / len(scanned)
    groups = [
        OwnerGroup(shape, members[0].held, round(len(members) * scale), members[0], scale == 1.0)
        for shape, members in shapes.items()
    ]
    return sorted(groups, key=lambda group: -group.count)


_LIBRARY = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_dict_of_module = vars(ModuleType)["__dict__"].__get__


@dataclass(frozen=True, slots=True)
class Root:
    """The beginning of a path. `module` is the namespace of a module."""

    held: HeldBy
    text: str
    module: dict[str, Any] | None = None

    def of_variable(self, name: str) -> str:
        """Formats `worker.py:31 module variable 'keep'`."""
        file = (self.module or {}).get("__file__")
        if not isinstance(file, str):
            return f"{self.text} module variable '{name}'"
        line = line_of_variable(file, name)
        return f"{short_file(file)}{f':{line}' if line else ''} module variable '{name}'"


@dataclass(frozen=True, slots=True)
class Start:
    """An object that a root holds. `mine`: it belongs to the user's code, which is searched before libraries."""

    root: Root
    obj: object
    mine: bool


OUTSIDE = Root(HeldBy.OUTSIDE, ROOTS[HeldBy.OUTSIDE])


def module_starts() -> list[Start]:
    """Returns the namespace of every loaded module."""
    found = []
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), ModuleType):
            space = _dict_of_module(module)
            file = space.get("__file__")
            own = name == "holdfast" or name.startswith("holdfast.")
            mine = name == "__main__" or (isinstance(file, str) and not own and is_mine(file))
            found.append(Start(Root(HeldBy.MODULE, name, space), space, mine))
    return found


def frame_starts() -> list[Start]:
    """Returns the local variables of every running function."""
    found = []
    for frame, thread in running_frames():
        mine = is_mine(frame.f_code.co_filename)
        for name, obj in locals_of(frame).items():
            found.append(Start(_of_local(frame, name, thread), obj, mine))
    return found


def _of_local(frame: FrameType, name: str, thread: str) -> Root:
    where = f" in thread {thread}" if thread else ""
    return Root(HeldBy.FRAME, f"{place_of(frame)} local '{name}'{where}")


def is_mine(file: str) -> bool:
    return not any(part in file for part in _PACKAGES) and not file.startswith(_LIBRARY)


def line_of_variable(file: str, name: str) -> int | None:
    """Returns the first line that seems to assign a module's variable; None if there is none."""
    word = re.escape(name)
    given = re.compile(
        rf"(?:with .* as |for )?{word}\b\s*(?::[^=]*)?(?:=(?!=)|,|:$| in )|(?:async )?(?:def|class) {word}\b"
    )
    try:
        lines = linecache.getlines(file)
    except (OSError, ValueError, MemoryError):
        return None
    return next((number for number, line in enumerate(lines, 1) if given.match(line)), None)


T = TypeVar("T")

_KEY_LENGTH = 40
_MANY = 64
_FRAME_OF = {GeneratorType: "gi_frame", CoroutineType: "cr_frame", AsyncGeneratorType: "ag_frame"}
_FILES = ("FileIO", "BufferedReader", "BufferedWriter", "BufferedRandom", "BufferedRWPair", "TextIOWrapper")
_dict_of_type = vars(type)["__dict__"].__get__
# The types of these are left out: the name before them and the brackets after them are enough.
_PLAIN = (dict, list, tuple, set, frozenset, deque)
_SILENT = (*_PLAIN, CellType, TracebackType)


def is_a(obj: object, kind: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Checks the type like isinstance, but without reading `__class__`, which may be a property."""
    return issubclass(type(obj), kind)


class Labels:
    """Formats paths. Caches the positions of elements in large containers, for paths through the same ones."""

    def __init__(self) -> None:
        self._places: dict[int, dict[int, str]] = {}

    def words(self, root: Root, objs: list[object]) -> tuple[str, tuple[str, ...], str]:
        """Returns labels for the root, the steps and the owner, which is the last object."""
        objs = _without_inner_files(objs)
        current, at = root.text, 0
        if root.held is HeldBy.MODULE:
            name = _key(objs[0], objs[1], {}) if len(objs) > 1 else None
            current, at = root.of_variable(str(name)), 1
        labels = []
        while at < len(objs) - 1:
            name = name_of(objs[at])
            edge, taken = self._edge(objs, at)
            if name:
                labels.append(current)
                current = name
            current += edge
            at += taken
        labels.append(current)
        return labels[0], tuple(labels[1:]), name_of(objs[-1]) or type(objs[-1]).__name__

    def _edge(self, objs: list[object], at: int) -> tuple[str, int]:
        """Returns the label of the reference to the next object that matters, and how many objects on that is."""
        obj, child = objs[at], objs[at + 1]
        after = objs[at + 2] if at + 2 < len(objs) else None
        if after is not None and is_a(child, dict) and _is_namespace(obj, child):
            return f".{_key(child, after, {})}", 2
        if is_a(obj, FunctionType) and child is obj.__closure__ and is_a(after, CellType):
            # Not by index(): cells compare by their contents.
            which = _key(child, after, {})
            return f" closure '{obj.__code__.co_freevars[which]}'", 2
        if is_a(obj, local) and is_a(child, dict) and is_a(after, dict):
            inside = objs[at + 3] if at + 3 < len(objs) else None
            return f".{_key(after, inside, {})}", 3
        return self._simple_edge(obj, child), 1

    def _simple_edge(self, obj: object, child: object) -> str:
        if is_a(obj, (dict, list, tuple, deque)):
            return self._element(obj, child)
        if is_a(obj, (set, frozenset)):
            return "{…}"
        if is_a(obj, BaseException) and is_a(child, TracebackType):
            return " traceback"
        if is_a(obj, FrameType):
            return _local(obj, child)
        if type(obj) in _FRAME_OF:
            return _local(getattr(obj, _FRAME_OF[type(obj)]), child)
        if is_a(obj, (*_SILENT, MethodType, BuiltinMethodType)):
            return ""
        name = _attribute(obj, child)
        return f".{name}" if name else ""

    def _element(self, obj: Any, child: object) -> str:
        fields = getattr(type(obj), "_fields", None) if is_a(obj, tuple) else None
        if len(obj) <= _MANY:
            places: dict[int, str] = {}
        else:
            places = self._places.setdefault(id(obj), {})
        place = _key(obj, child, places)
        if isinstance(fields, tuple) and isinstance(place, int) and place < len(fields):
            return f".{fields[place]}"
        return f"[{place if isinstance(place, int) else _short(place)}]"


def name_of(obj: object) -> str:
    """Returns the label of an object; "" if it is left out of the path."""
    if type(obj) in _SILENT or type(obj).__name__ in ("defaultdict", "OrderedDict"):
        return ""
    if is_a(obj, FrameType):
        return place_of(obj)
    if is_a(obj, FunctionType):
        return f"function {obj.__name__}"
    if is_a(obj, MethodType):
        return f"method {obj.__func__.__name__}" if isinstance(obj.__func__, FunctionType) else "method"
    if type(obj) in _FRAME_OF:
        return f"{type(obj).__name__.replace('_', ' ')} {vars(type(obj))['__name__'].__get__(obj)}()"
    if is_a(obj, type):
        return f"class {obj.__name__}"
    if is_a(obj, BuiltinMethodType):
        return f"method {obj.__name__}"
    return "thread-local" if is_a(obj, local) else type(obj).__name__


def _without_inner_files(objs: list[object]) -> list[object]:
    """Shows a text file, its buffer and the raw file that owns the descriptor as one file."""
    end = len(objs)
    while end > 1 and all(type(one).__name__ in _FILES for one in objs[end - 2 : end]):
        end -= 1
    return objs[:end]


def _is_namespace(obj: object, child: dict[Any, Any]) -> bool:
    if is_a(obj, type):
        return any(one is child for one in gc.get_referents(_dict_of_type(obj)))
    return dict_of(obj) is child


def dict_of(obj: object) -> dict[str, Any] | None:
    """Returns an instance's own dictionary without calling a property `__dict__`."""
    for base in type(obj).__mro__:
        found = _dict_of_type(base).get("__dict__")
        if found is not None:
            space = found.__get__(obj) if isinstance(found, GetSetDescriptorType) else None
            return space if type(space) is dict else None
    return None


def _attribute(obj: object, child: object) -> str:
    for name, value in (dict_of(obj) or {}).items():
        if value is child:
            return name
    for base in type(obj).__mro__:
        for name, member in _dict_of_type(base).items():
            if isinstance(member, MemberDescriptorType):
                try:
                    if member.__get__(obj) is child:
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
    """Returns the key or index of an object in a container; None if it is gone, or is itself a key."""
    if not places:
        items = dict.items(container) if is_a(container, dict) else enumerate(container)
        # In reverse, so that the first of several positions of an object is kept.
        places.update((id(value), key) for key, value in reversed(list(items)))
    return places.get(id(child))


def _short(key: object) -> str:
    if type(key) in (str, int, bytes, float, bool):
        text = repr(key)
        return text if len(text) <= _KEY_LENGTH else text[: _KEY_LENGTH - 1] + "…"
    return "…"
