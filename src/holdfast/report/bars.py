"""Numbers as pictures of one line."""

from __future__ import annotations

from collections.abc import Sequence

_PARTS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def bar(ratio: float, width: int) -> str:
    """As much of `width` filled as is used; anything used shows, and full is full only when nothing is left."""
    ratio = min(1.0, max(0.0, ratio))
    eighths = int(ratio * width * 8)
    if ratio > 0:
        eighths = max(1, eighths)
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_PARTS[part] if part else "")).ljust(width, "░")


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values, from their lowest to their highest; a line without change stays at the bottom."""
    shown = _squeeze(values, width)
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    step = (high - low) / (len(_HEIGHTS) - 1) or 1.0
    return "".join(_HEIGHTS[round((value - low) / step)] for value in shown)


def _squeeze(values: Sequence[float], width: int) -> list[float]:
    """One value for each column: the lowest of its stretch, so that a floor that rises is seen to rise."""
    if len(values) <= width:
        return list(values)
    edges = [len(values) * at // width for at in range(width + 1)]
    return [min(values[edges[at] : edges[at + 1]]) for at in range(width)]
