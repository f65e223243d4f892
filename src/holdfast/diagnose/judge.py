"""From everything that is known of one process to a verdict with its evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from .advice import find_advice
from .case import Case
from .dead import are_most_at_once, are_most_of_growth, are_mostly_dead_pipes
from .evidence import find_evidence
from .facts import Diagnosis, JobSample, Match, Sample, Structure, Trend, Verdict
from .forecast import find_forecasts
from .jobs import find_job_trend
from .trend import HOUR_S, TOLD_S, find_trend

# A new loader with 15 workers needs 62 descriptors, one poll over TLS needs three.
_FEW_LEFT = (8, 64)
_FEW_LEFT_PART = 0.01
# It may have begun after three quarters of a process's life: behind imports and the first epoch.
_OF_LIFE = 4
_SOON_S = 600.0


def judge(
    *,
    fds: int | None,
    soft: float | None,
    hard: float | None,
    samples: Sequence[Sample] = (),
    jobs: Sequence[JobSample] = (),
    structure: Structure | None = None,
    first_structure: Structure | None = None,
    match: Match | None = None,
    cap: int | None = None,
    pipe_limit: int | None = None,
    uptime_s: float | None = None,
    pid: int | None = None,
) -> Diagnosis:
    """The verdict on one process. Everything but the count and its limits may be missing.

    EXHAUSTED  at most a hundredth of the soft limit is left (at least 8, at most 64 count as nothing left)
    LEAK       the floor grows, and most of what grew is of no use to anyone (below ten minutes: pipes whose far end is
               gone), or it has grown for a day without a pause;
               or every job leaves some behind; or, in one look, the ends of 8 or more dead loaders, 256 or more
               other dead ends, or 1,024 or more connections that the other side has closed, are half of all
    GROWING    the floor grows (the interval of its slope excludes zero), and that is all that is known; or more than
               half of the descriptors, and at least 16, are dead pipes, too few of them to prove a leak
    SETTLING   it grew, but ever less: zero is a possible pace by now
    UNCLEAR    it rose, in a watch of less than three minutes, in which a job or a rhythm of a minute looks like growth:
               there it is GROWING only if the process may have grown at that pace for a quarter of its life, or would
               reach its limit within ten minutes
    OK         none of these

    `samples` and `jobs` are in the order of time. `structure` is the last full look and `first_structure` an earlier
    one; `match` explains what grew between them. `pipe_limit` is how many pipes this user may have before new ones
    shrink, None for a user who is not held to it. `pid` is for the advice.
    """
    trend = find_trend(samples)
    if trend is not None and trend.grows and not _is_told(trend, fds, soft, uptime_s):
        is_proven = are_most_of_growth(trend, structure, first_structure, match)
        trend = trend if is_proven else replace(trend, grows=False, unclear=True, low=min(trend.low, 0.0))
    case = Case(
        fds=fds,
        soft=soft,
        hard=hard,
        trend=trend,
        jobs=find_job_trend(jobs),
        structure=structure,
        first=first_structure,
        match=match,
        uptime_s=uptime_s,
        pid=pid,
    )
    verdict = _verdict(case)
    forecasts = find_forecasts(case, cap=cap, pipe_limit=pipe_limit)
    return Diagnosis(
        verdict=verdict,
        evidence=tuple(find_evidence(case, verdict, forecasts)),
        advice=find_advice(case, verdict),
        fds=fds,
        soft=soft,
        hard=hard,
        structure=structure,
        trend=case.trend,
        forecasts=forecasts,
        match=match,
    )


def _is_told(trend: Trend, fds: int | None, soft: float | None, uptime_s: float | None) -> bool:
    """Whether a rhythm is ruled out: by a watch of three of its turns, or because growth since the start would have
    made about as many descriptors as there are. What is about to reach its limit is told at once."""
    if trend.span_s >= TOLD_S:
        return True
    if fds is None:
        return False
    if soft is not None and trend.low / HOUR_S * _SOON_S >= soft - fds:
        return True
    if uptime_s is None:
        return False
    return trend.per_hour / HOUR_S * uptime_s <= _OF_LIFE * fds


def _verdict(case: Case) -> Verdict:
    if is_exhausted(case.fds, case.soft):
        return Verdict.EXHAUSTED
    if _leaks(case):
        return Verdict.LEAK
    if case.growing or (case.structure is not None and are_mostly_dead_pipes(case.structure)):
        return Verdict.GROWING
    if case.trend is not None and case.trend.settles:
        return Verdict.SETTLING
    return Verdict.UNCLEAR if case.trend is not None and case.trend.unclear else Verdict.OK


def is_exhausted(fds: int | None, soft: float | None) -> bool:
    """Whether so little is left that ordinary work fails; of a very small limit a quarter is not little."""
    if fds is None or soft is None or soft == math.inf:
        return False
    least, most = _FEW_LEFT
    return soft - fds <= min(max(least, _FEW_LEFT_PART * soft), most, soft / 4)


def _leaks(case: Case) -> bool:
    if case.jobs is not None and case.jobs.grows:
        return True
    if case.structure is not None and are_most_at_once(case.structure):
        return True
    trend = case.growing
    if trend is None:
        return False
    return trend.steady or are_most_of_growth(trend, case.structure, case.first, case.match)
