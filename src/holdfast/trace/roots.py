"""Where searches begin: variables of modules and of running functions, a person's own before those of libraries."""

from __future__ import annotations

import linecache
import os
import re
import sys
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from .frames import locals_of, place_of, running_frames, short_file
from .paths import ROOTS, Held

_LIBRARY = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_dict_of_module = vars(ModuleType)["__dict__"].__get__


@dataclass(frozen=True, slots=True)
class Root:
    """What a path begins with. `module` is the module's own namespace."""

    held: Held
    text: str
    module: dict[str, Any] | None = None

    def of_variable(self, name: str) -> str:
        """`worker.py:31 module variable 'keep'`."""
        file = (self.module or {}).get("__file__")
        if not isinstance(file, str):
            return f"{self.text} module variable '{name}'"
        line = line_of_variable(file, name)
        return f"{short_file(file)}{f':{line}' if line else ''} module variable '{name}'"


@dataclass(frozen=True, slots=True)
class Start:
    """Something a root holds. `mine`: a person's own code, to be searched before libraries."""

    root: Root
    thing: object
    mine: bool


OUTSIDE = Root(Held.OUTSIDE, ROOTS[Held.OUTSIDE])


def module_starts() -> list[Start]:
    """The namespace of every loaded module."""
    found = []
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), ModuleType):
            space = _dict_of_module(module)
            file = space.get("__file__")
            own = name == "holdfast" or name.startswith("holdfast.")
            mine = name == "__main__" or (isinstance(file, str) and not own and is_mine(file))
            found.append(Start(Root(Held.MODULE, name, space), space, mine))
    return found


def frame_starts() -> list[Start]:
    """Local variables of every running function."""
    found = []
    for frame, thread in running_frames():
        mine = is_mine(frame.f_code.co_filename)
        for name, thing in locals_of(frame).items():
            found.append(Start(_of_local(frame, name, thread), thing, mine))
    return found


def _of_local(frame: FrameType, name: str, thread: str) -> Root:
    where = f" in thread {thread}" if thread else ""
    return Root(Held.FRAME, f"{place_of(frame)} local '{name}'{where}")


def is_mine(file: str) -> bool:
    return not any(part in file for part in _PACKAGES) and not file.startswith(_LIBRARY)


def line_of_variable(file: str, name: str) -> int | None:
    """The first line that gives a module's variable its value, by the look of it; None if there is none."""
    word = re.escape(name)
    given = re.compile(
        rf"(?:with .* as |for )?{word}\b\s*(?::[^=]*)?(?:=(?!=)|,|:$| in )|(?:async )?(?:def|class) {word}\b"
    )
    try:
        lines = linecache.getlines(file)
    except (OSError, ValueError, MemoryError):
        return None
    return next((number for number, line in enumerate(lines, 1) if given.match(line)), None)
