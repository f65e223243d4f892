"""Closes objects that were dropped without close(), and finds iterators that are leaked but not yet freed.

The garbage collector runs finalizers in whichever thread allocates at that moment: possibly in a thread that belongs
to the dropped object, possibly under a lock that closing needs. A finalizer that blocks can deadlock with its own
thread, and Python starts no other collection meanwhile. So what the collector finds is closed by a background thread,
and what a program drops by itself is closed at once. A collection in one of the user's threads waits up to two
seconds for that background thread, so that `gc.collect()` leaves nothing open; it does not wait longer, since it may
hold the lock.

Leaked iterators are closed before another one is opened: those in reference cycles by a collection, those in a local
variable of a function that ended by an exception, while the stored exception keeps the frame alive, by their
reference counts. Each would keep files, threads or processes, and a training loop that fails again and again piles
them up.
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

THREADS = "holdfast-"  # the name prefix of holdfast's own threads; none of them may wait for itself

_pending: queue.SimpleQueue[Close] = (
    queue.SimpleQueue()
)  # SimpleQueue.put() is reentrant; finalizers interrupt each other
_closing_in = 0  # the pid of the process in which a closing thread runs
_thread: threading.Thread | None = None
_timed_out: threading.Thread | None = None  # a thread that was waited for in vain is not waited for again
_COLLECTOR_S = 2.0
_FINISH_S = 10.0


def close_when_collected(owner: object, close: Close) -> weakref.finalize[[Close], object]:
    """Calls `close`, which must not refer to the owner, once the owner is freed, at the latest at exit."""
    return weakref.finalize(owner, close_finalized, close)


def close_finalized(close: Close) -> None:
    """Closes from a finalizer: at once where that is safe, else in the background thread."""
    global _timed_out
    if sys.is_finalizing():  # no other thread runs any more
        close()
        return
    here = threading.current_thread()
    is_ours = here.name.startswith(THREADS)
    if not is_ours and not _is_collecting():
        close()
        return
    _pending.put(close)
    _start()
    # A daemon thread may belong to a queue that closing joins.
    if not is_ours and not here.daemon and _timed_out is not _thread:
        _timed_out = None if finish_finalizers(_COLLECTOR_S) else _thread


def finish_finalizers(wait_s: float = _FINISH_S) -> bool:
    """Waits for the background thread; returns whether everything is closed."""
    until = time.monotonic() + wait_s
    while _closing_in == os.getpid() and (thread := _thread) is not threading.current_thread():
        left_s = until - time.monotonic()
        if left_s <= 0:
            return False
        if thread is None or not thread.is_alive():  # another thread is about to be started
            time.sleep(0.001)
        else:
            thread.join(left_s)
    return True


def _is_collecting() -> bool:
    """Whether a collection is running in this thread: gc.collect() does nothing then."""
    before = _collections()
    gc.collect(0)
    return _collections() == before


def _collections() -> int:
    return int(gc.get_stats()[0]["collections"])


def _start() -> None:
    """Starts the thread without a lock: a finalizer may interrupt this, and then two threads share the work."""
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
            # No thread can be started: the next finalizer tries again, or the exit handler.


def _close_all() -> None:
    global _closing_in
    while True:
        try:
            _close_pending()
        finally:
            _closing_in = 0
        if _pending.empty():  # else one was put while this thread still seemed to work
            return
        _closing_in = os.getpid()


def _close_pending() -> None:
    with suppress(queue.Empty):
        while True:
            close = _pending.get_nowait()
            try:
                close()
            except BaseException:  # noqa: BLE001 - reported below; the others must still be closed
                with suppress(Exception):
                    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _finish_all() -> None:
    """At interpreter exit, which does not wait for daemon threads."""
    finish_finalizers()
    _close_pending()


atexit.register(_finish_all)


_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_MANY = 4
_REST = 20  # pause between two searches, as a multiple of how long the last one took


class OpenIterator(Protocol):
    """The open resources of an iterator, held apart from it. `iterator()` returns the iterator itself, whose referrers
    are examined; None: it is freed already, or must not be closed because a traceback refers to it."""

    closed: bool
    pid: int
    iterator: Callable[[], Any]

    def close(self) -> None: ...


# By id, and whether a search has examined it. A WeakSet cannot be iterated while another thread adds to it.
_open: dict[int, tuple[weakref.ref[OpenIterator], bool]] = {}
_next_search = 0.0


def note_opened(opened: OpenIterator) -> None:
    number = id(opened)
    _open[number] = weakref.ref(opened, lambda _: _open.pop(number, None)), False


def close_leaked(few: int = 0) -> None:
    """Closes leaked iterators before another one is opened.

    A collection takes long where there are many objects. So it runs only if more than `few` iterators are open that no
    search has examined yet, or many more than that if the last search was a moment ago.
    """
    global _next_search
    new = sum(_is_open(ref()) and not examined for ref, examined in _open.copy().values())
    if new <= few or (few and new <= _MANY * few and time.monotonic() < _next_search):
        return
    began = time.monotonic()
    gc.collect()
    finish_finalizers()
    for number, (ref, _) in _open.copy().items():
        opened = ref()
        if opened is None:
            continue
        iterator = opened.iterator()
        if iterator is not None and _is_open(opened) and is_leaked(iterator):
            opened.close()
        _open[number] = ref, True
    _next_search = time.monotonic() + (time.monotonic() - began) * _REST


def all_opened() -> list[OpenIterator]:
    return [opened for ref, _ in _open.copy().values() if (opened := ref()) is not None]


def _is_open(opened: OpenIterator | None) -> bool:
    return opened is not None and not opened.closed and opened.pid == os.getpid()


def is_leaked(thing: Any) -> bool:
    """Whether only local variables of functions that have ended refer to it. The caller holds it in one variable.

    A running function does not show among the referrers, only in the reference count.
    """
    referrers, count = _referrers_and_count(thing)
    frames = [one for one in referrers if type(one) is not repeat]
    if any(type(one) is not FrameType or one.f_code.co_flags & _RESUMABLE for one in frames):
        return False
    return bool(frames) and count == len(frames) + _OWN_REFERENCES


def _referrers_and_count(thing: Any) -> tuple[list[Any], int]:
    """Reads both without running Python code in between: another thread might drop the object in some frames and take
    it up in as many others."""
    reads: tuple[Callable[[Any], Any], ...] = (gc.get_referrers, sys.getrefcount)
    referrers, count = map(call, reads, repeat(thing))
    return referrers, count


def _own_references(thing: Any) -> int:
    return _referrers_and_count(thing)[1]


_PROBE: Any = type("_Probe", (), {})()
_OWN_REFERENCES = _own_references(_PROBE)  # the count of an object in one variable: what counting itself adds
