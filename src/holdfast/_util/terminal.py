"""Draws bars, sparklines and tables for pages in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.constrain import Constrain
from rich.table import Column, Table
from rich.text import Text

from .text import printable


def use_style(ratio: float) -> str:
    """Returns the colour of a bar."""
    return "red" if ratio >= 0.85 else "yellow" if ratio >= 0.5 else "green"


_PARTS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def bar(ratio: float, width: int) -> str:
    """Draws the used part of `width`. rich's Bar has no background: the free part would not show in a pipe."""
    ratio = min(1.0, max(0.0, ratio))
    eighths = int(ratio * width * 8)
    if ratio > 0:
        eighths = max(1, eighths)
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_PARTS[part] if part else "")).ljust(width, "░")


def sparkline(values: Sequence[float], width: int) -> str:
    """Draws the values from their lowest to their highest; a constant stays at the bottom."""
    shown = _squeeze(values, width)
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    step = (high - low) / (len(_HEIGHTS) - 1) or 1.0
    return "".join(_HEIGHTS[round((value - low) / step)] for value in shown)


def _squeeze(values: Sequence[float], width: int) -> list[float]:
    """Keeps the lowest value for each column, so that a rising baseline shows."""
    if len(values) <= width:
        return list(values)
    edges = [len(values) * at // width for at in range(width + 1)]
    return [min(values[edges[at] : edges[at + 1]]) for at in range(width)]


GAP = 2


@dataclass(frozen=True, slots=True)
class TableColumn:
    head: str
    right: bool = False
    cut: bool = False


def make_table(columns: Sequence[TableColumn], rows: Sequence[Sequence[Text]], width: int, gap: int = GAP) -> Constrain:
    """Lays out rows of one line each; the widest columns with `cut`, or else the last one, are truncated."""
    made = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    cut = [column for column in columns if column.cut] or columns[-1:]
    for column in columns:
        # rich narrows columns that may wrap; a cell that may not wrap is truncated there.
        made.add_column(column.head, justify="right" if column.right else "left", no_wrap=column not in cut)
    for row in rows:
        for cell in row:
            cell.no_wrap, cell.overflow = True, "ellipsis"
        made.add_row(*row)
    return Constrain(made, width)


def make_grid(label_width: int | None = None, style: str = "dim") -> Table:
    """Makes a table of labels, and values that are wrapped beside them."""
    label = Column(width=label_width, style=style, no_wrap=True)
    return Table.grid(label, Column(overflow="fold"), padding=(0, GAP, 0, 0))


def add_lines(grid: Table, label: str, lines: Iterable[str | Text]) -> None:
    """Adds a row for each line, and the label to the first."""
    for at, line in enumerate(lines):
        grid.add_row("" if at else label, printable(line) if isinstance(line, str) else line)
