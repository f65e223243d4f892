"""Bar charts of results: how many times faster than each peer holdfast is, on a log axis.

`python -m benchmarks.common.plot read write` draws saved results again, without measuring anything.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.common.report import RESULTS, caption, times

AHEAD, BEHIND, CONTEXT = "#2a7f8e", "#d1603d", "#9aa5b1"
INK, PALE, GRID = "#22303c", "#5b6770", "#e3e7eb"
BAR_INCHES = 0.29

TITLES = {
    "fdscan": "Scans of processes: how many times less CPU time holdfast takes",
    "guard": "A guarded worker: how many times cheaper holdfast is",
    "peers": "Shuffled reading: how many times faster holdfast is",
    "read": "Reading: how many times faster holdfast is",
    "tfrecord": "TFRecord: how many times faster holdfast is",
    "trace": "A traced program: how many times less CPU time it takes with holdfast",
    "write": "Writing: how many times faster holdfast is",
    "write_merge": "Merging: how many times faster holdfast is",
}
OURS = {"holdfast", "hold.Guard"}
NO_PEERS = {"a limit", "nothing", "untraced again"}  # what a measurement is compared with besides peers


class Bar(NamedTuple):
    work: str
    peer: str
    factor: float


def bars_of(rows: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    """Yields the ratios to peers. Where holdfast has a row of its own, rows are costs, and it is compared with that."""
    ours = {row["key"]: row["ratio"] for row in rows if row["peer"] in OURS and "ratio" in row}
    for row in rows:
        ratio = row.get("ratio", row.get("value") if row.get("unit") == "×" else None)
        if ratio is None or row.get("at_most") or row["peer"] in OURS | NO_PEERS:
            continue
        yield Bar(row["work"], row["peer"], ratio / ours.get(row["key"], 1.0))


def plot_results(report: dict[str, Any], path: Path) -> None:
    bars = list(bars_of(report["rows"]))
    # In inches at 100 dots each: 1100 pixels wide, and as high as the bars and the headings need.
    height = BAR_INCHES * (len(bars) + 1.5 * len({bar.work for bar in bars})) + 1.2
    figure = Figure(figsize=(11, height), dpi=100, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.08))
    figure.suptitle(TITLES[report["benchmark"]], color=INK, weight="bold", size=13)
    _draw(figure.subplots(), bars)
    figure.supxlabel(caption(report), size=8, color=PALE)
    figure.savefig(path)


def _draw(axis: Any, bars: list[Bar]) -> None:
    axis.set_xscale("log")
    factors = [1.0, *(bar.factor for bar in bars)]
    place, places, work = 0.0, [], ""
    for bar in bars:
        if bar.work != work:
            place += 0.5 if work else 0.0
            heading = {"transform": axis.get_yaxis_transform(), "va": "center", "size": 9.5, "weight": "bold"}
            axis.text(
                0.0, place, bar.work, color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, **heading
            )
            place, work = place + 1, bar.work
        # Bars start at 1: on a log scale there is no zero to start from.
        axis.barh(place, bar.factor - 1, left=1, color=AHEAD if bar.factor >= 1 else BEHIND, height=0.7)
        at = {"xy": (max(bar.factor, 1), place), "xytext": (6, 0), "textcoords": "offset points"}
        axis.annotate(times(bar.factor), **at, va="center", size=9, color=INK)
        places.append(place)
        place += 1
    axis.axvline(1, color=INK, linewidth=1.2)
    # Room on the right for the text beside the longest bar.
    low, high = math.log10(min(factors)), math.log10(max(factors))
    axis.set_xlim(10 ** (low - 0.04), 10 ** (high + max(0.1 * (high - low), 0.1)))
    axis.set_ylim(place - 0.3, -0.7)
    axis.set_yticks(places, [bar.peer for bar in bars], size=9, color=INK)
    axis.xaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}×"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.tick_params(axis="x", labelsize=8, colors=PALE, length=0)
    axis.tick_params(axis="y", length=0)
    axis.set_axisbelow(True)
    light_grid(axis, axis="x")


def light_grid(axes: Any, axis: str = "both") -> None:
    axes.grid(axis=axis, color=GRID, linewidth=0.8)
    for spine in axes.spines.values():
        spine.set_visible(False)


if __name__ == "__main__":
    for name in sys.argv[1:] or TITLES:
        plot_results(json.loads((RESULTS / f"{name}.json").read_text()), RESULTS / f"{name}.png")
