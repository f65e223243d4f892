"""Tables and problem lists: ruled and wrapped on a terminal, one line per row in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from .._util.text import printable
from ..formats.tfrecord.diagnostics import Problem

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ..formats.hdf5.verify import Flaw
    from ..formats.tar.verify import Wrong


from .console import Screen

# One character each, so that columns stay aligned.
_ASCII = dict(zip("█▉▊▋▌▍▎▏░▁▂▃▄▅▆▇✓✗▲◌·–±×→…├└│─Δ", "#######|._.:-=+*+x^~,-~x>~|`|-d", strict=True))
_TO_ASCII = str.maketrans(_ASCII)


class AnyTerminal:
    """Shows a page with ASCII replacements for bars and symbols where the terminal has no UTF-8.

    Rich replaces only the lines of its own boxes.
    """

    def __init__(self, page: RenderableType) -> None:
        self._page = page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        if not options.ascii_only:
            yield self._page
            return
        for segment in console.render(self._page, options):
            yield Segment(segment.text.translate(_TO_ASCII), segment.style, segment.control)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, terminal: bool, indent: int = 0) -> Padding:
    """Makes a table. A head that begins with `>` aligns its column to the right."""
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


# What is wrong with a file, as a table: shared by the commands that find it.

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


# What is wrong with an HDF5 file, as a table: shared by the commands that find it.


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
