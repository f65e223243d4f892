"""When something will be: how long until then, and at what o'clock."""

from __future__ import annotations

from datetime import datetime, timedelta

from ..diagnose.words import span_words

_DAY_S = 86400
# Beyond that a forecast says "never".
_FAR_S = 100 * 365 * _DAY_S


def clock(now: datetime, seconds: float) -> str:
    """`20:41`, `Thu 14:00`, `12 Mar`, `Mar 2031`: as exact as it needs to be that far away."""
    at = now + timedelta(seconds=min(seconds, _FAR_S))
    if at.date() == now.date():
        return at.strftime("%H:%M")
    if seconds < 6 * _DAY_S:
        return at.strftime("%a %H:%M")
    return at.strftime("%-d %b") if seconds < 300 * _DAY_S else at.strftime("%b %Y")


def when(eta_s: tuple[float, float], now: datetime) -> str:
    """`in about 2 h 10 min (20:41 ± 9 min)`, `in 1 h to 9 h (19:30 to Thu 03:30)`, `in 2 h at the earliest (20:41)`.

    Empty where it never happens.
    """
    low, high = eta_s
    if not low < _FAR_S:
        return ""
    if not high < _FAR_S:
        return f"in {span_words(low)} at the earliest ({clock(now, low)})"
    middle, half = (low + high) / 2, (high - low) / 2
    if half > middle / 3:
        return f"in {span_words(low)} to {span_words(high)} ({clock(now, low)} to {clock(now, high)})"
    return f"in about {span_words(middle)} ({clock(now, middle)} ± {span_words(half)})"


def short_when(eta_s: tuple[float, float]) -> str:
    """For a narrow column: `~2 h 10 min`, `>2 h` where it may be never, "" where it is."""
    low, high = eta_s
    if not low < _FAR_S:
        return ""
    return f"~{span_words((low + high) / 2)}" if high < _FAR_S else f">{span_words(low)}"
