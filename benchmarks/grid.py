"""Rows of text as a table: aligned for a terminal, or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

Line = Sequence[str]


def text_grid(heads: Line, cells: Sequence[Line]) -> str:
    lines = [heads, *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    drawn.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(line.rstrip() for line in drawn)


def markdown_grid(heads: Line, cells: Sequence[Line]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ("---",) * len(heads), *cells])


def times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.1f}×" if ratio >= 10 else f"{ratio:.2f}×"
