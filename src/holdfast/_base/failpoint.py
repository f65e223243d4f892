"""Named places where a process is killed when a test asks for it: HOLDFAST_FAILPOINT=name, or name:3 for the third time
it gets there."""

from __future__ import annotations

import os
import signal

VARIABLE = "HOLDFAST_FAILPOINT"

_passed: dict[str, int] = {}


def failpoint(name: str, *, kill_parent: bool = False) -> None:
    """`kill_parent`: of a child that goes with its caller."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    at, _, times = wanted.partition(":")
    if at == name:
        _passed[name] = _passed.get(name, 0) + 1
        if _passed[name] >= int(times or 1):
            os.kill(os.getppid() if kill_parent else os.getpid(), signal.SIGKILL)
            signal.pause()
