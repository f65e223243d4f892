"""Ends a worker when the process that it works for has ended, runs hooks after a fork, and describes an exit code.

A worker cannot go by its parent's pid: under a fork server that is the server's. The kernel's parent-death signal
watches that same parent, and only the *thread* that started the worker. A pidfd refers to one process and is never
reused for another.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
import weakref
from pathlib import Path
from typing import NamedTuple, Protocol

_EXIT_CODE = 1
_PR_SET_PDEATHSIG = 1

PACKAGE_PARENT = str(Path(__file__).absolute().parents[2])  # the directory that holds the package


class ProcessMark(NamedTuple):
    """Identifies a process: its pid may be reused, but not with the same start time (None: unknown)."""

    pid: int
    start_ticks: int | None


def mark_this_process() -> ProcessMark:
    """Identifies this process for a worker that cannot be passed a descriptor."""
    pid = os.getpid()
    return ProcessMark(pid, _start_ticks(pid))


def open_this_process() -> int:
    """Returns a pidfd of this process, to be passed to a worker."""
    return os.pidfd_open(os.getpid())


def end_with_marked(parent: ProcessMark) -> bool:
    """Calls `end_with` for a marked process. Returns False if that fails: old kernel, or no free descriptor."""
    try:
        pidfd = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        os._exit(_EXIT_CODE)
    except OSError:
        return False
    started = _start_ticks(parent.pid)
    if None not in (started, parent.start_ticks) and started != parent.start_ticks:
        os._exit(_EXIT_CODE)  # the pid is another process's by now
    end_with(pidfd)
    return True


def end_with(pidfd: int) -> None:
    """Starts a thread that ends this process as soon as the one of the pidfd has ended. The thread owns the pidfd."""
    threading.Thread(target=_end_after, args=(pidfd,), name="holdfast-parent-watch", daemon=True).start()


def _end_after(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os._exit(_EXIT_CODE)


def die_with_forker(forker_pid: int) -> None:
    """Makes the kernel kill this process when the one that forked it ends, also while C code holds the GIL.

    Only for a child of a process with one thread: the signal is sent when the *thread* that forked ends.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != forker_pid:
        os._exit(_EXIT_CODE)  # it ended before the call above


def _start_ticks(pid: int) -> int | None:
    """Reads the 22nd field of `/proc/PID/stat`. The 2nd, the name, may contain spaces and parentheses.

    `procfs` cannot be used here, as it is a layer above.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


# ---- hooks in a forked child
#
# `os.register_at_fork` cannot be undone, so it is called once; the objects with a hook are weakly referenced.


class ForkAware(Protocol):
    def after_fork_in_child(self) -> None: ...


_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_registered = False

# The signals with a handler that a hook removes in the child. Python forgets, in a child, which signals have arrived
# since the fork: one that met the parent's handler there would be lost. So they are blocked from before the fork until
# after the hooks, and do then what they would have done without the handler.
signals_removed_in_child: set[int] = set()
_forking = threading.local()  # `mask` is what the thread blocked before; only during a fork


def call_after_fork(thing: ForkAware) -> None:
    """Calls `thing.after_fork_in_child()` in every child forked while it is alive."""
    global _registered
    if not _registered:
        os.register_at_fork(before=_block_signals, after_in_parent=_restore_mask, after_in_child=_notify_all)
        _registered = True
    _aware.add(thing)


def _block_signals() -> None:
    if not signals_removed_in_child:
        return
    # Read first: a handler of the program that raises in the second call would lose what that returns. A mask that is
    # there already is of a fork whose last hook was interrupted by such an exception.
    if not hasattr(_forking, "mask"):
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.pthread_sigmask(signal.SIG_BLOCK, signals_removed_in_child)


def _restore_mask() -> None:
    error = None
    while hasattr(_forking, "mask"):
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)
            del _forking.mask
        except BaseException as raised:  # noqa: BLE001 - of a handler of the program, at any point in here
            error = raised
    if error is not None:
        raise error


def _notify_all() -> None:
    things = list(_aware)
    _aware.clear()  # before the calls: a hook may register its object again, for the next fork
    with contextlib.ExitStack() as hooks:  # it calls all, also if one raises
        hooks.callback(_restore_mask)
        for thing in things:
            hooks.callback(thing.after_fork_in_child)


def describe_exit(exit_code: int | None) -> str:
    if exit_code is None:
        return "ended with an unknown exit code"
    if exit_code >= 0:
        return f"ended with {exit_cause(exit_code)}"
    hint = " (out of memory, unless somebody killed it on purpose)" if -exit_code == signal.SIGKILL else ""
    return f"was killed by {exit_cause(exit_code)}{hint}"


def exit_cause(exit_code: int) -> str:
    """Returns "exit code 1", or the name of the signal such as "SIGKILL"."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"
