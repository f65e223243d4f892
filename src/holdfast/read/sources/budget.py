"""How many files may be open at once, and what to say when there are none left.

Everything that is needed then is imported before: a process without a free descriptor can import nothing.
"""

from __future__ import annotations

import errno
import os
import resource

from ...diagnose.explain.chain import recognise, walk
from ...diagnose.explain.compose import of_exception
from ...diagnose.explain.here import Here, Whose
from ...proc.descriptors import count
from ...proc.limits import process_limits
from ...proc.procfs import REAL

_MOST = 1024  # more open files than this make nothing faster
_UNKNOWN_USED = 32


def find_budget(open_files: int | str) -> int:
    """A number as it is; "auto": half of what is free now, for the program has files of its own to open."""
    if open_files == "auto":
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return _MOST
        used = count(REAL, os.getpid())
        return max(1, min(_MOST, (soft - (_UNKNOWN_USED if used is None else used)) // 2))
    if isinstance(open_files, bool) or not isinstance(open_files, int) or open_files < 1:
        raise ValueError(f'expected "auto" or at least one open file, got {open_files!r}')
    return open_files


def is_full(error: Exception) -> bool:
    """Whether an error is, or hides, that no descriptor is free."""
    found = recognise(walk(error))
    return found is not None and (found.link.errno or found.row.errno) in (errno.EMFILE, errno.ENFILE)


def explain_full(error: Exception) -> str:
    """What it means that no descriptor is free, here and now, in one line."""
    found = recognise(walk(error))
    if found is None:
        return str(error)
    pid = os.getpid()
    limits = process_limits(REAL, pid, count(REAL, pid), None)
    what = of_exception(found, Here(whose=Whose.OWN, pid=pid, limits={limit.name: limit for limit in limits}))
    return " ".join([f"{what.headline}.", what.says, *what.here])
