"""Two panels of bars: how far every ratio is from what was wanted, and the other peers for context."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

MET, MISSED, CONTEXT = "#2a7f8e", "#d1603d", "#9aa5b1"
INK, PALE = "#22303c", "#5b6770"
BAR_INCHES = 0.36


class Bar(NamedTuple):
    name: str
    length: float
    told: str
    colour: str


def save_bars(judged: list[Bar], context: list[Bar], *, title: str, caption: str, path: Path) -> None:
    panels = [bars for bars in (judged, context) if bars]
    heights = [len(bars) + 1.5 for bars in panels] or [1.0]
    # Sizes in inches at 100 dots each: 1100 pixels wide, and as high as there are bars.
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    figure = Figure(figsize=(11, BAR_INCHES * sum(heights) + 1.3), dpi=100, layout=layout)
    axes = figure.subplots(max(len(panels), 1), 1, height_ratios=heights, squeeze=False)[:, 0]
    figure.suptitle(title, color=INK, weight="bold", size=13)
    for axis, bars in zip(axes, panels, strict=False):
        _draw(axis, bars)
        told = "measured ÷ wanted: right of the line is enough"
        axis.set_title(told if bars is judged else "for context: times the speed of other ways", **_title())
    figure.supxlabel(caption, size=8, color=PALE)
    figure.savefig(path)


def _draw(axis: Any, bars: list[Bar]) -> None:
    places = range(len(bars))
    lengths = [bar.length for bar in bars]
    # From 1 outwards: where a bar on a log scale begins is else a matter of taste.
    axis.barh(places, [x - 1 for x in lengths], left=1, color=[bar.colour for bar in bars], height=0.68)
    axis.axvline(1, color=INK, linewidth=1.4)
    axis.set_xscale("log")
    for place, bar in zip(places, bars, strict=True):
        at = {"xy": (max(bar.length, 1), place), "xytext": (6, 0), "textcoords": "offset points"}
        axis.annotate(bar.told, **at, va="center", size=9, color=INK)
    # Room on the right for the text beside the longest bar.
    low, high = math.log10(min([1, *lengths])), math.log10(max([1, *lengths]))
    axis.set_xlim(10 ** (low - 0.04), 10 ** (high + max(0.28 * (high - low), 0.15)))
    axis.set_ylim(len(bars) - 0.4, -0.6)
    axis.set_yticks(places, [bar.name for bar in bars], size=9, color=INK)
    axis.xaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.tick_params(axis="x", labelsize=8, colors=PALE, length=0)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="#e3e7eb", linewidth=0.8)
    axis.set_axisbelow(True)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _title() -> dict[str, Any]:
    return {"loc": "left", "size": 10, "color": INK}
