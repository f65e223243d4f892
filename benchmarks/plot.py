"""The results of benchmarks/tfrecord.py as a picture."""

from __future__ import annotations

from pathlib import Path

from bars import CONTEXT, MET, MISSED, Bar, save_bars
from grid import times
from measure import Result
from rows import MEMORY_LIMIT_BYTES


def save_plot(results: list[Result], path: Path, caption: str) -> None:
    judged = [bar for result in results if (bar := _judged(result))]
    context = [
        Bar(f"{_short(result.work)}  ·  {result.peer}", result.ratio, times(result.ratio), CONTEXT)
        for result in results
        if result.ratio is not None and result.wanted is None
    ]
    title = "TFRecord: holdfast against what was wanted of it"
    save_bars(judged, context, title=title, caption=caption, path=path)


def _judged(result: Result) -> Bar | None:
    if result.growth_bytes is not None:
        over = MEMORY_LIMIT_BYTES / max(result.growth_bytes, 1 << 20)
        told = f"+{result.growth_bytes / (1 << 20):.0f} MiB   (≤ {MEMORY_LIMIT_BYTES >> 20} MiB)"
        return Bar(result.work, over, told, MET if result.met else MISSED)
    if result.ratio is None or result.wanted is None:
        return None
    told = f"{times(result.ratio)}   (≥ {result.wanted:g}×)"
    name = f"{_short(result.work)}  ·  {result.peer}"
    return Bar(name, result.ratio / result.wanted, told, MET if result.met else MISSED)


def _short(work: str) -> str:
    return work.split(",")[0] if "batches" in work or "object" in work else work
