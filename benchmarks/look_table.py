"""The results as a table, for a terminal or as Markdown, and as a picture."""

from __future__ import annotations

from pathlib import Path

from grid import markdown_grid, text_grid, times
from look_rows import Cost, Outcome

HEADS = ("work", "holdfast CPU · wall", "peer", "its CPU · wall", "ratio (CPU)", "wanted", "met")


def text_table(results: list[Outcome]) -> str:
    return text_grid(HEADS, _cells(results))


def markdown_table(results: list[Outcome]) -> str:
    return markdown_grid(HEADS, _cells(results))


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


def save_plot(results: list[Outcome], path: Path, caption: str) -> None:
    from bars import CONTEXT, MET, MISSED, Bar, save_bars  # matplotlib: only here, after everything was measured

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
    title = "Looking at processes: holdfast against what was wanted of it"
    save_bars(judged, context, title=title, caption=caption, path=path)
