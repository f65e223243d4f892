"""Everything that is known of one process, gathered for a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from .facts import Match, Structure, Trend
from .jobs import JobTrend


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """None is unknown. `structure` is the last full look, `first` an earlier one; `match` explains what grew."""

    fds: int | None
    soft: float | None
    hard: float | None
    trend: Trend | None = None
    jobs: JobTrend | None = None
    structure: Structure | None = None
    first: Structure | None = None
    match: Match | None = None
    uptime_s: float | None = None
    pid: int | None = None

    @property
    def growing(self) -> Trend | None:
        """The trend, if there is one that grows."""
        return self.trend if self.trend is not None and self.trend.grows else None
