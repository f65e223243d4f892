"""When the lines ahead will be crossed, if it goes on like this."""

from __future__ import annotations

import math

from ..proc.descriptors import Kind
from .case import Case
from .facts import Forecast, Structure, Trend

# A new pipe takes 16 pages of its user's share.
PIPE_PAGES = 16


def find_forecasts(case: Case, *, cap: int | None = None, pipe_limit: int | None = None) -> tuple[Forecast, ...]:
    """To the soft limit, to a guard's cap, and to where a user's new pipes shrink; lines that do not apply left out.

    None at all where the floor does not grow. `pipe_limit` is a number of pipes, for a user whom the kernel holds to
    it. Other pipes of this user are not known here: it comes no later than this.
    """
    trend = case.growing
    if trend is None or case.fds is None:
        return ()
    found = []
    if case.soft is not None and case.soft != math.inf:
        found.append(_forecast("soft limit", int(case.soft), case.fds, trend))
    if cap is not None:
        found.append(_forecast("guard cap", cap, case.fds, trend))
    if pipe_limit is not None and case.structure is not None:
        share = _pipe_share(case.structure, case.first)
        if share > 0:
            found.append(_forecast("pipe shrink", pipe_limit, count_pipes(case.structure), trend, share))
    return tuple(found)


def _forecast(line: str, at: int, now: int, trend: Trend, share: float = 1.0) -> Forecast:
    return Forecast(line=line, at=at, eta_s=eta_s(at - now, trend.low * share, trend.high * share))


def eta_s(room: float, low_per_hour: float, high_per_hour: float) -> tuple[float, float]:
    """Seconds until `room` is used up: at the earliest and at the latest."""
    if room <= 0:
        return 0.0, 0.0
    earliest, latest = (3600 * room / pace if pace > 0 else math.inf for pace in (high_per_hour, low_per_hour))
    return earliest, latest


def count_pipes(structure: Structure) -> int:
    """Pipes, not descriptors: of a self-pair both ends are here, of the others one."""
    return max(0, structure.kinds.get(Kind.PIPE, 0) - structure.self_pairs)


def _pipe_share(structure: Structure, first: Structure | None) -> float:
    """New pipes per new descriptor; per descriptor at all, where what grew is not known."""
    pipes, fds = count_pipes(structure), structure.fds
    if first is not None and fds > first.fds:
        pipes, fds = pipes - count_pipes(first), fds - first.fds
    return max(0.0, pipes / fds) if fds else 0.0
