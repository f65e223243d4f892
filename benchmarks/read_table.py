"""The results of benchmarks/read.py as a table."""

from __future__ import annotations

from grid import markdown_grid, text_grid, times
from read_measure import Result, Speed

HEADS = ("row", "work", "holdfast", "peer", "its speed", "ratio", "CPU ratio", "wanted", "met")


def text_table(results: list[Result]) -> str:
    return text_grid(HEADS, _cells(results))


def markdown_table(results: list[Result]) -> str:
    return markdown_grid(HEADS, _cells(results))


def _cells(results: list[Result]) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = []
    last = ""
    for result in results:
        first, last = result.key != last, result.key
        row, work, ours = (result.row, result.work, _speed(result.ours)) if first else ("", "", "")
        theirs = "skipped" if result.theirs is None else _speed(result.theirs)
        ratio, cpu = (times(x) if x is not None else "" for x in (result.ratio, result.cpu_ratio))
        met = "" if result.met is None else "yes" if result.met else "NO"
        cells.append((row, work, ours, result.peer, theirs, ratio, cpu, _wanted(result), met))
    return cells


def _wanted(result: Result) -> str:
    if result.wanted is None:
        return ""
    return f"≥ {result.wanted:g}×" + (", CPU too" if result.cpu_wanted else "")


def _speed(speed: Speed | None) -> str:
    if speed is None:
        return "not there"
    if speed.descriptors_grown is not None:
        return f"{1000 * speed.seconds:.1f} ms, {speed.descriptors_grown:+} descriptors"
    rate = speed.records_per_s
    count = f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.1f} k" if rate >= 1e4 else f"{rate:,.0f}"
    return f"{count} samples/s" + ("" if speed.cpu_s is None else f", {speed.cpu_s:.2f} s CPU")
