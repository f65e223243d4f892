"""The floor of a count: what is left of it in the quietest moment of each stretch of time.

Work in progress comes and goes above the floor; what is never given back lifts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .facts import Sample

# Longer than most jobs: each bin holds a moment between two of them.
BIN_S = 900.0
# Below this, bins of 15 minutes would be too few to tell a trend.
SHORT_S = 7200.0
SHORT_BINS = 12
# A trend compares all pairs of bins: 200 of them are 19,900 pairs, some ten milliseconds.
MOST_BINS = 200


class Floor(NamedTuple):
    """The lowest count in the bin around `at_s`."""

    at_s: float
    fds: int


def bin_width(span_s: float) -> float:
    """The width of a bin, in seconds, for samples over this span."""
    return span_s / SHORT_BINS if span_s < SHORT_S else max(BIN_S, span_s / MOST_BINS)


def find_floors(samples: Sequence[Sample], bin_s: float | None = None) -> list[Floor]:
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
    return [Floor(end - (age + 0.5) * width, lowest[age]) for age in sorted(lowest, reverse=True)]
