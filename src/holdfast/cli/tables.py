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

from .._util.terminal import TableColumn, make_table
from .._util.text import printable
from .console import PIPE_WIDTH, Screen, show_rest

if TYPE_CHECKING:
    from ..data.formats.base import Problem  # loads numpy

# One character each, so that columns stay aligned.
_ASCII = dict(zip("█▉▊▋▌▍▎▏░▁▂▃▄▅▆▇✓✗▲◌·–±×→…├└│─Δ←µ", "#######|._.:-=+*+x^~,-~x>~|`|-d<u", strict=True))
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
    """Makes a table. A head that begins with `>` aligns its column to the right; with a head that begins with `~`, each
    row is one line, and that column is cut."""
    if any(head.startswith("~") for head in heads):
        columns = [TableColumn(head.lstrip(">~"), right=head[0] == ">", cut=head[0] == "~") for head in heads]
        cells = [[Text(printable(cell)) for cell in row] for row in rows]
        return Padding(
            make_table(columns, cells, (80 if terminal else PIPE_WIDTH) - indent), (0, 0, 0, indent), expand=False
        )
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


_SHOWN = 8


def show_problems(screen: Screen, problems: Sequence[Problem], *, inline: bool = False) -> None:
    """Shows the problems of a file as a table, the first few if there are many.

    inline: one line for each, with its sample and offset
    """
    shown = problems[:_SHOWN]
    if inline or all(problem.record is None and problem.dataset is None for problem in shown):
        for problem in shown:
            screen.print(f"  {_position(problem) if inline else ''}{printable(problem.reason)}")
    elif any(problem.dataset is not None for problem in shown):
        rows = [(p.dataset or "", ", ".join(map(str, p.chunk or ())), number(p.offset), p.reason) for p in shown]
        screen.table(["object", "chunk at", ">at byte", "what is wrong"], rows, indent=2)
    else:
        records = [(number(p.record), number(p.offset), p.reason) for p in shown]
        screen.table([">record", ">at byte", "what is wrong"], records, indent=2)
    show_rest(screen, len(problems) - _SHOWN, indent=2)
    screen.print()


def _position(problem: Problem) -> str:
    sample = [f"sample {problem.record:,}"] if problem.record is not None else []
    byte = [f"at byte {problem.offset:,}"] if problem.offset is not None else []
    return f"{' '.join(sample + byte)}: " if sample or byte else ""


def number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
