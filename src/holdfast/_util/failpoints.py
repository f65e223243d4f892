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


# Named places where a test may have a process killed.

__all__ = ["NAMES", "PRODUCER_NAMES", "SEALER_NAMES", "SERVER_NAMES", "VARIABLE", "failpoint"]

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


# Named places where a test may have a merge killed.

__all__ = ["MERGE_CHILD_NAMES", "MERGE_PARENT_NAMES", "MERGE_REPEATED_NAMES", "VARIABLE", "failpoint"]

MERGE_CHILD_NAMES = ("merge-surveyed", "merge-packed", "merge-made", "merge-filled", "merge-proven")
MERGE_PARENT_NAMES = ("merge-began", "merge-result", "merge-linked", "merge-cleaned")
MERGE_REPEATED_NAMES = ("merge-packing", "merge-filling")
