"""The results of benchmarks/write.py as a table and as a picture."""

from __future__ import annotations

from pathlib import Path

from grid import markdown_grid, text_grid, times
from write_rows import Result, Speed

HEADS = ("row", "work", "holdfast", "peer", "its speed", "ratio", "CPU ratio", "wanted", "met", "")


def text_table(results: list[Result]) -> str:
    return text_grid(HEADS, _cells(results))


def markdown_table(results: list[Result]) -> str:
    return markdown_grid(HEADS, _cells(results))


def _cells(results: list[Result]) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = []
    last = ("", "")
    for result in results:
        first = result.key != last[0]
        row, work = (result.row, result.work) if first else ("", "")
        ours = _speed(result.ours)
        shown = ours if first or ours != last[1] else ""
        last = result.key, ours
        theirs = "skipped" if result.skipped else _speed(result.theirs)
        cpu = "" if result.cpu_ratio is None else times(result.cpu_ratio)
        met = "" if result.met is None else "yes" if result.met else "NO"
        note = result.more.get("note", "")
        cells.append((row, work, shown, result.peer, theirs, value(result), cpu, wanted(result), met, note))
    return cells


def value(result: Result) -> str:
    if result.value is None:
        return ""
    if result.unit == "×":
        return times(result.value) + (" the time" if result.at_most else "")
    return f"{result.value:+.1f} ms" if result.unit else f"{result.value:g}"


def wanted(result: Result) -> str:
    if result.wanted is None:
        return ""
    return f"{'≤' if result.at_most else '≥'} {result.wanted:g}{result.unit}"


def _speed(speed: Speed | str | None) -> str:
    if speed is None or isinstance(speed, str):
        return speed or ""
    rate = "" if speed.bytes_per_s is None else f"{speed.bytes_per_s / 1e6:,.0f} MB/s, "
    return f"{rate}{speed.cpu_s or 0:.2f} s CPU"


def save_plot(results: list[Result], path: Path, caption: str) -> None:
    from bars import CONTEXT, MET, MISSED, Bar, save_bars  # matplotlib: only here, after everything was measured

    judged, context = [], []
    for result in results:
        name = f"{result.key}  ·  {result.peer}"
        if result.value is None or result.wanted == 0:
            continue  # nothing was to be wrong: that is no length
        if result.wanted is not None:
            told = f"{value(result)}   ({wanted(result)})"
            judged.append(Bar(name, _over(result), told, MET if result.met else MISSED))
        elif result.unit == "×":
            context.append(Bar(name, result.value, value(result), CONTEXT))
    save_bars(judged, context, title="Writing: holdfast against what was wanted of it", caption=caption, path=path)


def _over(result: Result) -> float:
    """How many times better than wanted; what costs next to nothing must not make the others too small to see."""
    assert result.value is not None
    assert result.wanted is not None
    if not result.at_most:
        return result.value / result.wanted
    return min(result.wanted / max(result.value, 1e-9), 20.0)
