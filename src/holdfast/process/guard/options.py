"""The options of a Guard, checked once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..._util.text import one_line, time_argument
from .caps import CHILDREN, FDS, RSS, THREADS, Amount, Cap, CappedResource

Time = str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """What the caller asked for, with all times in seconds. ValueError: a value is not what it must be."""

    name: str
    caps: Mapping[CappedResource, Cap]
    max_jobs: int | None
    max_age_s: float
    jitter: float
    eta_s: float | None
    progress_s: float | None
    drain_s: float
    reserve_fds: int
    exit_code: int
    log: str | os.PathLike[str] | None
    every_s: float

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"expected name= as text, got {self.name!r}")
        if not isinstance(self.jitter, (int, float)) or not 0 <= self.jitter < 1:
            raise ValueError(f"expected jitter= from 0 to below 1, got {self.jitter!r}")
        if self.max_jobs is not None and not (_is_int(self.max_jobs) and self.max_jobs >= 1):
            raise ValueError(f"expected max_jobs= of at least 1, got {self.max_jobs!r}")
        if not (_is_int(self.reserve_fds) and self.reserve_fds >= 0):
            raise ValueError(f"expected reserve_fds= of at least 0, got {self.reserve_fds!r}")
        if not (_is_int(self.exit_code) and 0 <= self.exit_code <= 255):
            raise ValueError(f"expected exit_code= from 0 to 255, got {self.exit_code!r}")
        if self.log is not None and not isinstance(self.log, (str, os.PathLike)):
            raise ValueError(f"expected log= as the path of a file, got {self.log!r}")
        object.__setattr__(self, "name", one_line(self.name))

    @property
    def counts_tree(self) -> bool:
        """Whether a cap applies to descendants, so that they must be scanned."""
        return CHILDREN in self.caps or (RSS in self.caps and self.caps[RSS].tree)


def check_caps(
    fds: Cap | Amount, rss: Cap | Amount, threads: Cap | Amount, children: Cap | Amount
) -> dict[CappedResource, Cap]:
    """Returns the caps that are given, by resource."""
    given = ((FDS, fds), (RSS, rss), (THREADS, threads), (CHILDREN, children))
    return {what: cap for what, value in given if (cap := what.check(value)) is not None}


def seconds(value: Time, name: str) -> float | None:
    """Returns a time in seconds; None stays None."""
    return None if value is None else time_argument(value, name, zero=False)


def seconds_or_never(value: Time, name: str) -> float:
    return math.inf if (found := seconds(value, name)) is None else found


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
