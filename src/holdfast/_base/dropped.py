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
_waited_for: threading.Thread | None = None  # in vain, so that the next to be found is not waited for as well
_COLLECTOR_S = 2.0
_FINISH_S = 10.0


def close_when_dropped(owner: object, close: Close) -> weakref.finalize[[Close], object]:
    """Calls `close`, which must not refer to the owner, when that is gone, and at the latest as Python ends."""
    return weakref.finalize(owner, close_dropped, close)


def close_dropped(close: Close) -> None:
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
        _waited_for = None if finish_dropped(_COLLECTOR_S) else _thread


def finish_dropped(wait_s: float = _FINISH_S) -> bool:
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
    finish_dropped()
    _close_left()


atexit.register(_finish_all)
