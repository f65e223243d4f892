"""The signals of a guarded worker: SIGTERM and SIGUSR1 drain it, SIGUSR2 writes the stacks of all threads.

A handler that the program had before the guard often ends it (`sys.exit`), which would abort the job. It is called when
the drain is over, that is at the end of the guard's block. A program that never asks whether it drains would not end
then: there it is called as soon as no job runs. One that the program installs later takes the guard's place, which is
logged.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from ..._util.process import signals_removed_in_child
from .emergency import GuardLog
from .heartbeat import HeartbeatPage
from .own_process import OwnProcess
from .signals import handles_signal

_EVENT_LOOPS = ("asyncio", "uvloop")


class _Request(Protocol):
    def __call__(self, reason: str, *, restart: bool) -> None: ...


class DrainSignals:
    """Takes the signals while a guard is active. `is_busy` returns whether earlier handlers have to wait."""

    def __init__(
        self, log: GuardLog, own: OwnProcess, page: HeartbeatPage, request: _Request, is_busy: Callable[[], bool]
    ) -> None:
        self._log, self._own, self._page = log, own, page
        self._request = request
        self._is_busy = is_busy
        self._pid = os.getpid()
        self._is_over = False
        self._before: dict[signal.Signals, Any] = {}
        self._waiting: set[int] = set()  # signals that came, whose handlers of before were not called yet
        self._replaced: set[int] = set()
        self._stacks_signal, self._stacks_fd = 0, -1

    def take(self) -> None:
        """Installs the handlers."""
        if threading.current_thread() is not threading.main_thread():
            self._log.write(
                "SIGTERM and SIGUSR1 do not drain it: it was not started in the main thread. Start it there; its "
                "methods can be called in any thread"
            )
            return
        for number in (signal.SIGTERM, signal.SIGUSR1):
            before = signal.getsignal(number)
            if before is None:
                continue  # installed by C code
            if before is signal.SIG_DFL and handles_signal(self._own.pid, number):
                # Such as faulthandler.register(signal.SIGUSR1), which Python does not report.
                self._log.write(f"{number.name} drains it from now on: what C code did on it before is replaced")
            if _is_of_event_loop(before):
                self._log.write(
                    f"{number.name} drains it, but the event loop calls at once what loop.add_signal_handler() was "
                    "given for it: use guard.on_drain() instead"
                )
            self._before[number] = before
            signals_removed_in_child.add(number)
            signal.signal(number, self._on_signal)
        if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL and not handles_signal(self._own.pid, signal.SIGUSR2):
            # Written by C code, which needs no GIL: it also shows who holds the GIL.
            signals_removed_in_child.add(signal.SIGUSR2)
            self._stacks_signal = int(signal.SIGUSR2)
            self._point_stacks_to_log()

    def restore(self) -> None:
        """Restores the handlers of before, as far as they are still the guard's; also in a forked child."""
        self._is_over = True
        if self._stacks_signal:
            faulthandler.unregister(self._stacks_signal)
            signals_removed_in_child.discard(self._stacks_signal)
            self._stacks_signal = 0
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._before.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, before)
            signals_removed_in_child.discard(number)

    def check(self) -> None:
        """Runs with each sample: for the log's descriptor, handlers that wait, and handlers of others."""
        self._point_stacks_to_log()
        self.call_waiting()
        for number in self._before:
            handler = signal.getsignal(number)
            if handler == self._on_signal:
                self._replaced.discard(number)
            elif number not in self._replaced:
                self._replaced.add(number)
                self._log.write(_replaced_text(number, handler))

    def call_waiting(self) -> None:
        """Makes the main thread call the handlers that wait, unless they still have to."""
        if self._waiting and not self._is_busy():
            for number in list(self._waiting):
                if signal.getsignal(number) == self._on_signal:
                    # The same signal again: nothing else wakes a main thread that waits for a lock.
                    signal.pthread_kill(threading.main_thread().ident or 0, number)

    def pass_on(self) -> None:
        """Lets the signals that came do, after `restore`, what they did before the guard."""
        while self._waiting:
            signal.raise_signal(self._waiting.pop())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:  # it was ended in another thread, which may not restore handlers
            self.restore()
            os.kill(self._pid, number)
            return
        # It may have interrupted code that holds any lock: here are only plain stores and a put into a SimpleQueue.
        self._request(signal.Signals(number).name, restart=number != signal.SIGTERM)
        before = self._before.get(signal.Signals(number))
        if not callable(before):
            return
        self._waiting.add(number)
        if not self._is_busy():
            self._waiting.discard(number)
            before(number, frame)

    def _point_stacks_to_log(self) -> None:
        """Tells faulthandler which descriptor the log has now. It writes to the number whatever that is: if there is no
        log any more, it gets one that nothing can be written to, because without a handler the signal is deadly."""
        log = self._log.fd
        fd = log if log >= 0 else self._own.read_only_fd
        if not self._stacks_signal or fd == self._stacks_fd:
            return
        if fd >= 0:
            faulthandler.register(self._stacks_signal, fd, all_threads=True)
        else:
            faulthandler.unregister(self._stacks_signal)
        self._stacks_fd = fd
        self._page.set(stacks_signal=self._stacks_signal if log >= 0 else 0)


def _is_of_event_loop(handler: Any) -> bool:
    return (getattr(handler, "__module__", None) or "").split(".")[0] in _EVENT_LOOPS


def _replaced_text(number: signal.Signals, handler: Any) -> str:
    """Returns the line for the log about a handler that the program installed after the guard."""
    name = number.name
    if _is_of_event_loop(handler):
        what, instead = "loop.add_signal_handler()", "use guard.on_drain() instead of it"
    elif callable(handler):
        more = ", restart=False" if number == signal.SIGTERM else ""
        what = f"{getattr(handler, '__qualname__', type(handler).__name__)}()"
        instead = f'call guard.drain("{name}"{more}) in it, or install it before the guard'
    else:
        what = getattr(handler, "name", None) or "C code"
        instead = "leave it to the guard"
    return f"{name} does not drain it any more: the program has replaced the guard's handler with {what}; {instead}"
