"""Classifies one process: its verdict, the forecast of when limits are reached, and the confidence of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..._util.text import format_bytes, span_words
from ...procfs.descriptors import Kind
from .messages import find_advice, find_evidence, find_next_step, number_words, range_words
from .model import Diagnosis, FdProfile, Forecast, JobSample, Match, ResourceUse, Sample, Trend, Verdict, VerdictInput
from .signatures import are_most_at_once, are_most_of_growth, are_mostly_dead_pipes
from .trend import CONCLUSIVE_S, DAY_S, HOUR_S, LEAST_RISE, SHORT_S, find_job_trend, find_trend

# A new loader with 15 workers needs 62 descriptors, one poll over TLS needs three.
_FEW_LEFT = (8, 64)
_FEW_LEFT_PART = 0.01
# Growth may have begun after three quarters of the process's life, following imports and the first epoch.
_OF_LIFE = 4
_SOON_S = 600.0


def classify(
    *,
    fds: int | None,
    soft: float | None,
    hard: float | None,
    samples: Sequence[Sample] = (),
    jobs: Sequence[JobSample] = (),
    profile: FdProfile | None = None,
    first_profile: FdProfile | None = None,
    match: Match | None = None,
    cap: int | None = None,
    pipe_limit: int | None = None,
    uptime_s: float | None = None,
    pid: int | None = None,
) -> Diagnosis:
    """Returns the verdict on one process. Everything but the count and its limits may be missing.

    EXHAUSTED  at most a hundredth of the soft limit is left (at least 8, at most 64 count as nothing left)
    LEAK       the baseline grows and most of the growth is unusable (in the first ten minutes only dead pipes count),
               or it has grown for a day without a pause; or every job leaves some open; or, in one snapshot, the ends
               of 8 or more finished loaders, 256 or more other dead ends, or 1,024 or more connections that the peer
               has closed are half of all descriptors
    GROWING    the baseline grows (the interval of its slope excludes zero), and nothing else is known; or more than
               half of the descriptors, and at least 16, are dead pipes, but too few to prove a leak, and their number
               did not stay the same in a watch of a minute
    SETTLING   it grew, but more and more slowly: a slope of zero is possible now
    UNCLEAR    it rose in a watch of less than three minutes, in which a job or a cycle of a minute looks like growth:
               there it is GROWING only if the process may have grown at that rate for a quarter of its life, or would
               reach its limit within ten minutes
    OK         none of these

    `samples` and `jobs` are in time order. `profile` is of the last snapshot, `first_profile` of an earlier one, and
    `match` explains the growth between them. `pipe_limit` is the number of pipes above which the kernel shrinks this
    user's new pipes, None if it does not apply. `pid` is for the advice.
    """
    trend = find_trend(samples)
    if trend is not None and trend.grows and not _is_conclusive(trend, fds, soft, uptime_s):
        is_proven = are_most_of_growth(trend, profile, first_profile, match)
        trend = trend if is_proven else replace(trend, grows=False, unclear=True, low=min(trend.low, 0.0))
    inputs = VerdictInput(
        fds=fds,
        soft=soft,
        hard=hard,
        trend=trend,
        jobs=find_job_trend(jobs),
        profile=profile,
        first=first_profile,
        match=match,
        uptime_s=uptime_s,
        pid=pid,
    )
    verdict = _verdict(inputs)
    forecasts = find_forecasts(inputs, cap=cap, pipe_limit=pipe_limit)
    return Diagnosis(
        verdict=verdict,
        evidence=tuple(find_evidence(inputs, verdict, forecasts)),
        advice=find_advice(inputs, verdict),
        fds=fds,
        soft=soft,
        hard=hard,
        profile=profile,
        trend=inputs.trend,
        forecasts=forecasts,
        match=match,
        next_step=find_next_step(inputs, verdict),
    )


def _is_conclusive(trend: Trend, fds: int | None, soft: float | None, uptime_s: float | None) -> bool:
    """Whether a cycle is ruled out: by a watch of three periods, or because growth at this rate since the start fits
    the present count. Growth that is about to reach the limit is conclusive at once."""
    if trend.span_s >= CONCLUSIVE_S:
        return True
    if fds is None:
        return False
    if soft is not None and trend.low / HOUR_S * _SOON_S >= soft - fds:
        return True
    if uptime_s is None:
        return False
    return trend.per_hour / HOUR_S * uptime_s <= _OF_LIFE * fds


def _verdict(inputs: VerdictInput) -> Verdict:
    if is_exhausted(inputs.fds, inputs.soft):
        return Verdict.EXHAUSTED
    if _leaks(inputs):
        return Verdict.LEAK
    if inputs.growing or (inputs.profile is not None and are_mostly_dead_pipes(inputs.profile) and not inputs.flat):
        return Verdict.GROWING
    if inputs.trend is not None and inputs.trend.settles:
        return Verdict.SETTLING
    return Verdict.UNCLEAR if inputs.trend is not None and inputs.trend.unclear else Verdict.OK


def is_exhausted(fds: int | None, soft: float | None) -> bool:
    """Whether so few are left that ordinary work fails; for very small limits, at most a quarter."""
    if fds is None or soft is None or soft == math.inf:
        return False
    least, maximum = _FEW_LEFT
    return soft - fds <= min(max(least, _FEW_LEFT_PART * soft), maximum, soft / 4)


def _leaks(inputs: VerdictInput) -> bool:
    if inputs.jobs is not None and inputs.jobs.grows:
        return True
    if inputs.profile is not None and are_most_at_once(inputs.profile):
        return True
    trend = inputs.growing
    if trend is None:
        return False
    return trend.steady or are_most_of_growth(trend, inputs.profile, inputs.first, inputs.match)


# ---- forecasts


def find_forecasts(
    inputs: VerdictInput, *, cap: int | None = None, pipe_limit: int | None = None
) -> tuple[Forecast, ...]:
    """Forecasts when the soft limit, a guard's cap and the user's pipe limit are reached, as far as they apply.

    Empty where the baseline does not grow. Pipes of the user's other processes are not counted, so the pipe limit may
    be reached earlier.
    """
    trend = inputs.growing
    if trend is None or inputs.fds is None:
        return ()
    found = []
    if inputs.soft is not None and inputs.soft != math.inf:
        found.append(_forecast("soft limit", int(inputs.soft), inputs.fds, trend))
    if cap is not None:
        found.append(_forecast("guard cap", cap, inputs.fds, trend))
    if pipe_limit is not None and inputs.profile is not None:
        share = _pipe_share(inputs.profile, inputs.first)
        if share > 0:
            found.append(_forecast("pipe shrink", pipe_limit, count_pipes(inputs.profile), trend, share))
    return tuple(found)


def _forecast(line: str, at: int, now: int, trend: Trend, share: float = 1.0) -> Forecast:
    return Forecast(line=line, at=at, eta_s=eta_s(at - now, trend.low * share, trend.high * share))


def eta_s(headroom: float, low_per_hour: float, high_per_hour: float) -> tuple[float, float]:
    """Returns the seconds until `headroom` is used up: earliest and latest."""
    if headroom <= 0:
        return 0.0, 0.0
    earliest, latest = (3600 * headroom / rate if rate > 0 else math.inf for rate in (high_per_hour, low_per_hour))
    return earliest, latest


def count_pipes(profile: FdProfile) -> int:
    """Counts pipes, not descriptors: of those within the process both ends are here, of the others one."""
    return max(0, profile.kinds.get(Kind.PIPE, 0) - profile.self_pairs)


def _pipe_share(profile: FdProfile, first: FdProfile | None) -> float:
    """Returns new pipes per new descriptor, or pipes per descriptor where the growth is unknown."""
    pipes, fds = count_pipes(profile), profile.fds
    if first is not None and fds > first.fds:
        pipes, fds = pipes - count_pipes(first), fds - first.fds
    return max(0.0, pipes / fds) if fds else 0.0


# ---- confidence

LEAST_S = 60.0
_WEEK_S = 7 * DAY_S
# A rate that is known within a factor of two is enough to act on.
_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Confidence:
    """`conclusive`: a longer watch would hardly change the verdict. `sentence` says how sure it is and why."""

    conclusive: bool
    sentence: str


def confidence_of(found: Diagnosis) -> Confidence:
    """Rates the verdict on a process that was watched.

    LEAK and EXHAUSTED are conclusive. Growth is when its rate is known within a factor of two; the absence of growth
    is when the fastest rate in the interval does not reach the limit within a week. SETTLING needs a longer watch.
    """
    if found.verdict in (Verdict.LEAK, Verdict.EXHAUSTED):
        return Confidence(True, "certain: the evidence is conclusive, a longer watch would not change the verdict")
    trend = found.trend if found.decisive is None else found.decisive.trend
    if trend is None:
        return Confidence(False, f"not sure: the watch was too short, {span_words(LEAST_S)} is the minimum")
    if trend.grows:
        return _growth(trend) if found.decisive is None else _resource_growth(found.decisive, trend)
    if trend.settles:
        longer = span_words(min(max(2 * trend.span_s, LEAST_S), DAY_S))
        return Confidence(False, f"not sure whether it will end: a watch of {longer} would settle it")
    if trend.unclear:
        amount = (
            format_bytes(int(trend.rise)) if found.decisive and found.decisive.in_bytes else number_words(trend.rise)
        )
        rise = f"it rose by {amount} in {span_words(trend.span_s)}"
        text = f"not sure: {rise}, which a job or a leak would explain"
        return Confidence(False, f"{text}; a watch of {span_words(CONCLUSIVE_S)} would settle it")
    return _absence(trend, _headroom(found))


def _growth(trend: Trend) -> Confidence:
    if trend.span_s < LEAST_S or trend.high > _FACTOR * trend.low:
        longer = span_words(_span_for(trend, (trend.high - trend.low) / trend.low))
        return Confidence(False, f"sure (95 %) that it grows, not how fast: a watch of {longer} would settle it")
    sure = f"sure (95 %) that it grows, by {range_words(trend.low, trend.high)} an hour"
    if trend.span_s < SHORT_S:
        return Confidence(
            True,
            f"{sure}; a running job or a daily cycle may explain it: a watch of {span_words(SHORT_S)} rules out the "
            f"first, of {span_words(DAY_S)} the second",
        )
    return Confidence(True, f"{sure}; a daily cycle may explain it: a watch of {span_words(DAY_S)} would settle it")


def _resource_growth(use: ResourceUse, trend: Trend) -> Confidence:
    is_known = trend.span_s >= LEAST_S and trend.high <= _FACTOR * trend.low
    longer = (
        "" if is_known else f", not how fast: a watch of {span_words(max(CONCLUSIVE_S, 2 * trend.span_s))} would tell"
    )
    return Confidence(is_known, f"sure (95 %) that its {use.noun} grow{'s' if use.in_bytes else ''}{longer}")


def _absence(trend: Trend, headroom: float) -> Confidence:
    """A leak is detected once it has added more than `LEAST_RISE`."""
    unseen_per_hour = (LEAST_RISE + 1) * HOUR_S / trend.span_s
    fastest = max(trend.high, unseen_per_hour)
    if trend.span_s >= LEAST_S and fastest * _WEEK_S / HOUR_S <= headroom:
        return Confidence(
            True,
            f"sure (95 %) that it grows by at most {number_words(24 * fastest)} a day: its limit is not reached "
            "within a week",
        )
    needed_s = _WEEK_S * (LEAST_RISE + 1) / headroom if headroom > 0 else DAY_S
    if trend.high > unseen_per_hour and headroom > 0:
        needed_s = max(needed_s, _span_for(trend, trend.high * _WEEK_S / HOUR_S / headroom))
    longer = span_words(min(max(needed_s, LEAST_S, _FACTOR * trend.span_s), DAY_S))
    return Confidence(
        False,
        f"not sure: a leak of {number_words(24 * fastest)} a day could go unnoticed in {span_words(trend.span_s)}; a "
        f"watch of {longer} would show whether its limit is reached within a week",
    )


def _span_for(trend: Trend, times_wider: float) -> float:
    """Returns the span for an interval that many times narrower: its width falls with the span to the power 1.5."""
    return min(max(LEAST_S, trend.span_s * max(_FACTOR, math.pow(times_wider, 2 / 3))), DAY_S)


def _headroom(found: Diagnosis) -> float:
    if found.soft is None or found.fds is None:
        return math.inf
    return max(0.0, found.soft - found.fds)
