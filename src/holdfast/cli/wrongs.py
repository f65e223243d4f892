"""What is wrong with a file, as a table: shared by the commands that find it."""

from __future__ import annotations

from collections.abc import Sequence

from ..formats.tfrecord.problems import Problem
from ..report.words import printable
from .screen import Screen

_SHOWN = 8


def show_problems(screen: Screen, problems: Sequence[Problem]) -> None:
    """Where and what; long lists are cut, and that is said."""
    shown = problems[:_SHOWN]
    if all(problem.record is None for problem in shown):  # of the file as a whole
        for problem in shown:
            screen.print(f"  {printable(problem.reason)}")
    else:
        rows = [("" if p.record is None else f"{p.record:,}", f"{p.offset:,}", p.reason) for p in shown]
        screen.table([">record", ">at byte", "what is wrong"], rows, indent=2)
    if len(problems) > _SHOWN:
        screen.print(f"  … and {len(problems) - _SHOWN:,} more (--json lists all)")
    screen.print()
