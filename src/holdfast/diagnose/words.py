"""Numbers as an operator reads them: spans of time, rates, shares."""

from __future__ import annotations

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span_words(seconds: float) -> str:
    """`40 s`, `12 min`, `5 h 20 min`, `6 d 2 h`: two units at most, and the second only where it tells something."""
    if seconds < 1:
        return "less than 1 s"
    for at, (size, name) in enumerate(_UNITS):
        if seconds < size:
            continue
        whole = int(seconds // size)
        if at + 1 == len(_UNITS) or whole >= 10:
            return f"{round(seconds / size)} {name}"
        smaller, smaller_name = _UNITS[at + 1]
        rest = int((seconds - whole * size) // smaller)
        return f"{whole} {name} {rest} {smaller_name}" if rest else f"{whole} {name}"
    raise AssertionError(f"expected a span of at least one second, got {seconds}")


def number_words(value: float) -> str:
    """`2,105`, `4.2`: one decimal where a whole number would hide the most of it."""
    return f"{value:.1f}" if 0 < abs(value) < 10 and value != int(value) else f"{value:,.0f}"


def range_words(low: float, high: float) -> str:
    return f"{number_words(low)}–{number_words(high)}" if low >= 0 else f"{number_words(low)} to {number_words(high)}"


def share_words(part: float, whole: float) -> str:
    """`97.5 %`; no rounding to nothing, nor to all where something is left."""
    percent = 100 * part / whole if whole else 100.0
    if 0 < percent < 1:
        return "under 1 %"
    return f"{min(percent, 99.9):.1f} %" if 90 <= percent < 100 else f"{percent:.0f} %"
