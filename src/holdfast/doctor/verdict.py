"""When the lines ahead will be crossed, if it goes on like this."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..procfs.descriptors import Kind
from .fd_profile import VerdictInput
from .messages import find_advice, find_evidence, number_words, range_words, span_words
from .model import Diagnosis, FdProfile, Forecast, JobSample, Match, Sample, Trend, Verdict
from .signatures import are_most_at_once, are_most_of_growth, are_mostly_dead_pipes
from .trend import CONCLUSIVE_S, DAY_S, HOUR_S, LEAST_RISE, SHORT_S, find_job_trend, find_trend


def find_forecasts(
    inputs: VerdictInput, *, cap: int | None = None, pipe_limit: int | None = None
) -> tuple[Forecast, ...]:
    """To the soft limit, to a guard's cap, and to where a user's new pipes shrink; lines that do not apply left out.

    None at all where the floor does not grow. `pipe_limit` is a number of pipes, for a user whom the kernel holds to
    it. Other pipes of this user are not known here: it comes no later than this.
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


def eta_s(room: float, low_per_hour: float, high_per_hour: float) -> tuple[float, float]:
    """Seconds until `room` is used up: at the earliest and at the latest."""
    if room <= 0:
        return 0.0, 0.0
    earliest, latest = (3600 * room / pace if pace > 0 else math.inf for pace in (high_per_hour, low_per_hour))
    return earliest, latest


def count_pipes(profile: FdProfile) -> int:
    """Pipes, not descriptors: of a self-pair both ends are here, of the others one."""
    return max(0, profile.kinds.get(Kind.PIPE, 0) - profile.self_pairs)


def _pipe_share(profile: FdProfile, first: FdProfile | None) -> float:
    """New pipes per new descriptor; per descriptor at all, where what grew is not known."""
    pipes, fds = count_pipes(profile), profile.fds
    if first is not None and fds > first.fds:
        pipes, fds = pipes - count_pipes(first), fds - first.fds
    return max(0.0, pipes / fds) if fds else 0.0


# From everything that is known of one process to a verdict with its evidence.

# A new loader with 15 workers needs 62 descriptors, one poll over TLS needs three.
_FEW_LEFT = (8, 64)
_FEW_LEFT_PART = 0.01
# It may have begun after three quarters of a process's life: behind imports and the first epoch.
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
    )


def _is_conclusive(trend: Trend, fds: int | None, soft: float | None, uptime_s: float | None) -> bool:
    """Whether a rhythm is ruled out: by a watch of three of its turns, or because growth since the start would have
    made about as many descriptors as there are. What is about to reach its limit is told at once."""
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
    if inputs.growing or (inputs.profile is not None and are_mostly_dead_pipes(inputs.profile)):
        return Verdict.GROWING
    if inputs.trend is not None and inputs.trend.settles:
        return Verdict.SETTLING
    return Verdict.UNCLEAR if inputs.trend is not None and inputs.trend.unclear else Verdict.OK


def is_exhausted(fds: int | None, soft: float | None) -> bool:
    """Whether so little is left that ordinary work fails; of a very small limit a quarter is not little."""
    if fds is None or soft is None or soft == math.inf:
        return False
    least, most = _FEW_LEFT
    return soft - fds <= min(max(least, _FEW_LEFT_PART * soft), most, soft / 4)


def _leaks(inputs: VerdictInput) -> bool:
    if inputs.jobs is not None and inputs.jobs.grows:
        return True
    if inputs.profile is not None and are_most_at_once(inputs.profile):
        return True
    trend = inputs.growing
    if trend is None:
        return False
    return trend.steady or are_most_of_growth(trend, inputs.profile, inputs.first, inputs.match)


# How sure a verdict is, and how long a watch would settle it.

LEAST_S = 60.0
_WEEK_S = 7 * DAY_S
# A pace that is known within a factor of two is enough to act on.
_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Confidence:
    """`told`: watching on would hardly change the verdict. `sentence` says how sure it is, and what would settle it."""

    conclusive: bool
    sentence: str


def confidence_of(found: Diagnosis) -> Confidence:
    """Weighs the verdict on a process that was watched.

    A leak and an empty table are proven. Growth is told when its pace is known within a factor of two; the absence of
    growth when at the fastest pace in the interval the limit is not reached within a week. What rises ever less is told
    by a longer watch alone.
    """
    if found.verdict in (Verdict.LEAK, Verdict.EXHAUSTED):
        return Confidence(True, "certain: what was seen proves it, a longer watch would not change the verdict")
    trend = found.trend
    if trend is None:
        return Confidence(False, f"not sure: this was too short to tell, a watch of {span_words(LEAST_S)} is the least")
    if trend.grows:
        return _growth(trend)
    if trend.settles:
        longer = span_words(min(max(2 * trend.span_s, LEAST_S), DAY_S))
        return Confidence(False, f"not sure whether it will end: a watch of {longer} would settle it")
    if trend.unclear:
        text = f"not sure: it rose by {number_words(trend.rise)} in {span_words(trend.span_s)}, as in a job or a leak"
        return Confidence(False, f"{text}; a watch of {span_words(CONCLUSIVE_S)} would settle it")
    return _absence(trend, _room(found))


def _growth(trend: Trend) -> Confidence:
    if trend.span_s < LEAST_S or trend.high > _FACTOR * trend.low:
        longer = span_words(_span_for(trend, (trend.high - trend.low) / trend.low))
        return Confidence(False, f"sure (95 %) that it grows, not how fast: a watch of {longer} would settle it")
    said = f"sure (95 %) that it grows, by {range_words(trend.low, trend.high)} an hour"
    if trend.span_s < SHORT_S:
        return Confidence(
            True,
            f"{said}; a job under way or a daily rhythm may explain it: a watch of {span_words(SHORT_S)} settles the "
            f"one, of {span_words(DAY_S)} the other",
        )
    return Confidence(True, f"{said}; a daily rhythm may explain it: a watch of {span_words(DAY_S)} would settle it")


def _absence(trend: Trend, room: float) -> Confidence:
    """A leak shows once it has added more than `LEAST_RISE`."""
    unseen_per_hour = (LEAST_RISE + 1) * HOUR_S / trend.span_s
    fastest = max(trend.high, unseen_per_hour)
    if trend.span_s >= LEAST_S and fastest * _WEEK_S / HOUR_S <= room:
        return Confidence(
            True,
            f"sure (95 %) that it grows by at most {number_words(24 * fastest)} a day: its limit is not reached "
            "within a week",
        )
    needed_s = _WEEK_S * (LEAST_RISE + 1) / room if room > 0 else DAY_S
    if trend.high > unseen_per_hour and room > 0:
        needed_s = max(needed_s, _span_for(trend, trend.high * _WEEK_S / HOUR_S / room))
    longer = span_words(min(max(needed_s, LEAST_S, _FACTOR * trend.span_s), DAY_S))
    return Confidence(
        False,
        f"not sure: a leak of {number_words(24 * fastest)} a day may hide in {span_words(trend.span_s)}; a watch of "
        f"{longer} would settle whether its limit is reached within a week",
    )


def _span_for(trend: Trend, times_wider: float) -> float:
    """The span after which the interval is that many times narrower: its width falls with the span to the power 1.5."""
    return min(max(LEAST_S, trend.span_s * max(_FACTOR, math.pow(times_wider, 2 / 3))), DAY_S)


def _room(found: Diagnosis) -> float:
    if found.soft is None or found.fds is None:
        return math.inf
    return max(0.0, found.soft - found.fds)
