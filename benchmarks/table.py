"""The results of benchmarks/tfrecord.py as a table."""

from __future__ import annotations

from grid import markdown_grid, text_grid, times
from measure import Result, Speed
from rows import MEMORY_LIMIT_BYTES

HEADS = ("row", "work", "holdfast", "peer", "its speed", "ratio", "wanted", "met")


def text_table(results: list[Result]) -> str:
    return text_grid(HEADS, _cells(results))


def markdown_table(results: list[Result]) -> str:
    return markdown_grid(HEADS, _cells(results))


def notes(results: list[Result]) -> list[str]:
    return [f"{result.work}: {result.note}" for result in results if result.note]


def _cells(results: list[Result]) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = []
    last = ""
    for result in results:
        first, last = result.key != last, result.key
        row, work = (result.row, result.work) if first else ("", "")
        ours = _ours(result) if first else ""
        cells.append((row, work, ours, result.peer, *_against(result)))
    return cells


def _ours(result: Result) -> str:
    if result.growth_bytes is not None:
        return f"+{result.growth_bytes / (1 << 20):.1f} MiB"
    return _speed(result.ours) if result.ours else ""


def _against(result: Result) -> tuple[str, str, str, str]:
    met = "" if result.met is None else "yes" if result.met else "NO"
    if result.growth_bytes is not None:
        return "", "", f"≤ {MEMORY_LIMIT_BYTES >> 20} MiB", met
    wanted = "" if result.wanted is None else f"≥ {result.wanted:g}×"
    if result.ratio is None or result.theirs is None:
        return "skipped", "", wanted, ""
    return _speed(result.theirs), times(result.ratio), wanted, met


def _speed(speed: Speed) -> str:
    rate = speed.records_per_s
    count = f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.1f} k"
    return f"{count} rec/s, {speed.bytes_per_s / 1e9:.2f} GB/s"
