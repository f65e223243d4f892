"""The slope of a series that outliers cannot bend: the median over all pairs of points (Theil–Sen)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
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
        raise ValueError(f"wanted at least two points, got {n}")
    slopes = sorted([(y - b) / (x - a) for i, (a, b) in enumerate(points) for x, y in points[i + 1 :]])
    reach = _Z_95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, round((len(slopes) - reach) / 2) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + reach) / 2))
    value = _middle(slopes)
    base = median([y - value * x for x, y in points])
    return Slope(value, slopes[low], slopes[high], median([abs(y - value * x - base) for x, y in points]))


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
