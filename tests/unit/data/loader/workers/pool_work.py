"""What the workers of these tests do; at the top level of a module, as work must be."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

Tell = Callable[[int], None]


class OddError(Exception):
    """One that pickles, but not back: it wants a keyword."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class RichError(ValueError):
    """One that keeps what it knows."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self.code = code


def echo(data: Any, tell: Tell) -> Any:
    return data


def add_up(data: int, tell: Tell) -> int:
    """Takes longer the larger its data."""
    return sum(range(data))


def zeros(data: int, tell: Tell) -> np.ndarray[Any, Any]:
    return np.full(data, 7, np.uint8)


def count_descriptors(data: Any, tell: Tell) -> int:
    return len(os.listdir("/proc/self/fd"))


def loaded(data: list[str], tell: Tell) -> list[str]:
    return [name for name in data if name in sys.modules]


def draw(data: Any, tell: Tell) -> tuple[int, float]:
    return os.getpid(), float(np.random.random())


def act(data: tuple[str, Any], tell: Tell) -> Any:
    """Samples 0, 1, 2, and at sample 2 the deed."""
    for sample in range(3):
        tell(sample)
    deed, value = data
    return _DEEDS[deed](value)


def _raise(value: Any) -> None:
    raise value


def _raise_odd(value: Any) -> None:
    raise OddError(code=value)


def _crash(value: Any) -> None:
    ctypes.string_at(0)


def _hang_here(value: Any) -> None:
    threading.Event().wait()


def _hold_the_interpreter(value: Any) -> None:
    """C code that waits and does not let other threads run."""
    ctypes.PyDLL(None).pause()


def _stop(value: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _kill(value: signal.Signals) -> None:
    os.kill(os.getpid(), value)


_DEEDS: dict[str, Callable[[Any], Any]] = {
    "give": lambda value: value,
    "raise": _raise,
    "raise odd": _raise_odd,
    "exit": os._exit,
    "sys.exit": sys.exit,
    "crash": _crash,
    "hang": _hang_here,
    "hold": _hold_the_interpreter,
    "stop": _stop,
    "kill": _kill,
    "lambda": lambda value: lambda: value,
}
