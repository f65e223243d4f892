"""Iterators that nobody can ask for a batch any more, but that nothing has freed yet.

Two kinds of them pile up in a training loop that goes wrong again and again: those in a reference cycle, which the
collector frees when it runs, and those in a local variable of a function that ended by an exception, when the exception
is kept: its traceback keeps the function's frame, and the frame its variables. Each has files, threads or processes.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from .dropped import finish_dropped

_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OWN_REFERENCES = 3  # the caller's variable, the one here, and the argument of getrefcount


class Opened(Protocol):
    """What an iterator has open, apart from it: `iterator()` is it, or None."""

    closed: bool
    pid: int
    iterator: Callable[[], Any]

    def close(self) -> None: ...


_open: weakref.WeakSet[Opened] = weakref.WeakSet()
_in_use: weakref.WeakSet[Opened] = weakref.WeakSet()  # open ones that a look has left


def note_opened(opened: Opened) -> None:
    _open.add(opened)


def end_strays() -> None:
    """Before another is opened. The collector is asked only if some are open that no look has left."""
    if any(_is_open(one) and one not in _in_use for one in list(_open)):
        gc.collect()
        finish_dropped()
        for one in list(_open):
            iterator = one.iterator()
            if iterator is not None and _is_open(one) and is_lost(iterator):
                one.close()
        _in_use.update(_open)


def close_all() -> None:
    for one in list(_open):
        one.close()


def _is_open(one: Opened) -> bool:
    return not one.closed and one.pid == os.getpid()


def is_lost(thing: Any) -> bool:
    """Whether all that refers to it are variables of functions that have ended. The caller has it in one variable.

    Functions at work do not show among the referrers, only in the count. No frame may be held in a variable here: it
    would keep itself.
    """
    frames = 0
    for referrer in gc.get_referrers(thing):
        if type(referrer) is not FrameType or referrer.f_code.co_flags & _RESUMABLE:
            return False
        frames += 1
    return frames > 0 and sys.getrefcount(thing) == frames + _OWN_REFERENCES
