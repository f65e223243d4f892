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
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

Close = Callable[[], object]

THREADS = "holdfast-"  # how the names of our own threads begin: none of them may wait for itself

_left: queue.SimpleQueue[Close] = queue.SimpleQueue()  # its put() may come in the middle of its put()
_closing_in = 0  # the process that has a thread at it
_thread: threading.Thread | None = None
_COLLECTOR_S = 2.0
_FINISH_S = 10.0


def close_when_dropped(owner: object, close: Close) -> weakref.finalize[[Close], object]:
    """Calls `close`, which must not refer to the owner, when that is gone, and at the latest as Python ends."""
    return weakref.finalize(owner, close_dropped, close)


def close_dropped(close: Close) -> None:
    """For finalizers: now, where that is safe, else soon."""
    here = threading.current_thread()
    is_ours = here.name.startswith(THREADS)
    if not is_ours and not _is_collecting():
        close()
        return
    _left.put(close)
    _start()
    if not is_ours and not here.daemon:  # a daemon may be a queue's, that is to be joined
        finish_dropped(_COLLECTOR_S)


def finish_dropped(wait_s: float = _FINISH_S) -> None:
    """Waits for what is being closed, for a while."""
    until = time.monotonic() + wait_s
    while _closing_in == os.getpid() and (thread := _thread) is not threading.current_thread():
        left_s = until - time.monotonic()
        if left_s <= 0:
            return
        if thread is None or not thread.is_alive():  # another one is about to be started
            time.sleep(0.001)
        else:
            thread.join(left_s)


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
        except RuntimeError:  # no thread can be had: the next one that is dropped tries again, or Python's end
            _closing_in = 0


def _close_all() -> None:
    global _closing_in
    while True:
        _close_left()
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
            except Exception:  # noqa: BLE001 - nobody can be told but the user; the others are still to be closed
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


atexit.register(_close_left)
