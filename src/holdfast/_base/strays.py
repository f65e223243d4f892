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
import time
import weakref
from collections.abc import Callable
from itertools import repeat
from operator import call
from types import FrameType
from typing import Any, Protocol

from .dropped import finish_dropped

_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_MANY = 4
_REST = 20  # times as long as a look took


class Opened(Protocol):
    """What an iterator has open, apart from it. `iterator()` is it, to be looked for in the tracebacks of errors; None:
    it is gone, or not to be closed because of what is found there."""

    closed: bool
    pid: int
    iterator: Callable[[], Any]

    def close(self) -> None: ...


# By id, with whether a look has left it. A WeakSet cannot be gone through while another thread adds to it.
_open: dict[int, tuple[weakref.ref[Opened], bool]] = {}
_next_look = 0.0


def note_opened(opened: Opened) -> None:
    number = id(opened)
    _open[number] = weakref.ref(opened, lambda _: _open.pop(number, None)), False


def end_strays(few: int = 0) -> None:
    """Before another is opened. The collector, which takes long where there are many objects, is asked only if some are
    open that no look has left: more than a few; or many more, where the last look was a moment ago."""
    global _next_look
    new = sum(_is_open(way()) and not left for way, left in _open.copy().values())
    if new <= few or (few and new <= _MANY * few and time.monotonic() < _next_look):
        return
    began = time.monotonic()
    gc.collect()
    finish_dropped()
    for number, (way, _) in _open.copy().items():
        opened = way()
        if opened is None:
            continue
        iterator = opened.iterator()
        if iterator is not None and _is_open(opened) and is_lost(iterator):
            opened.close()
        _open[number] = way, True
    _next_look = time.monotonic() + (time.monotonic() - began) * _REST


def all_opened() -> list[Opened]:
    return [opened for way, _ in _open.copy().values() if (opened := way()) is not None]


def _is_open(opened: Opened | None) -> bool:
    return opened is not None and not opened.closed and opened.pid == os.getpid()


def is_lost(thing: Any) -> bool:
    """Whether all that refers to it are variables of functions that have ended. The caller has it in one variable.

    Functions at work do not show among the referrers, only in the count.
    """
    found, count = _look_at(thing)
    frames = [one for one in found if type(one) is not repeat]
    if any(type(one) is not FrameType or one.f_code.co_flags & _RESUMABLE for one in frames):
        return False
    return bool(frames) and count == len(frames) + _OWN_REFERENCES


def _look_at(thing: Any) -> tuple[list[Any], int]:
    """Who refers to it, and how often. Nothing of Python runs between the two, so no other thread: it might let go of
    the thing in some frames and begin to use it in others, as many."""
    looks: tuple[Callable[[Any], Any], ...] = (gc.get_referrers, sys.getrefcount)
    found, count = map(call, looks, repeat(thing))
    return found, count


def _own_references(thing: Any) -> int:
    return _look_at(thing)[1]


_PROBE: Any = type("_Probe", (), {})()
_OWN_REFERENCES = _own_references(_PROBE)  # of something in one variable: what looking itself adds
