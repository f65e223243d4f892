"""One frame of `top`: for a terminal of any width, for a pipe, and cell by cell for the live view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from .._base.units import format_bytes
from ..diagnose.words import number_words
from ..look.board import Picture, Row
from ..look.target import SEVERITY
from ..proc.limit import Limit
from .bars import bar, sparkline
from .columns import Column, lay_out
from .doctor_facts import blamed, command_of, eta_of, forecast_of, kinds_of
from .limits import amount, finite, quantity, used_part
from .spans import short_when
from .tree import draw_stems
from .verdicts import STYLES, marked, use_style
from .words import counted, printable

WIDE = 120
_BAR = 8
_PAGES_PER_PIPE = 16


class Order(StrEnum):
    TREE = "tree"
    FDS = "descriptors"
    GROWTH = "growth"
    MEMORY = "memory"
    VERDICT = "verdict"


_ASCENDING: dict[Order, Callable[[Row], float]] = {
    Order.FDS: lambda row: -(row.fds or 0),
    Order.GROWTH: lambda row: -(row.diagnosis.trend.per_hour if row.diagnosis.trend else 0.0),
    Order.MEMORY: lambda row: -(row.rss_bytes or 0),
    Order.VERDICT: lambda row: -SEVERITY[row.diagnosis.verdict],
}
COLUMNS = (
    Column("pid"),
    Column("fds", right=True),
    Column("limit", right=True),
    Column("used"),
    Column("Δ/h", right=True),
    Column("dark in", right=True),
    Column("dead", right=True),
    Column("verdict"),
    Column("history"),
    Column("RSS", right=True),
    Column("thr", right=True),
    Column("command", cut=True),
)
# The least width at which they are shown; the others always are: whose it is, how many, and the verdict.
_ONLY_FROM = {"limit": WIDE, "history": WIDE, "RSS": WIDE, "thr": WIDE} | dict.fromkeys(
    ("used", "Δ/h", "dark in", "dead", "command"), 58
)
_PAGE = 180


def columns_for(width: int) -> list[int]:
    """Which of COLUMNS there is room for."""
    return [at for at, column in enumerate(COLUMNS) if width >= _ONLY_FROM.get(column.head, 0)]


def arrange(rows: Sequence[Row], order: Order) -> list[tuple[Row, str]]:
    """The rows in this order, each with what is drawn before its pid."""
    if order is Order.TREE:
        return list(zip(rows, draw_stems([(row.pid, row.look.process.ppid) for row in rows]), strict=True))
    return [(row, "") for row in sorted(rows, key=_ASCENDING[order])]


def cells_of(row: Row, stem: str) -> list[Text]:
    """In the order of COLUMNS."""
    diagnosis = row.diagnosis
    used = used_part(row.fds, diagnosis.soft) or 0.0
    forecast = forecast_of(diagnosis)
    dead = 0 if diagnosis.structure is None else diagnosis.structure.dead_pipes
    return [
        Text.assemble((stem, "dim"), str(row.pid)),
        Text(quantity(row.fds)),
        Text(quantity(diagnosis.soft)),
        Text(bar(used, _BAR), style=use_style(used)),
        Text(_growth(row)),
        Text(short_when(forecast.eta_s) if forecast else ""),
        Text(f"{dead:,}" if dead else "", style="red"),
        Text(marked(diagnosis.verdict), style=STYLES[diagnosis.verdict]),
        Text(sparkline(row.history, _BAR), style="cyan"),
        Text("?" if row.rss_bytes is None else format_bytes(row.rss_bytes)),
        Text(quantity(row.threads)),
        Text(printable(command_of(row)), style="dim"),
    ]


def _growth(row: Row) -> str:
    trend = row.diagnosis.trend
    if trend is None or not trend.per_hour:
        return ""
    return f"{'+' if trend.per_hour > 0 else ''}{number_words(trend.per_hour)}"


def host_line(host: Sequence[Limit]) -> Text:
    """`files of the machine 1,504 of unlimited · pipes 120 of 1,024 · /dev/shm 1.2 GB of 8 GB`."""
    names = {"file_max": "open files of the machine", "pipe_user_pages": "pipes seen", "dev_shm_bytes": "/dev/shm"}
    line = Text()
    for limit in host:
        per = _PAGES_PER_PIPE if limit.name == "pipe_user_pages" else 1
        used, most = (None if value is None else value / per for value in (limit.used, limit.soft))
        line.append(" · " if line else "")
        line.append(f"{names[limit.name]} ", "dim")
        # Kernels write "no limit" as the largest number there is.
        most = float("inf") if most is not None and most > 1e15 else most
        line.append(f"{amount(limit, used)} of {amount(limit, most)}", use_style(limit.ratio or 0.0))
    return line


class Frame:
    """A picture that lays itself out for the width it is given."""

    def __init__(self, picture: Picture, order: Order = Order.TREE) -> None:
        self._picture = picture
        self._order = order

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = min(options.max_width, _PAGE)
        shown = columns_for(width)
        rows = [cells_of(row, stem) for row, stem in arrange(self._picture.rows, self._order)]
        yield host_line(self._picture.host)
        yield ""
        cells = [[row[at] for at in shown] for row in rows]
        yield from lay_out([COLUMNS[at] for at in shown], cells, width, gap=2 if width >= WIDE else 1)
        yield ""
        yield summary(self._picture.rows)


def summary(rows: Sequence[Row]) -> Text:
    """`12 processes, 4,711 descriptors: 11 OK, 1 LEAK`."""
    many = counted(len(rows), "process").replace("processs", "processes")
    fds = counted(sum(row.fds or 0 for row in rows), "descriptor")
    verdicts = [row.diagnosis.verdict for row in rows]
    line = Text(f"{many}, {fds}")
    for at, verdict in enumerate(sorted(set(verdicts), key=SEVERITY.__getitem__, reverse=True)):
        line.append(", " if at else ": ").append(f"{verdicts.count(verdict)} {verdict.value}", STYLES[verdict])
    return line


def picture_as_dict(picture: Picture) -> dict[str, Any]:
    """Unlimited and unknown are null."""
    return {
        "host": {limit.name: {"used": limit.used, "limit": finite(limit.soft)} for limit in picture.host},
        "processes": [_row_as_dict(row) for row in picture.rows],
    }


def _row_as_dict(row: Row) -> dict[str, Any]:
    diagnosis = row.diagnosis
    return {
        "pid": row.pid,
        "ppid": row.look.process.ppid,
        "command": command_of(row),
        "fds": row.fds,
        "limit": finite(diagnosis.soft),
        "kinds": kinds_of(row),
        "dead_pipes": None if diagnosis.structure is None else diagnosis.structure.dead_pipes,
        "growth_per_hour": None if diagnosis.trend is None else finite(round(diagnosis.trend.per_hour, 3)),
        "eta_s": eta_of(diagnosis),
        "rss_bytes": row.rss_bytes,
        "threads": row.threads,
        "verdict": diagnosis.verdict.value,
        "signature": None if (match := blamed(diagnosis)) is None else match.name,
    }
