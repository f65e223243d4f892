"""Whether the floor of a count rises for good, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from itertools import pairwise
from statistics import median

from .facts import Sample, Trend
from .floors import SHORT_S, Floor, find_floors
from .slope import Slope, find_slope, with_drift

HOUR_S = 3600.0
DAY_S = 86400.0
# Fewer than that come and go with any import, log file or cache.
LEAST_RISE = 4
# Garbage collections, requests and small jobs come back within a minute: three of them tell a rhythm from growth.
TOLD_S = 180.0
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
    floors = find_floors(samples, bin_s)
    whole = trend_of(floors)
    if whole is None or whole.grows:
        return whole
    for recent_s in _RECENT_S:
        since = samples[-1].at_s - recent_s
        if since - samples[0].at_s < DAY_S:
            continue
        last = find_floors([one for one in samples if one.at_s >= since], bin_s)
        recent = trend_of(last)
        before = max((floor.fds for floor in floors if floor.at_s < since), default=0)
        if recent and recent.grows and min(floor.fds for floor in last[-len(last) // 4 :]) > before + _LEAST_ABOVE:
            return recent
    return whole


def trend_of(floors: Sequence[Floor]) -> Trend | None:
    """The rule on one series of floors; None if there are fewer than eight.

    The interval of the slope excludes zero exactly where the floor grows. Where a step, a rhythm or noise explains the
    rise, or where it has nearly ended, zero is a possible slope: the interval then begins at zero or below.
    """
    if len(floors) < _LEAST_BINS:
        return None
    start = floors[0].at_s
    counts = [floor.fds for floor in floors]
    hours = [(floor.at_s - start) / HOUR_S for floor in floors]
    width_s = min(after.at_s - before.at_s for before, after in pairwise(floors))
    span_s = floors[-1].at_s - start + width_s
    slope = find_slope(hours, counts)
    if span_s < SHORT_S:
        slope = with_drift(slope, hours, counts)
    shape = shape_of(counts, slope, LEAST_RISE)
    grows = shape is Shape.RISING and _rises_by_the_day(floors, width_s, slope.value)
    settles = shape is Shape.SETTLING
    return Trend(
        per_hour=slope.value,
        low=slope.low if grows else min(slope.low, 0.0),
        high=slope.high,
        rise=counts[-1] - counts[0],
        span_s=span_s,
        bins=len(floors),
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


def _rises_by_the_day(floors: Sequence[Floor], width_s: float, per_hour: float) -> bool:
    """From a day on: whether the same hour of the next day stands higher, by half of what the slope says at least."""
    lag_s = min(DAY_S, floors[-1].at_s - floors[0].at_s)
    if lag_s < DAY_S - HOUR_S:
        return True
    steps = _steps_by_the_day(floors, width_s, lag_s)
    return bool(steps) and median(steps) >= max(LEAST_RISE, per_hour * 24 / 2)


def _steps_by_the_day(floors: Sequence[Floor], width_s: float, lag_s: float) -> list[int]:
    """How much higher the same hour of the next day stands."""
    steps = []
    ahead = 0
    for floor in floors:
        while ahead < len(floors) and floors[ahead].at_s < floor.at_s + lag_s - width_s / 2:
            ahead += 1
        if ahead == len(floors):
            break
        if floors[ahead].at_s < floor.at_s + lag_s + width_s:
            steps.append(floors[ahead].fds - floor.fds)
    return steps


def _is_spread(values: Sequence[int], span_s: float) -> bool:
    """Whether it rose all the time: a warm-up and one step later make up a rise in two parts of the time.

    The parts are days, each with its own quietest hour, once there are some.
    """
    days = int(span_s / DAY_S)
    parts = days if days >= _LEAST_DAYS else _PARTS
    edges = [len(values) * at // parts for at in range(parts + 1)]
    floors = [min(values[start:end]) for start, end in pairwise(edges)]
    steps = sorted(after - before for before, after in pairwise(floors))
    most = max(_MOST_IN_TWO, 2.5 / len(steps))
    return sum(steps[-2:]) <= most * (floors[-1] - floors[0])
