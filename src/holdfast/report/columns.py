"""Rows under each other, each one line: what may be cut gives way to what must be read whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

GAP = 2
_LEAST = 6


@dataclass(frozen=True, slots=True)
class Column:
    head: str
    right: bool = False
    cut: bool = False


def lay_out(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int, gap: int = GAP) -> list[Text]:
    """The head, then the rows, none longer than `width` unless even the uncut cells are."""
    widths = [max([len(column.head), *(row[at].cell_len for row in rows)]) for at, column in enumerate(columns)]
    _shrink(columns, widths, width - gap * (len(columns) - 1))
    head = [Text(column.head, style="bold") for column in columns]
    return [_line(columns, widths, row, gap) for row in [head, *rows]]


def _shrink(columns: Sequence[Column], widths: list[int], width: int) -> None:
    """The widest of those that may be cut first."""
    over = sum(widths) - width
    while over > 0:
        at = max((at for at, column in enumerate(columns) if column.cut), key=widths.__getitem__, default=None)
        if at is None or widths[at] <= _LEAST:
            return
        widths[at] -= 1
        over -= 1


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[Text], gap: int) -> Text:
    line = Text(no_wrap=True)
    for at, (column, wide, cell) in enumerate(zip(columns, widths, cells, strict=True)):
        shown = cell.copy()
        shown.truncate(wide, overflow="ellipsis")
        pad = " " * (wide - shown.cell_len)
        line.append_text(Text(pad) + shown if column.right else shown + Text(pad))
        line.append(" " * gap if at + 1 < len(columns) else "")
    line.rstrip()
    return line
