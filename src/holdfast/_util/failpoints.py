"""Failpoints: named places where tests kill a process, with HOLDFAST_FAILPOINT=name, or name:3 for the third pass.

All names are listed here, by the process that passes them; the soak and kill tests go through these lists.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "HOLDFAST_FAILPOINT"

_passed: dict[str, int] = {}


def failpoint(name: str, *, kill_parent: bool = False) -> None:
    """Kills this process, or its parent, if the test asked for this place."""
    chosen = os.environ.get(VARIABLE)
    if chosen is None:
        return
    at, _, times = chosen.partition(":")
    if at == name:
        _passed[name] = _passed.get(name, 0) + 1
        if _passed[name] >= int(times or 1):
            os.kill(os.getppid() if kill_parent else os.getpid(), signal.SIGKILL)
            signal.pause()


# A part's writer.
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
# The central writer: its server, the sealer that turns segments into parts, and a producer.
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
# A merge of HDF5 files: its child process, its parent, and places that are passed once a batch.
MERGE_CHILD_NAMES = ("merge-surveyed", "merge-made", "merge-filled", "merge-proven")
MERGE_PARENT_NAMES = ("merge-began", "merge-result", "merge-linked")
MERGE_REPEATED_NAMES = ("merge-building", "merge-filling")
