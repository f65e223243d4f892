"""What `top` says of the chosen process."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..look.board import Row
from .doctor_facts import blamed, command_of
from .verdicts import STYLES, marked
from .words import printable


def detail(row: Row) -> RenderableType:
    """The command, the kinds, why the verdict, the cause and what to do."""
    diagnosis = row.diagnosis
    head = Text.assemble(
        (str(row.pid), "bold"),
        f"  {printable(command_of(row))}  ",
        (marked(diagnosis.verdict), STYLES[diagnosis.verdict]),
        no_wrap=True,
        overflow="ellipsis",
    )
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(width=8, style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    _add(made, "kinds", [" · ".join(f"{kind.value} {times:,}" for kind, times in row.look.kinds.items())])
    _add(made, "because", diagnosis.evidence)
    _add(made, "cause", [f"looks like {match.cause}"] if (match := blamed(diagnosis)) else [])
    _add(made, "do", diagnosis.advice)
    return Group(head, made)


def _add(made: Table, label: str, lines: Sequence[str]) -> None:
    for at, line in enumerate(line for line in lines if line):
        made.add_row("" if at else label, printable(line))
