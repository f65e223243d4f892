"""What is wrong with a file, as a table: shared by the commands that find it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.formats.tfrecord.problems import Problem

from .screen import Screen

_SHOWN = 8


def show_problems(screen: Screen, problems: Sequence[Problem]) -> None:
    """Where and what; long lists are cut, and that is said."""
    rows = [
        ("" if p.record is None else f"{p.record:,}", "" if p.record is None else f"{p.offset:,}", p.reason)
        for p in problems[:_SHOWN]
    ]
    screen.table([">record", ">at byte", "what is wrong"], rows, indent=2)
    if len(problems) > _SHOWN:
        screen.print(f"  … and {len(problems) - _SHOWN:,} more (--json lists all)")
    screen.print()
