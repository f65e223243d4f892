"""Bar charts of results: how far every ratio is from its target, and the other peers for context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.common.report import Result, times

MET, MISSED, CONTEXT = "#2a7f8e", "#d1603d", "#9aa5b1"
INK, PALE, GRID = "#22303c", "#5b6770", "#e3e7eb"
BAR_INCHES = 0.36


class Bar(NamedTuple):
    name: str
    length: float
    text: str
    colour: str


def plot_results(results: Sequence[Result], subject: str, caption: str, path: Path) -> None:
    compared = [
        Bar(result.label(), over, result.bar_text(), MET if result.met else MISSED)
        for result in results
        if (over := result.over_target()) is not None
    ]
    context = [
        Bar(result.label(), ratio, times(ratio), CONTEXT)
        for result in results
        if (ratio := result.context_ratio()) is not None
    ]
    panels = [bars for bars in (compared, context) if bars]
    heights = [len(bars) + 1.5 for bars in panels] or [1.0]
    # In inches at 100 dots each: 1100 pixels wide, and as high as the bars need.
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    figure = Figure(figsize=(11, BAR_INCHES * sum(heights) + 1.3), dpi=100, layout=layout)
    axes = figure.subplots(max(len(panels), 1), 1, height_ratios=heights, squeeze=False)[:, 0]
    figure.suptitle(f"{subject}: holdfast against its targets", color=INK, weight="bold", size=13)
    for axis, bars in zip(axes, panels, strict=False):
        _draw(axis, bars)
        heading = "measured ÷ target: right of the line is enough"
        heading = heading if bars is compared else "for context: times the speed of other ways"
        axis.set_title(heading, loc="left", size=10, color=INK)
    figure.supxlabel(caption, size=8, color=PALE)
    figure.savefig(path)


def _draw(axis: Any, bars: list[Bar]) -> None:
    places = range(len(bars))
    lengths = [bar.length for bar in bars]
    # Bars start at 1: on a log scale there is no zero to start from.
    axis.barh(places, [x - 1 for x in lengths], left=1, color=[bar.colour for bar in bars], height=0.68)
    axis.axvline(1, color=INK, linewidth=1.4)
    axis.set_xscale("log")
    for place, bar in zip(places, bars, strict=True):
        at = {"xy": (max(bar.length, 1), place), "xytext": (6, 0), "textcoords": "offset points"}
        axis.annotate(bar.text, **at, va="center", size=9, color=INK)
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
    axis.set_axisbelow(True)
    light_grid(axis, axis="x")


def light_grid(axes: Any, axis: str = "both") -> None:
    axes.grid(axis=axis, color=GRID, linewidth=0.8)
    for spine in axes.spines.values():
        spine.set_visible(False)
