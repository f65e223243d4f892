"""Local variables of running functions, which the garbage collector does not show."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from types import FrameType

# Before 3.13 `f_locals` is a copy that the frame keeps.
_COPIES = sys.version_info < (3, 13)
_OWN = ("holdfast.trace", "holdfast.guard", "holdfast.pytest")


def running_frames() -> list[tuple[FrameType, str]]:
    """Every frame of every thread but those of this package, with the name of its thread; "" is the main one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    tops = sys._current_frames()
    # This function's own frame must not be in its own variables: that is a cycle, which would keep alive all that the
    # functions below have in theirs, until the garbage collector comes.
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
    """A copy. Of a module's or class's body it is empty: their variables are reached elsewhere."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    seen = frame.f_locals
    found = dict(seen)
    # The frame's copy would keep alive what the function drops later. If nobody else has it, it is emptied again:
    # whoever asks for it next gets it filled anew.
    if _COPIES and sys.getrefcount(seen) <= 3:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            seen.pop(name, None)
    return found


def place_of(frame: FrameType) -> str:
    """`worker.py:88 main()`."""
    return f"{short_file(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}()"


def short_file(path: str) -> str:
    """The file's name; with its folder where the name alone says nothing."""
    folder, name = os.path.split(path)
    return f"{os.path.basename(folder)}/{name}" if name in ("__init__.py", "__main__.py") else name
