"""What is wrong with a file, as a table: shared by the commands that find it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..formats.tfrecord.problems import Problem
from ..report.words import printable
from .screen import Screen

if TYPE_CHECKING:
    from ..formats.tar.verify import Wrong

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


def show_wrongs(screen: Screen, wrongs: Sequence[Wrong]) -> None:
    """The same of a tar."""
    for wrong in wrongs:
        sample = f"sample {wrong.sample:,}" if wrong.sample is not None else ""
        byte = f"at byte {wrong.offset:,}" if wrong.offset is not None else ""
        place = " ".join(part for part in (sample, byte) if part)
        screen.print(f"  {place}: {printable(wrong.reason)}" if place else f"  {printable(wrong.reason)}")
    screen.print()
