"""Iterators that nobody can ask for a batch any more, but that nothing has freed yet.

Two kinds of them pile up in a training loop that goes wrong again and again: those in a reference cycle, which the
collector frees when it runs, and those in a local variable of a function that ended by an exception, when the exception
is kept: its traceback keeps the function's frame, and the frame its variables.
"""

from __future__ import annotations

import gc
import inspect
import sys
from types import FrameType
from typing import Any

_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OWN_REFERENCES = 3  # the caller's variable, the one here, and the argument of getrefcount


def is_lost(thing: Any) -> bool:
    """Whether all that refers to it are variables of functions that have ended. The caller has it in one variable.

    Functions at work do not show among the referrers, only in the count. No frame may be held in a variable here: it
    would keep itself.
    """
    frames = 0
    for referrer in gc.get_referrers(thing):
        if type(referrer) is not FrameType or referrer.f_code.co_flags & _RESUMABLE:
            return False
        frames += 1
    return frames > 0 and sys.getrefcount(thing) == frames + _OWN_REFERENCES
