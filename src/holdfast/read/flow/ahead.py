"""Batches made ready before they are asked for, by one thread, within a bound of bytes."""

from __future__ import annotations

import os
import threading
from collections import deque

from .halt import Halt
from .item import Item, Items
from .stats import Meter

_STOP_S = 10.0


def run_ahead(items: Items, most_bytes: int, meter: Meter, halt: Halt) -> Items:
    """The same items in the same order. At least one is made ready, however large it is."""
    ahead = _Ahead(items, most_bytes, meter)
    halt.on(ahead.tell_end)
    try:
        ahead.start()
        while (item := ahead.take()) is not None:
            yield item
    finally:
        ahead.stop()


class _Ahead:
    def __init__(self, items: Items, most_bytes: int, meter: Meter) -> None:
        self._items, self._most_bytes, self._meter = items, most_bytes, meter
        self._ready: deque[Item] = deque()
        self._ready_bytes = 0
        self._changed = threading.Condition()
        self._ended = self._stopped = False
        self._pid = os.getpid()
        self._error: BaseException | None = None
        # A daemon: reading that hangs must not keep the program from ending.
        self._thread = threading.Thread(target=self._make, name="holdfast-ahead", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _make(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    while self._ready and self._ready_bytes + item.size_bytes > self._most_bytes and not self._stopped:
                        self._changed.wait()
                    if self._stopped:
                        return
                    self._ready.append(item)
                    self._ready_bytes += item.size_bytes
                    self._meter.hold(item.size_bytes)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - it is raised where the next item is asked for
            self._error = error
        finally:
            try:
                self._items.close()
            except BaseException as error:  # noqa: BLE001
                self._error = self._error or error
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def take(self) -> Item | None:
        with self._changed:
            while not self._ready and not self._ended and not self._stopped:
                self._changed.wait()
            if self._ready:
                item = self._ready.popleft()
                self._ready_bytes -= item.size_bytes
                self._meter.hold(-item.size_bytes)
                self._changed.notify_all()
                return item
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return None

    def tell_end(self) -> None:
        with self._changed:
            self._stopped = True
            self._meter.hold(-self._ready_bytes)
            self._ready.clear()
            self._ready_bytes = 0
            self._changed.notify_all()

    def stop(self) -> None:
        if os.getpid() != self._pid:
            return  # in a forked child the thread is gone, and may have had the lock
        self.tell_end()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(_STOP_S)
