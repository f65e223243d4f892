"""A guard for code that opens h5py.File by itself: what would lose data is refused before it happens, by name."""

from __future__ import annotations

import errno
import functools
import inspect
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import h5py

from ..._base.fork import tell_after_fork
from .inherited import Opened, cut_off_inherited, fork_between_calls
from .refusals import OVERWRITE_VARIABLE, HeldFileError, Request, held_error, refuse_harm, request_of


def _reference(self: Any, name: Any, mode: str = "r", driver: str | None = None, *rest: Any, **kwds: Any) -> None: ...


# Somebody may have wrapped it before, and hidden its arguments.
_SIGNATURE = inspect.signature(h5py.File.__init__)
if "name" not in _SIGNATURE.parameters:
    _SIGNATURE = inspect.signature(_reference)

_TRIES = 6
_FIRST_PAUSE_S = 0.002


def protect_h5py(*, overwrite: bool = False) -> Protection:
    """Guards every h5py.File opened from now on in this process and those forked from it, until `undo()`.

    Refused: mode `w` on a file that has something in it (`overwrite` allows it); writing to a file that another process
    holds; writing with HDF5's locks off. A forked child is cut off from files its parent has open for writing. May be
    called any number of times; each call's `undo()` counts, and one call without `overwrite` is enough to refuse.
    """
    return _GUARD.start(overwrite)


class Protection:
    """One call's share in the guard. The block of a `with`, or until `undo()`, which may be called twice."""

    def __init__(self, overwrite: bool) -> None:
        self.overwrite = overwrite

    @property
    def active(self) -> bool:
        return _GUARD.has(self)

    def undo(self) -> None:
        _GUARD.end(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


class _Guard:
    """In the place of h5py.File.__init__ while anybody wants it there."""

    def __init__(self) -> None:
        self._wanted: list[Protection] = []
        self._turn = threading.Lock()
        self._opened = Opened()
        self._original: Callable[..., None] = h5py.File.__init__
        self._wrapper: Callable[..., None] | None = None
        self._pid = os.getpid()
        self._hooked = False

    def start(self, overwrite: bool) -> Protection:
        made = Protection(overwrite)
        with self._turn:
            self._wanted.append(made)
            if self._wrapper is None or h5py.File.__init__ is not self._wrapper:
                self._original = h5py.File.__init__
                self._wrapper = h5py.File.__init__ = self._wrap(self._original)
            self._pid = os.getpid()
            fork_between_calls()
            tell_after_fork(self)
            self._come_last()
        return made

    def end(self, protection: Protection) -> None:
        with self._turn:
            if protection in self._wanted:
                self._wanted.remove(protection)
            # Where somebody else wrapped it since, ours stays inside theirs and lets everything pass.
            if not self._wanted and h5py.File.__init__ is self._wrapper:
                h5py.File.__init__ = self._original
                self._wrapper = None

    def has(self, protection: Protection) -> bool:
        return protection in self._wanted

    def _wrap(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(file: Any, *args: Any, **kwds: Any) -> None:
            request = _read(file, *args, **kwds) if self._wanted else None
            if request is None:
                original(file, *args, **kwds)
                return

            def attempt() -> None:
                if request.writes:
                    refuse_harm(request, overwrite=self._may_overwrite())
                original(file, *args, **kwds)

            _open(attempt, request)
            if request.writes:
                self._opened.add(file)

        return __init__

    def _may_overwrite(self) -> bool:
        asked = os.environ.get(OVERWRITE_VARIABLE, "") not in ("", "0")
        return asked or all(one.overwrite for one in list(self._wanted))

    def after_fork_in_child(self) -> None:
        self._turn = threading.Lock()  # the thread that may have had it is not here
        tell_after_fork(self)  # whoever was told is forgotten: a child's own children count, too

    def _come_last(self) -> None:
        """After all that `tell_after_fork` tells: holdfast's own writers have cut off their files by then."""
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        parent, self._pid = self._pid, os.getpid()
        if self._wanted:
            cut_off_inherited()
            self._opened.refuse_in_child(parent)


def _read(*args: Any, **kwds: Any) -> Request | None:
    try:
        return request_of(_SIGNATURE.bind(*args, **kwds).arguments)
    except TypeError:
        return None  # h5py says what is wrong with it


def _open(attempt: Callable[[], None], request: Request) -> None:
    """Tries again what passes by itself: a lock that a child has from its fork to its first step, and the size that
    HDF5 asks for before it locks, so that a file its writer closes just then is "truncated" though it is whole."""
    pause_s = _FIRST_PAUSE_S
    for left in reversed(range(_TRIES)):
        try:
            return attempt()
        except OSError as error:
            locked = error.errno == errno.EAGAIN or "unable to lock file" in str(error)
            told = held_error(request, certain=True) if locked and not isinstance(error, HeldFileError) else None
            passing = getattr(told or error, "passing", False) or "truncated file" in str(error)
            if left and passing:
                time.sleep(pause_s)
                pause_s *= 2
                continue
            if told is not None:
                raise told from error
            raise
    return None


_GUARD = _Guard()
