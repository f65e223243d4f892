"""Named places where a test may have a process killed."""

from __future__ import annotations

from .._base.failpoint import VARIABLE, failpoint

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
