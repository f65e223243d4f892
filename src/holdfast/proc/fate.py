"""What became of the far end of a pipe or of a socket."""

from __future__ import annotations

from enum import StrEnum


class Fate(StrEnum):
    SELF = "self"  # both ends here, and in no other process that was looked at
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
