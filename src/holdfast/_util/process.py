"""In a worker: ends it when the process it works for is gone, however that ended.

Asking for the parent's pid does not do: under a fork server it is the server's. Neither does the kernel's parent-death
signal alone: it looks at that same parent, and at the *thread* that started the worker. A pidfd is of the process
itself, and its number is never another's.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import weakref
from pathlib import Path
from typing import NamedTuple, Protocol

_EXIT_CODE = 1
_PR_SET_PDEATHSIG = 1

PACKAGE_PARENT = str(Path(__file__).absolute().parents[2])  # the directory that holds the package


class ProcessMark(NamedTuple):
    """A process for good: a pid is given out again, the moment of the start is not. None: it could not be read."""

    pid: int
    start_ticks: int | None


def mark_this_process() -> ProcessMark:
    """To be sent to a worker that can be given no descriptor."""
    pid = os.getpid()
    return ProcessMark(pid, _start_ticks(pid))


def open_this_process() -> int:
    """A pidfd of this process, to be handed to a worker."""
    return os.pidfd_open(os.getpid())


def end_with_marked(parent: ProcessMark) -> bool:
    """`end_with` by a mark. False: it cannot be watched from here (an old kernel, or no descriptor left)."""
    try:
        pidfd = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        os._exit(_EXIT_CODE)
    except OSError:
        return False
    started = _start_ticks(parent.pid)
    if None not in (started, parent.start_ticks) and started != parent.start_ticks:
        os._exit(_EXIT_CODE)  # the number is another process's by now
    end_with(pidfd)
    return True


def end_with(pidfd: int) -> None:
    """A thread that ends this process at once when that of the pidfd has ended. The pidfd is its own from here on."""
    threading.Thread(target=_end_after, args=(pidfd,), name="holdfast-parent-watch", daemon=True).start()


def _end_after(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os._exit(_EXIT_CODE)


def die_with_forker(forker_pid: int) -> None:
    """The kernel kills this process when the one that forked it ends, also while C code holds the interpreter.

    Only for a child of a process with one thread: the signal comes when the *thread* that forked ends.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != forker_pid:
        os._exit(_EXIT_CODE)  # it ended before it could be said


def _start_ticks(pid: int) -> int | None:
    """The 22nd field of `/proc/PID/stat`; the 2nd, the name, may hold spaces and parentheses.

    Read here and not by `procfs`, which is a layer above.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


# One hook for everything that must be told it is now in a forked child.
#
# `os.register_at_fork` cannot be undone, so it is called once; what wants to know is kept by weak reference.


class ForkAware(Protocol):
    def after_fork_in_child(self) -> None: ...


_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_registered = False


def call_after_fork(thing: ForkAware) -> None:
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


def module_command(module: str) -> list[str]:
    """Returns the command that runs a module of this package; `-P` keeps the working directory off `sys.path`."""
    return [sys.executable, "-P", "-m", f"holdfast.{module}"]


def child_environment(**more: str) -> dict[str, str]:
    """Returns the environment of a child that is to import this same package, with `more` variables set."""
    paths = [PACKAGE_PARENT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | more
