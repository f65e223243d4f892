"""How sure a verdict is, and how long a watch would settle it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .facts import Diagnosis, Trend, Verdict
from .floors import SHORT_S
from .trend import DAY_S, HOUR_S, LEAST_RISE, TOLD_S
from .words import number_words, range_words, span_words

LEAST_S = 60.0
_WEEK_S = 7 * DAY_S
# A pace that is known within a factor of two is enough to act on.
_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Sureness:
    """`told`: watching on would hardly change the verdict. `sentence` says how sure it is, and what would settle it."""

    told: bool
    sentence: str


def sureness_of(found: Diagnosis) -> Sureness:
    """Weighs the verdict on a process that was watched.

    A leak and an empty table are proven. Growth is told when its pace is known within a factor of two; the absence of
    growth when at the fastest pace in the interval the limit is not reached within a week. What rises ever less is told
    by a longer watch alone.
    """
    if found.verdict in (Verdict.LEAK, Verdict.EXHAUSTED):
        return Sureness(True, "certain: what was seen proves it, a longer watch would not change the verdict")
    trend = found.trend
    if trend is None:
        return Sureness(False, f"not sure: this was too short to tell, a watch of {span_words(LEAST_S)} is the least")
    if trend.grows:
        return _growth(trend)
    if trend.settles:
        longer = span_words(min(max(2 * trend.span_s, LEAST_S), DAY_S))
        return Sureness(False, f"not sure whether it will end: a watch of {longer} would settle it")
    if trend.unclear:
        text = f"not sure: it rose by {number_words(trend.rise)} in {span_words(trend.span_s)}, as in a job or a leak"
        return Sureness(False, f"{text}; a watch of {span_words(TOLD_S)} would settle it")
    return _absence(trend, _room(found))


def _growth(trend: Trend) -> Sureness:
    if trend.span_s < LEAST_S or trend.high > _FACTOR * trend.low:
        longer = span_words(_span_for(trend, (trend.high - trend.low) / trend.low))
        return Sureness(False, f"sure (95 %) that it grows, not how fast: a watch of {longer} would settle it")
    said = f"sure (95 %) that it grows, by {range_words(trend.low, trend.high)} an hour"
    if trend.span_s < SHORT_S:
        return Sureness(
            True,
            f"{said}; a job under way or a daily rhythm may explain it: a watch of {span_words(SHORT_S)} settles the "
            f"one, of {span_words(DAY_S)} the other",
        )
    return Sureness(True, f"{said}; a daily rhythm may explain it: a watch of {span_words(DAY_S)} would settle it")


def _absence(trend: Trend, room: float) -> Sureness:
    """A leak shows once it has added more than `LEAST_RISE`."""
    unseen_per_hour = (LEAST_RISE + 1) * HOUR_S / trend.span_s
    fastest = max(trend.high, unseen_per_hour)
    if trend.span_s >= LEAST_S and fastest * _WEEK_S / HOUR_S <= room:
        return Sureness(
            True,
            f"sure (95 %) that it grows by at most {number_words(24 * fastest)} a day: its limit is not reached "
            "within a week",
        )
    needed_s = _WEEK_S * (LEAST_RISE + 1) / room if room > 0 else DAY_S
    if trend.high > unseen_per_hour and room > 0:
        needed_s = max(needed_s, _span_for(trend, trend.high * _WEEK_S / HOUR_S / room))
    longer = span_words(min(max(needed_s, LEAST_S, _FACTOR * trend.span_s), DAY_S))
    return Sureness(
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
