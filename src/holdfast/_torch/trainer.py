"""In a worker: ends it when its trainer is gone, however that ended.

torch's own watch asks for the parent's pid, which under forkserver is the fork server's and never changes. The kernel's
parent-death signal looks at that same parent, and at the *thread* that started the worker. A pidfd is of the trainer
itself.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Any

from holdfast.proc.processes import Identity, read_stat
from holdfast.proc.procfs import REAL

_EXIT_CODE = 1


def this_process() -> Identity:
    pid = os.getpid()
    return Identity(pid, _start_ticks(pid))


def work_for(trainer: Identity, target: Callable[..., None], *args: Any) -> None:
    """What a worker runs: `target`, torch's own loop, under the eye of the watch."""
    _watch(trainer)
    target(*args)


def _watch(trainer: Identity) -> None:
    try:
        pidfd = os.pidfd_open(trainer.pid)
    except ProcessLookupError:
        os._exit(_EXIT_CODE)
    except OSError:
        return  # no such call here, or no descriptor left: torch's own watch must do
    if _start_ticks(trainer.pid) != trainer.start_ticks:
        os._exit(_EXIT_CODE)  # the number is another process's by now
    threading.Thread(target=_end_with, args=(pidfd,), name="holdfast-trainer-watch", daemon=True).start()


def _end_with(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os._exit(_EXIT_CODE)


def _start_ticks(pid: int) -> int | None:
    stat = read_stat(REAL, pid)
    return stat.start_ticks if stat else None
