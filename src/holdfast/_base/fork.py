"""One hook for everything that must be told it is now in a forked child.

`os.register_at_fork` cannot be undone, so it is called once; what wants to know is kept by weak reference.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    def after_fork_in_child(self) -> None: ...


_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_registered = False


def tell_after_fork(thing: ForkAware) -> None:
    """Calls `thing.after_fork_in_child()` in every child forked while it is alive."""
    global _registered
    if not _registered:
        os.register_at_fork(after_in_child=_tell_all)
        _registered = True
    _aware.add(thing)


def _tell_all() -> None:
    things = list(_aware)
    _aware.clear()  # before they are told: one may ask to be told of the next fork as well
    for thing in things:
        thing.after_fork_in_child()
