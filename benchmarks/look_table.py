"""The results as a table, for a terminal or as Markdown, and as a picture."""

from __future__ import annotations

from pathlib import Path

from look_rows import Cost, Outcome

HEADS = ("work", "holdfast CPU · wall", "peer", "its CPU · wall", "ratio (CPU)", "wanted", "met")


def text_table(results: list[Outcome]) -> str:
    lines = [HEADS, *_cells(results)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADS))]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    drawn.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(line.rstrip() for line in drawn)


def markdown_table(results: list[Outcome]) -> str:
    lines = [HEADS, ("---",) * len(HEADS), *_cells(results)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(results: list[Outcome]) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = []
    last = ""
    for result in results:
        first, last = result.key != last, result.key
        ours = _cost(result.ours) if first and result.ours else ""
        cells.append((result.work if first else "", ours, result.peer, *_against(result)))
    return cells


def _against(result: Outcome) -> tuple[str, str, str, str]:
    met = "" if result.met is None else "yes" if result.met else "NO"
    bound = result.peer == "a bound"
    if result.theirs is None or result.ratio is None:
        return "skipped", "", "", ""
    if bound:
        return "", times(result.ratio), f"≤ {duration(result.theirs.cpu_s)}", met
    wanted = "" if result.wanted is None else f"≥ {result.wanted:,.0f}×"
    return _cost(result.theirs), times(result.ratio), wanted, met


def _cost(cost: Cost) -> str:
    return f"{duration(cost.cpu_s)} · {duration(cost.wall_s)}"


def duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}"
    return ""


def times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.1f}×" if ratio >= 10 else f"{ratio:.2f}×"


def save_plot(results: list[Outcome], path: Path, caption: str) -> None:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from plot import BAR_INCHES, CONTEXT, INK, MET, MISSED, PALE, Bar, _draw, _title

    known = [result for result in results if result.ratio is not None]
    judged = [
        Bar(
            f"{result.work}  ·  {result.peer}",
            (result.ratio or 0.0) / (result.wanted or 1.0),
            f"{times(result.ratio or 0.0)}   ({_against(result)[2]})",
            MET if result.met else MISSED,
        )
        for result in known
        if result.wanted is not None
    ]
    context = [
        Bar(f"{result.work}  ·  {result.peer}", result.ratio or 0.0, times(result.ratio or 0.0), CONTEXT)
        for result in known
        if result.wanted is None
    ]
    panels = [bars for bars in (judged, context) if bars]
    heights = [len(bars) + 1.5 for bars in panels] or [1.0]
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    figure = Figure(figsize=(11, BAR_INCHES * sum(heights) + 1.3), dpi=100, layout=layout)
    axes = figure.subplots(max(len(panels), 1), 1, height_ratios=heights, squeeze=False)[:, 0]
    figure.suptitle("Looking at processes: holdfast against what was wanted of it", color=INK, weight="bold", size=13)
    for axis, bars in zip(axes, panels, strict=False):
        _draw(axis, bars)
        told = "measured ÷ wanted: right of the line is enough"
        axis.set_title(told if bars is judged else "for context: times the speed of other ways", **_title())
    figure.supxlabel(caption, size=8, color=PALE)
    figure.savefig(path)
