"""The slope of a series that outliers cannot bend: the median over all pairs of points (Theil–Sen)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, variance
from typing import NamedTuple

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
