"""Closing what nobody refers to any more, when closing has to wait for threads, processes or locks.

The garbage collector runs in whatever thread makes an object just then, in the middle of whatever it does: perhaps in a
thread of the very thing that is dropped, perhaps under a lock that closing needs. Waiting there is waiting for oneself,
and while one collection waits there is never another. So what the collector finds is closed by a thread that has
nothing else to do; what a program drops itself is closed at once. A collection in a thread of the user's waits for that
a little, so that nothing is left after gc.collect(); not for long, since it may have the lock.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat
from operator import call
from types import FrameType
from typing import Any, Protocol

Close = Callable[[], object]

THREADS = "holdfast-"  # how the names of our own threads begin: none of them may wait for itself

_left: queue.SimpleQueue[Close] = queue.SimpleQueue()  # its put() may come in the middle of its put()
_closing_in = 0  # the process that has a thread at it
_thread: threading.Thread | None = None
_waited_for: threading.Thread | None = None  # in vain, so that the next to be found is not waited for as well
_COLLECTOR_S = 2.0
_FINISH_S = 10.0


def close_when_collected(owner: object, close: Close) -> weakref.finalize[[Close], object]:
    """Calls `close`, which must not refer to the owner, when that is gone, and at the latest as Python ends."""
    return weakref.finalize(owner, close_finalized, close)


def close_finalized(close: Close) -> None:
    """For finalizers: now, where that is safe, else soon."""
    global _waited_for
    if sys.is_finalizing():  # no thread runs any more but this one
        close()
        return
    here = threading.current_thread()
    is_ours = here.name.startswith(THREADS)
    if not is_ours and not _is_collecting():
        close()
        return
    _left.put(close)
    _start()
    # A daemon may be a queue's thread, which closing joins.
    if not is_ours and not here.daemon and _waited_for is not _thread:
        _waited_for = None if finish_finalizers(_COLLECTOR_S) else _thread


def finish_finalizers(wait_s: float = _FINISH_S) -> bool:
    """Waits for what is being closed, for a while. Whether all is."""
    until = time.monotonic() + wait_s
    while _closing_in == os.getpid() and (thread := _thread) is not threading.current_thread():
        left_s = until - time.monotonic()
        if left_s <= 0:
            return False
        if thread is None or not thread.is_alive():  # another one is about to be started
            time.sleep(0.001)
        else:
            thread.join(left_s)
    return True


def _is_collecting() -> bool:
    """Whether a collection is under way: then to ask for another one does nothing."""
    before = _collections()
    gc.collect(0)
    return _collections() == before


def _collections() -> int:
    return int(gc.get_stats()[0]["collections"])


def _start() -> None:
    """No lock: the collector may come in the middle of this, too, and then two threads share the work."""
    global _closing_in, _thread
    if _closing_in != os.getpid():
        _closing_in = os.getpid()
        try:
            _thread = threading.Thread(target=_close_all, name=f"{THREADS}dropped", daemon=True)
            _thread.start()
        except BaseException as error:
            _closing_in = 0
            if not isinstance(error, RuntimeError):
                raise
            # No thread can be had: the next one that is dropped tries again, or Python's end.


def _close_all() -> None:
    global _closing_in
    while True:
        try:
            _close_left()
        finally:
            _closing_in = 0
        if _left.empty():  # else it came while this thread seemed to be at it
            return
        _closing_in = os.getpid()


def _close_left() -> None:
    with suppress(queue.Empty):
        while True:
            close = _left.get_nowait()
            try:
                close()
            except BaseException:  # noqa: BLE001 - nobody can be told but the user; the others are still to be closed
                with suppress(Exception):
                    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _finish_all() -> None:
    """As Python ends: a daemon thread is not waited for."""
    finish_finalizers()
    _close_left()


atexit.register(_finish_all)


# Iterators that nobody can ask for a batch any more, but that nothing has freed yet.
#
# Two kinds of them pile up in a training loop that goes wrong again and again: those in a reference cycle, which the
# collector frees when it runs, and those in a local variable of a function that ended by an exception, when the
# exception is kept: its traceback keeps the function's frame, and the frame its variables. Each has files, threads or
# processes.

_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_MANY = 4
_REST = 20  # times as long as a look took


class OpenIterator(Protocol):
    """What an iterator has open, apart from it. `iterator()` is it, to be looked for in the tracebacks of errors; None:
    it is gone, or not to be closed because of what is found there."""

    closed: bool
    pid: int
    iterator: Callable[[], Any]

    def close(self) -> None: ...


# By id, with whether a look has left it. A WeakSet cannot be gone through while another thread adds to it.
_open: dict[int, tuple[weakref.ref[OpenIterator], bool]] = {}
_next_look = 0.0


def note_opened(opened: OpenIterator) -> None:
    number = id(opened)
    _open[number] = weakref.ref(opened, lambda _: _open.pop(number, None)), False


def close_leaked(few: int = 0) -> None:
    """Before another is opened. The collector, which takes long where there are many objects, is asked only if some are
    open that no look has left: more than a few; or many more, where the last look was a moment ago."""
    global _next_look
    new = sum(_is_open(way()) and not left for way, left in _open.copy().values())
    if new <= few or (few and new <= _MANY * few and time.monotonic() < _next_look):
        return
    began = time.monotonic()
    gc.collect()
    finish_finalizers()
    for number, (way, _) in _open.copy().items():
        opened = way()
        if opened is None:
            continue
        iterator = opened.iterator()
        if iterator is not None and _is_open(opened) and is_leaked(iterator):
            opened.close()
        _open[number] = way, True
    _next_look = time.monotonic() + (time.monotonic() - began) * _REST


def all_opened() -> list[OpenIterator]:
    return [opened for way, _ in _open.copy().values() if (opened := way()) is not None]


def _is_open(opened: OpenIterator | None) -> bool:
    return opened is not None and not opened.closed and opened.pid == os.getpid()


def is_leaked(thing: Any) -> bool:
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
