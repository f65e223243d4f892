"""The slope of a series that outliers cannot bend: the median over all pairs of points (Theil–Sen)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from statistics import median, variance
from typing import NamedTuple

from .model import JobSample, Sample, Trend

_Z_95 = 1.959964


class Slope(NamedTuple):
    """`low` and `high` are the ends of the 95 % interval. `spread` is how far points lie from the line, by median."""

    value: float
    low: float
    high: float
    spread: float


def find_slope(at: Sequence[float], values: Sequence[float]) -> Slope:
    """At least two points, in rising order of `at`.

    The interval is cut from the sorted slopes of all pairs, as far from the middle as chance alone would bring the
    number of rising pairs (Kendall's variance; ties are not taken off, which errs on the wide side). It takes the
    points for independent: a daily rhythm makes it falsely narrow.
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
    """Returns the slope with an interval that allows for drift: a count that goes up and down by small steps, like that
    of busy workers, comes far from where it was without a trend.

    How far is told by the differences over a quarter of the points, around their mean. Noise that is new at each point
    makes these no larger than those between neighbours; drift makes them larger, by the root of the distance.
    """
    lag = max(1, len(values) // 4)
    steps = [after - before for before, after in zip(values, values[lag:], strict=False)]
    per_step = variance(steps) / lag
    reach = _Z_95 * math.sqrt(per_step * (len(values) - 1)) / (at[-1] - at[0])
    return slope._replace(low=min(slope.low, slope.value - reach), high=max(slope.high, slope.value + reach))


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


# The floor of a count: what is left of it in the quietest moment of each stretch of time.
#
# Work in progress comes and goes above the floor; what is never given back lifts it.

# Longer than most jobs: each bin holds a moment between two of them.
BIN_S = 900.0
# Below this, bins of 15 minutes would be too few to tell a trend.
SHORT_S = 7200.0
SHORT_BINS = 12
# A trend compares all pairs of bins: 200 of them are 19,900 pairs, some ten milliseconds.
MOST_BINS = 200


class Baseline(NamedTuple):
    """The lowest count in the bin around `at_s`."""

    at_s: float
    fds: int


def bin_width(span_s: float) -> float:
    """The width of a bin, in seconds, for samples over this span."""
    return span_s / SHORT_BINS if span_s < SHORT_S else max(BIN_S, span_s / MOST_BINS)


def find_baselines(samples: Sequence[Sample], bin_s: float | None = None) -> list[Baseline]:
    """The minimum of each bin, oldest first; samples must be in the order of time. Bins without samples are left out.

    Bins are laid from the last sample backwards, all of the full width: a bin cut short at the end would have missed
    the quiet moment and stand too high.
    """
    if len(samples) < 2:
        return []
    end = samples[-1].at_s
    span = end - samples[0].at_s
    width = bin_width(span) if bin_s is None else bin_s
    if span <= 0 or width <= 0:
        return []
    most = round(span / width) if abs(span / width - round(span / width)) < 1e-9 else int(span / width)
    lowest: dict[int, int] = {}
    for one in samples:
        age = int((end - one.at_s) / width)
        if age >= most:
            if end - one.at_s > most * width * (1 + 1e-9):
                continue
            age = most - 1
        if age not in lowest or one.fds < lowest[age]:
            lowest[age] = one.fds
    return [Baseline(end - (age + 0.5) * width, lowest[age]) for age in sorted(lowest, reverse=True)]


# Whether the floor of a count rises for good, and how fast.

HOUR_S = 3600.0
DAY_S = 86400.0
# Fewer than that come and go with any import, log file or cache.
LEAST_RISE = 4
# Garbage collections, requests and small jobs come back within a minute: three of them tell a rhythm from growth.
CONCLUSIVE_S = 180.0
# A recent rise must end this far above everything in the days before it.
_LEAST_ABOVE = 32
_LEAST_BINS = 8
_TIMES_SPREAD = 4
_SLOWING = 0.6
# Of the whole rise, in each half of it: what rose once, at one moment, is a step and not a trend.
_LEAST_STEP = 0.1
_PARTS = 8
_LEAST_DAYS = 4
_MOST_IN_TWO = 0.5
# A leak that began after days of quiet does not show in the whole series yet.
_RECENT_S = (25 * HOUR_S, 6 * HOUR_S)


class Shape(Enum):
    LEVEL = auto()
    SETTLING = auto()
    RISING = auto()


def find_trend(samples: Sequence[Sample], bin_s: float | None = None) -> Trend | None:
    """The trend of samples in the order of time; None if there are too few to tell.

    That of the whole series; where that does not grow, that of its last day or its last six hours, if these ended
    above everything in the day before them: a daily rhythm comes back to where it has been, a leak does not.
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
    """The rule on one series of floors; None if there are fewer than eight.

    The interval of the slope excludes zero exactly where the floor grows. Where a step, a rhythm or noise explains the
    rise, or where it has nearly ended, zero is a possible slope: the interval then begins at zero or below.
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
    """RISING: certain, large, in each third of the time above the one before, and no slower at the end.

    Warm-up rises ever less, one step rises once, a sawtooth and bursts come back.
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


def _rises_by_the_day(baselines: Sequence[Baseline], width_s: float, per_hour: float) -> bool:
    """From a day on: whether the same hour of the next day stands higher, by half of what the slope says at least."""
    lag_s = min(DAY_S, baselines[-1].at_s - baselines[0].at_s)
    if lag_s < DAY_S - HOUR_S:
        return True
    steps = _steps_by_the_day(baselines, width_s, lag_s)
    return bool(steps) and median(steps) >= max(LEAST_RISE, per_hour * 24 / 2)


def _steps_by_the_day(baselines: Sequence[Baseline], width_s: float, lag_s: float) -> list[int]:
    """How much higher the same hour of the next day stands."""
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
    """Whether it rose all the time: a warm-up and one step later make up a rise in two parts of the time.

    The parts are days, each with its own quietest hour, once there are some.
    """
    days = int(span_s / DAY_S)
    parts = days if days >= _LEAST_DAYS else _PARTS
    edges = [len(values) * at // parts for at in range(parts + 1)]
    baselines = [min(values[start:end]) for start, end in pairwise(edges)]
    steps = sorted(after - before for before, after in pairwise(baselines))
    most = max(_MOST_IN_TWO, 2.5 / len(steps))
    return sum(steps[-2:]) <= most * (baselines[-1] - baselines[0])


# The count right after each job: what a job leaves behind, free of the noise of the work itself.

# Imports, caches and pools open theirs in the first jobs and keep them.
WARM_UP_JOBS = 10
LEAST_JOBS = 9
# All pairs are compared; of a longer history every second, third, … job will do.
_MOST_JOBS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTrend:
    """Descriptors left by each job. `low` and `high` are the ends of the 95 % interval of `per_job`."""

    per_job: float
    low: float
    high: float
    rise: float
    jobs: int
    grows: bool


def find_job_trend(jobs: Sequence[JobSample]) -> JobTrend | None:
    """Of samples in the order of their jobs, the first ten left out; None if fewer than nine are left."""
    counted = list(jobs)[WARM_UP_JOBS:]
    if len(counted) < LEAST_JOBS:
        return None
    step = -(-len(counted) // _MOST_JOBS)
    thin = counted[::-step][::-1]  # counted from the last one, which is always there
    values = [one.fds for one in thin]
    slope = find_slope([one.job for one in thin], values)
    return JobTrend(
        per_job=slope.value,
        low=slope.low,
        high=slope.high,
        rise=values[-1] - values[0],
        jobs=len(counted),
        grows=shape_of(values, slope, LEAST_RISE) is Shape.RISING,
    )
