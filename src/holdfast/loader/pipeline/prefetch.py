"""Batches made ready before they are asked for, by one thread, within a bound of bytes and of batches.

The two threads share queues and nothing else: who is interrupted in the middle of a Condition may leave it locked, and
Ctrl-C interrupts the thread that waits.
"""

from __future__ import annotations

import os
import queue
import threading

from .executors import CancelToken
from .stats import Meter
from .work_item import Items, WorkItem

_STOP_S = 10.0


def run_ahead(items: Items, most_bytes: int, most_items: int, meter: Meter, halt: CancelToken) -> Items:
    """The same items in the same order. At least one is made ready, however large it is."""
    ahead = _Ahead(items, most_bytes, most_items, meter)
    halt.on(ahead.tell_end)
    try:
        ahead.start()
        while (item := ahead.take()) is not None:
            yield item
    finally:
        ahead.stop()


class _Ahead:
    def __init__(self, items: Items, most_bytes: int, most_items: int, meter: Meter) -> None:
        self._items, self._most_bytes, self._most_items, self._meter = items, most_bytes, most_items, meter
        self._ready: queue.SimpleQueue[WorkItem | None] = queue.SimpleQueue()  # None: no more
        self._taken: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # their bytes; None: stop
        self._stopped = False
        self._pid = os.getpid()
        self._error: BaseException | None = None
        # A daemon: reading that hangs must not keep the program from ending.
        self._thread = threading.Thread(target=self._make, name="holdfast-ahead", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _make(self) -> None:
        ready = ready_bytes = last_bytes = 0
        try:
            while not self._stopped:
                # Before it is made, for it takes memory from then on; it will be about as large as the last one.
                while ready and self._is_enough(ready, ready_bytes + last_bytes) and not self._stopped:
                    taken = self._taken.get()
                    ready, ready_bytes = ready - 1, ready_bytes - (taken or 0)
                item = None if self._stopped else next(self._items, None)
                if item is None or self._stopped:
                    return
                last_bytes = item.size_bytes
                ready, ready_bytes = ready + 1, ready_bytes + last_bytes
                self._meter.hold(last_bytes)
                self._ready.put(item)
                del item  # the user has it, and lets go of it while the next one is made
        except BaseException as error:  # noqa: BLE001 - it is raised where the next item is asked for
            self._error = error
        finally:
            try:
                self._items.close()
            except BaseException as error:  # noqa: BLE001
                self._error = self._error or error
            self._ready.put(None)

    def _is_enough(self, ready: int, with_next_bytes: int) -> bool:
        return ready >= self._most_items or with_next_bytes > self._most_bytes

    def take(self) -> WorkItem | None:
        item = self._ready.get()
        if item is not None:
            self._meter.hold(-item.size_bytes)
            self._taken.put(item.size_bytes)
            return item
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return None

    def tell_end(self) -> None:
        self._stopped = True
        self._taken.put(None)
        self._ready.put(None)

    def stop(self) -> None:
        if os.getpid() != self._pid:
            return  # in a forked child the thread is gone
        self.tell_end()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(_STOP_S)
        while not self._ready.empty():
            item = self._ready.get_nowait()
            self._meter.hold(-item.size_bytes if item is not None else 0)
