"""A block that must give back what it took."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable
from functools import wraps
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from ..errors import LeakError
from .leaks import Check, check_kinds, tell

F = TypeVar("F", bound=Callable[..., Any])

WITHIN_S = 1.0


def no_leaks(kinds: Iterable[str] | None = None, max: int = 0, gc: bool = True, within_s: float = WITHIN_S) -> NoLeaks:
    """`with no_leaks():`, `async with no_leaks():` or `@no_leaks()`: LeakError if something is left behind.

    Looked at are descriptors (by number and target), child processes, Python threads and files in /dev/shm; `kinds`
    narrows it: "fd" for all descriptors or their kinds ("pipe", "socket", "file", …), "process", "thread", "shm_file".
    Up to `max` things may stay.

    If something seems left, garbage is collected once (unless `gc` is False) and it gets `within_s` to go: a thread may
    be ending just now. Forgiven is what a module opened while it was imported for the first time within the block,
    /dev/urandom, and multiprocessing's resource tracker and fork server, which Python keeps. What another thread
    opens meanwhile and keeps counts as this block's, and so does a file in /dev/shm that another process of this user
    made meanwhile and has not open: nobody can tell whose it is. An exception within the block is the one that is
    raised; what was left is added to it as a note.
    """
    return NoLeaks(kinds, max, gc, within_s)


class NoLeaks:
    def __init__(self, kinds: Iterable[str] | None, max: int, gc: bool, within_s: float) -> None:
        if max < 0 or within_s < 0:
            raise ValueError(f"expected max and within_s of at least 0, got {max} and {within_s}")
        self._kinds = check_kinds(kinds)
        self._max = max
        self._gc = gc
        self._within_s = within_s
        self._checks: list[Check] = []  # one may be entered again within itself

    def __enter__(self) -> Self:
        self._checks.append(Check(self._kinds))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        check = self._end(error)
        if check is not None:
            for wait_s in check.waits(self._max, self._within_s, self._gc):
                time.sleep(wait_s)
            self._judge(check)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Lets the event loop run while it waits: transports are closed by it, a moment after they are asked to."""
        import asyncio  # slow to load, and there already wherever this runs

        check = self._end(error)
        if check is not None:
            for wait_s in check.waits(self._max, self._within_s, self._gc):
                await asyncio.sleep(wait_s)
            self._judge(check)

    def _end(self, error: BaseException | None) -> Check | None:
        """None: an exception is under way, and is what matters."""
        check = self._checks.pop()
        check.stop()
        if error is None:
            return check
        if isinstance(error, Exception) and (left := check.over(self._max)):
            text, _ = tell(left, self._max)
            error.add_note(f"also, {text}\n  (what only this exception's frames hold goes with it)")
        return None

    def _judge(self, check: Check) -> None:
        if left := check.over(self._max):
            raise LeakError(*tell(left, self._max))

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"expected a function that ends before it returns, got the generator {function.__name__}")
        around = _around_coroutine if inspect.iscoroutinefunction(function) else _around
        return cast(F, wraps(function)(around(self, function)))

    def _again(self) -> NoLeaks:
        return NoLeaks(self._kinds, self._max, self._gc, self._within_s)


def _around(block: NoLeaks, function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*args: Any, **kwargs: Any) -> Any:
        with block._again():
            return function(*args, **kwargs)

    return inner


def _around_coroutine(block: NoLeaks, function: Callable[..., Any]) -> Callable[..., Any]:
    async def inner(*args: Any, **kwargs: Any) -> Any:
        async with block._again():
            return await function(*args, **kwargs)

    return inner
