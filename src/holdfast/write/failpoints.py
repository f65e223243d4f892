"""Named places where a process kills itself when a test asks for it: HOLDFAST_FAILPOINT=name, or name:3 for the third
time it gets there."""

from __future__ import annotations

import os
import signal

VARIABLE = "HOLDFAST_FAILPOINT"
NAMES = (
    "workspace-made",
    "file-made",
    "appended",
    "settled",
    "file-synced",
    "data-linked",
    "record-written",
    "claimed",
    "committed",
    "parts-synced",
    "cleaned",
)

_passed: dict[str, int] = {}


def failpoint(name: str) -> None:
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    at, _, times = wanted.partition(":")
    if at == name:
        _passed[name] = _passed.get(name, 0) + 1
        if _passed[name] >= int(times or 1):
            os.kill(os.getpid(), signal.SIGKILL)
