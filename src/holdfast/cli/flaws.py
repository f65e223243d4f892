"""What is wrong with an HDF5 file, as a table: shared by the commands that find it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..report.words import printable
from .screen import Screen

if TYPE_CHECKING:
    from ..formats.hdf5.verify import Flaw

_SHOWN = 8


def show_flaws(screen: Screen, flaws: Sequence[Flaw]) -> None:
    """Where and what; long lists are cut, and that is said."""
    shown = flaws[:_SHOWN]
    if all(flaw.dataset is None for flaw in shown):  # of the file as a whole
        for flaw in shown:
            screen.print(f"  {printable(flaw.reason)}")
    else:
        rows = [(flaw.dataset or "", _chunk(flaw), _offset(flaw), flaw.reason) for flaw in shown]
        screen.table(["object", "chunk at", ">at byte", "what is wrong"], rows, indent=2)
    if len(flaws) > _SHOWN:
        screen.print(f"  … and {len(flaws) - _SHOWN:,} more (--json lists all)")
    screen.print()


def _chunk(flaw: Flaw) -> str:
    return "" if not flaw.chunk else ", ".join(map(str, flaw.chunk))


def _offset(flaw: Flaw) -> str:
    return "" if flaw.offset is None else f"{flaw.offset:,}"
