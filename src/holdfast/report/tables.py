"""Tables for two kinds of readers.

On a terminal a table has a line under its head and folds what is too long. In a pipe or a file nothing is drawn,
cut or folded: one row is one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .words import printable


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, terminal: bool, indent: int = 0) -> Padding:
    """A head that begins with `>` is that of a column of numbers."""
    made = Table(
        box=SIMPLE_HEAD if terminal else None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for head in heads:
        if head.startswith(">"):
            made.add_column(head[1:], justify="right", no_wrap=True)
        else:
            made.add_column(head, overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return Padding(made, (0, 0, 0, indent), expand=False)
