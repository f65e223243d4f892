"""Ends the waits of an iteration that another thread closes: who waits for a batch would keep it from being closed."""

from __future__ import annotations

import os
from collections.abc import Callable


class Halt:
    """Stages say how their waits are ended before they begin to wait. A forked child has none of their threads."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []
        self._halted = False
        self._pid = os.getpid()

    def on(self, call: Callable[[], None]) -> None:
        """`call` may come from any thread, more than once."""
        self._calls.append(call)
        if self._halted:
            call()

    def __call__(self) -> None:
        self._halted = True
        if os.getpid() == self._pid:
            for call in list(self._calls):
                call()
