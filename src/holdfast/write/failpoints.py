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
# Of the central writer: of its server, of the process that makes parts, and of a producer.
SERVER_NAMES = (
    "server-epoch-taken",
    "server-recovered",
    "server-segment-made",
    "server-frame-written",
    "server-unsynced",
    "server-acked",
    "server-segment-closed",
    "server-marks-written",
    "server-segment-deleted",
)
SEALER_NAMES = ("sealer-begun", "sealer-half", *NAMES[3:10], "sealer-done")
PRODUCER_NAMES = ("producer-connected", "producer-half-sent", "producer-sent", "producer-acked")

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
