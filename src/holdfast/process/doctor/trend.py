"""Decides whether a descriptor count grows, and how fast.

The samples are reduced to a baseline, the minimum of each bin: work in progress comes and goes above it, leaked
descriptors raise it. The slope of the baseline is the median over all pairs of bins (Theil–Sen), which outliers do not
affect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto
from itertools import pairwise
from statistics import median, variance
from typing import NamedTuple

from .model import JobSample, JobTrend, Sample, Trend

_Z_95 = 1.959964


class Slope(NamedTuple):
    """`low` and `high` bound the 95 % interval. `spread` is the median distance of the points from the line."""

    value: float
    low: float
    high: float
    spread: float


def find_slope(at: Sequence[float], values: Sequence[float]) -> Slope:
    """Fits a line to at least two points, in rising order of `at`.

    The interval is taken from the sorted slopes of all pairs by Kendall's variance, without correction for ties, which
    makes it wider. It assumes independent points: a daily cycle makes it too narrow.
    """
    points = list(zip(at, values, strict=True))
    n = len(points)
    if n < 2:
        raise ValueError(f"expected at least two points, got {n}")
    slopes = sorted([(y - b) / (x - a) for i, (a, b) in enumerate(points) for x, y in points[i + 1 :]])
    reach = _Z_95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, round((len(slopes) - reach) / 2) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + reach) / 2))
    value = _middle(slopes)
    base = median([y - value * x for x, y in points])
    return Slope(value, slopes[low], slopes[high], median([abs(y - value * x - base) for x, y in points]))


def with_drift(slope: Slope, at: Sequence[float], values: Sequence[float]) -> Slope:
    """Widens the interval for drift: a random walk, like the count of busy workers, moves far without a trend.

    The drift is estimated from the variance of differences over a quarter of the points: independent noise makes these
    no larger than those between neighbours, a random walk makes them grow with the square root of the distance.
    """
    lag = max(1, len(values) // 4)
    steps = [after - before for before, after in zip(values, values[lag:], strict=False)]
    per_step = variance(steps) / lag
    reach = _Z_95 * math.sqrt(per_step * (len(values) - 1)) / (at[-1] - at[0])
    return slope._replace(low=min(slope.low, slope.value - reach), high=max(slope.high, slope.value + reach))


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


# ---- baseline

# Longer than most jobs, so that each bin holds a moment between two of them.
BIN_S = 900.0
# Below this span, bins of 15 minutes are too few for a trend.
SHORT_S = 7200.0
SHORT_BINS = 12
# A trend compares all pairs of bins: 200 bins are 19,900 pairs, which takes some ten milliseconds.
MAX_BINS = 200


class Baseline(NamedTuple):
    """The lowest count in the bin around `at_s`."""

    at_s: float
    fds: int


def bin_width(span_s: float) -> float:
    """Returns the width of a bin in seconds for samples over this span."""
    return span_s / SHORT_BINS if span_s < SHORT_S else max(BIN_S, span_s / MAX_BINS)


def find_baselines(samples: Sequence[Sample], bin_s: float | None = None) -> list[Baseline]:
    """Returns the minimum of each bin, oldest first, for samples in time order. Bins without samples are left out.

    All bins have the full width, counted back from the last sample: a shorter last bin could miss the quiet moment and
    would be too high.
    """
    if len(samples) < 2:
        return []
    end = samples[-1].at_s
    span = end - samples[0].at_s
    width = bin_width(span) if bin_s is None else bin_s
    if span <= 0 or width <= 0:
        return []
    maximum = round(span / width) if abs(span / width - round(span / width)) < 1e-9 else int(span / width)
    lowest: dict[int, int] = {}
    for one in samples:
        age = int((end - one.at_s) / width)
        if age >= maximum:
            if end - one.at_s > maximum * width * (1 + 1e-9):
                continue
            age = maximum - 1
        if age not in lowest or one.fds < lowest[age]:
            lowest[age] = one.fds
    return [Baseline(end - (age + 0.5) * width, lowest[age]) for age in sorted(lowest, reverse=True)]


# ---- trend

HOUR_S = 3600.0
DAY_S = 86400.0
# Any import, log file or cache opens this many.
LEAST_RISE = 4
# Garbage collections, requests and small jobs repeat within a minute: three cycles separate them from growth.
CONCLUSIVE_S = 180.0
# A recent rise must end this far above everything in the days before it.
_LEAST_ABOVE = 32
_LEAST_BINS = 8
_TIMES_SPREAD = 4
_SLOWING = 0.6
# The least part of the rise in its first half: a rise at a single moment is a step, not a trend.
_LEAST_STEP = 0.1
# Of a rise at random moments, fewer than these may all miss the last quarter.
_LEAST_EXPECTED = 6
_LEAST_PART = 0.25
_PARTS = 8
_LEAST_DAYS = 4
_MAX_IN_TWO = 0.5
# A leak that began after quiet days does not show in the full series yet.
_RECENT_S = (25 * HOUR_S, 6 * HOUR_S)


class Shape(Enum):
    LEVEL = auto()
    SETTLING = auto()
    RISING = auto()


def find_trend(samples: Sequence[Sample], bin_s: float | None = None) -> Trend | None:
    """Returns the trend of samples in time order; None if there are too few.

    Where the full series does not grow, its last day or its last six hours count if they ended above everything
    before them: a daily cycle returns to earlier values, a leak does not.
    """
    baselines = find_baselines(samples, bin_s)
    whole = trend_of(baselines)
    if whole is None or whole.grows:
        return whole
    for recent_s in _RECENT_S:
        since = samples[-1].at_s - recent_s
        if since - samples[0].at_s < DAY_S:
            continue
        last = find_baselines([one for one in samples if one.at_s >= since], bin_s)
        recent = trend_of(last)
        before = max((baseline.fds for baseline in baselines if baseline.at_s < since), default=0)
        if (
            recent
            and recent.grows
            and min(baseline.fds for baseline in last[-len(last) // 4 :]) > before + _LEAST_ABOVE
        ):
            return recent
    return whole


def trend_of(baselines: Sequence[Baseline]) -> Trend | None:
    """Applies the rule to one baseline series; None if it has fewer than eight bins.

    The interval of the slope excludes zero exactly where the baseline grows. Where a step, a cycle or noise explains
    the rise, or where it has nearly ended, the interval begins at zero or below.
    """
    if len(baselines) < _LEAST_BINS:
        return None
    start = baselines[0].at_s
    counts = [baseline.fds for baseline in baselines]
    hours = [(baseline.at_s - start) / HOUR_S for baseline in baselines]
    width_s = min(after.at_s - before.at_s for before, after in pairwise(baselines))
    span_s = baselines[-1].at_s - start + width_s
    slope = find_slope(hours, counts)
    if span_s < SHORT_S:
        slope = with_drift(slope, hours, counts)
    shape = shape_of(counts, slope, LEAST_RISE)
    if shape is Shape.RISING and span_s < SHORT_S and _has_ended(counts):
        shape = Shape.SETTLING
    grows = shape is Shape.RISING and _rises_by_the_day(baselines, width_s, slope.value)
    settles = shape is Shape.SETTLING
    return Trend(
        per_hour=slope.value,
        low=slope.low if grows else min(slope.low, 0.0),
        high=slope.high,
        rise=counts[-1] - counts[0],
        span_s=span_s,
        bins=len(baselines),
        grows=grows,
        settles=settles,
        steady=grows and span_s >= DAY_S and _is_spread(counts, span_s),
    )


def shape_of(values: Sequence[float], slope: Slope, least_rise: float) -> Shape:
    """RISING: significant, large, each third of the time higher than the one before, and not slowing down.

    A warm-up slows down, a step rises once, a sawtooth and bursts return.
    """
    rise = values[-1] - values[0]
    if slope.low <= 0 or rise <= max(least_rise, _TIMES_SPREAD * slope.spread):
        return Shape.LEVEL
    third = len(values) // 3
    first, second, last = min(values[:third]), min(values[third:-third]), min(values[-third:])
    early, late = second - first, last - second
    if early <= 0 or late <= 0:
        return Shape.LEVEL
    if late < _SLOWING * early:
        return Shape.SETTLING
    return Shape.RISING if early >= _LEAST_STEP * (last - first) else Shape.LEVEL


def _has_ended(values: Sequence[float]) -> bool:
    """Whether it rose by next to nothing in the last quarter: a cache that was filled and is full now."""
    quarter = len(values) // 4
    before = values[-1 - quarter] - values[0]
    expected = before / (len(values) - 1 - quarter) * quarter
    return expected >= _LEAST_EXPECTED and values[-1] - values[-1 - quarter] <= _LEAST_PART * expected


def _rises_by_the_day(baselines: Sequence[Baseline], width_s: float, per_hour: float) -> bool:
    """For a day or more: whether the same hour of the next day is higher by at least half the slope."""
    lag_s = min(DAY_S, baselines[-1].at_s - baselines[0].at_s)
    if lag_s < DAY_S - HOUR_S:
        return True
    steps = _steps_by_the_day(baselines, width_s, lag_s)
    return bool(steps) and median(steps) >= max(LEAST_RISE, per_hour * 24 / 2)


def _steps_by_the_day(baselines: Sequence[Baseline], width_s: float, lag_s: float) -> list[int]:
    """Returns how much higher the same hour of the next day is."""
    steps = []
    ahead = 0
    for baseline in baselines:
        while ahead < len(baselines) and baselines[ahead].at_s < baseline.at_s + lag_s - width_s / 2:
            ahead += 1
        if ahead == len(baselines):
            break
        if baselines[ahead].at_s < baseline.at_s + lag_s + width_s:
            steps.append(baselines[ahead].fds - baseline.fds)
    return steps


def _is_spread(values: Sequence[int], span_s: float) -> bool:
    """Whether it rose steadily: a warm-up and one later step rise in only two parts of the time.

    From four days on the parts are days, each with its own quietest hour.
    """
    days = int(span_s / DAY_S)
    parts = days if days >= _LEAST_DAYS else _PARTS
    edges = [len(values) * at // parts for at in range(parts + 1)]
    baselines = [min(values[start:end]) for start, end in pairwise(edges)]
    steps = sorted(after - before for before, after in pairwise(baselines))
    maximum = max(_MAX_IN_TWO, 2.5 / len(steps))
    return sum(steps[-2:]) <= maximum * (baselines[-1] - baselines[0])


# ---- trend over jobs: the count right after each job is free of the noise of the work

# Imports, caches and pools open descriptors in the first jobs and keep them.
WARM_UP_JOBS = 10
_JOB_PARTS = 8
LEAST_JOBS = 4 * _JOB_PARTS
# Caches keep 128 handles by default, as functools.lru_cache does: one that fills looks like a leak until then.
LEAST_JOBS_RISE = 128


def find_job_trend(jobs: Sequence[JobSample]) -> JobTrend | None:
    """Returns the trend over jobs in order, without the first ten; None if fewer than 32 remain.

    It grows if the lowest count of each eighth of the jobs is above the one before, by 128 in all, and if the rise does
    not slow down.
    """
    counted = list(jobs)[WARM_UP_JOBS:]
    if len(counted) < LEAST_JOBS:
        return None
    edges = [len(counted) * part // _JOB_PARTS for part in range(_JOB_PARTS + 1)]
    lowest = [min(counted[start:end], key=lambda one: one.fds) for start, end in pairwise(edges)]
    slope = find_slope([one.job for one in lowest], [one.fds for one in lowest])
    steps = [after.fds - before.fds for before, after in pairwise(lowest)]
    third = len(steps) // 3
    return JobTrend(
        per_job=slope.value,
        low=slope.low,
        high=slope.high,
        rise=sum(steps),
        jobs=len(counted),
        grows=min(steps) > 0 and sum(steps) >= LEAST_JOBS_RISE and sum(steps[-third:]) >= _SLOWING * sum(steps[:third]),
    )
