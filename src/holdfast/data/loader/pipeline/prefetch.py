"""Batches made ready by a thread before they are asked for, within a limit of bytes and of batches.

The two threads share queues and nothing else: Ctrl-C interrupts the thread that waits, and an interrupted Condition may
stay locked.
"""

from __future__ import annotations

import os
import queue
import threading

from ..stats import Meter
from .run_context import Items, RunContext, WorkItem

_STOP_S = 10.0


def prefetch(items: Items, context: RunContext) -> Items:
    """Yields the same items in the same order. At least one is made ready, however large it is."""
    options = context.options
    thread = _PrefetchThread(items, options.prefetch_max_bytes, options.prefetch_max_items, context.meter)
    context.cancel_token.on_cancel(thread.request_stop)
    try:
        thread.start()
        while (item := thread.take()) is not None:
            yield item
    finally:
        thread.stop()


class _PrefetchThread:
    def __init__(self, items: Items, max_bytes: int, max_items: int, meter: Meter) -> None:
        self._items, self._max_bytes, self._max_items, self._meter = items, max_bytes, max_items, meter
        self._ready: queue.SimpleQueue[WorkItem | None] = queue.SimpleQueue()  # None: no more
        self._taken: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # their sizes in bytes; None: stop
        self._stopped = False
        self._pid = os.getpid()
        self._error: BaseException | None = None
        # A daemon: reading that hangs must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="holdfast-prefetch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        ready = ready_bytes = last_bytes = 0
        try:
            while not self._stopped:
                # Waits before the next item is made, as that takes memory; it will be about as large as the last one.
                while (
                    ready
                    and (ready >= self._max_items or ready_bytes + last_bytes > self._max_bytes)
                    and not self._stopped
                ):
                    taken = self._taken.get()
                    ready, ready_bytes = ready - 1, ready_bytes - (taken or 0)
                item = None if self._stopped else next(self._items, None)
                if item is None or self._stopped:
                    return
                last_bytes = item.size_bytes
                ready, ready_bytes = ready + 1, ready_bytes + last_bytes
                self._meter.add_memory(last_bytes)
                self._ready.put(item)
                del item  # the user has it, and may release it while the next one is made
        except BaseException as error:  # noqa: BLE001 - it is raised where the next item is asked for
            self._error = error
        finally:
            try:
                self._items.close()
            except BaseException as error:  # noqa: BLE001
                self._error = self._error or error
            self._ready.put(None)

    def take(self) -> WorkItem | None:
        item = self._ready.get()
        if item is not None:
            self._meter.add_memory(-item.size_bytes)
            self._taken.put(item.size_bytes)
            return item
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return None

    def request_stop(self) -> None:
        self._stopped = True
        self._taken.put(None)
        self._ready.put(None)

    def stop(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child does not have the thread
        self.request_stop()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(_STOP_S)
        while not self._ready.empty():
            item = self._ready.get_nowait()
            self._meter.add_memory(-item.size_bytes if item is not None else 0)
