"""Names and values under each other."""

from __future__ import annotations

from ..report.words import printable
from .screen import Screen


def show_facts(screen: Screen, facts: list[tuple[str, str]], width: int = 9) -> None:
    """Name and value; a long value goes on under itself."""
    if screen.talks and facts:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(min_width=width, overflow="fold", max_width=30)
        grid.add_column(overflow="fold")
        for name, value in facts:
            grid.add_row(Text(printable(name), style="dim"), Text(printable(value)))
        screen.print(Padding(grid, (0, 0, 0, 2), expand=False))
