"""Named places where a test may have a merge killed: HOLDFAST_FAILPOINT=name, or name:3 for the third time."""

from __future__ import annotations

import os
import signal

VARIABLE = "HOLDFAST_FAILPOINT"
CHILD = ("merge-surveyed", "merge-packed", "merge-made", "merge-filled", "merge-proven")
PARENT = ("merge-began", "merge-result", "merge-linked", "merge-cleaned")
REPEATED = ("merge-packing", "merge-filling")

_passed: dict[str, int] = {}


def failpoint(name: str, *, child: bool = False) -> None:
    """In the child it is the caller that is killed, and the child goes with it."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    at, _, times = wanted.partition(":")
    if at == name:
        _passed[name] = _passed.get(name, 0) + 1
        if _passed[name] >= int(times or 1):
            os.kill(os.getppid() if child else os.getpid(), signal.SIGKILL)
            signal.pause()
