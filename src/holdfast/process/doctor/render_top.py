"""Renders `holdfast top`: one frame for a terminal of any width or a pipe, the cells of the live view, and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from ..._util.terminal import TableColumn, add_lines, bar, make_grid, make_table, sparkline, use_style
from ..._util.text import counted, format_bytes, printable
from ...procfs.limits import PIPE_PAGES, Limit, amount, finite, quantity, used_part
from .diagnose import SEVERITY, blamed, command_of, eta_of, forecast_of, kinds_of
from .messages import number_words
from .render import STYLES, draw_stems, marked, short_when
from .top_model import TopRow, TopSnapshot


def detail(row: TopRow) -> RenderableType:
    """Shows the selected process: command, kinds, evidence, cause and advice."""
    diagnosis = row.diagnosis
    head = Text.assemble(
        (str(row.pid), "bold"),
        f"  {printable(command_of(row))}  ",
        (marked(diagnosis.verdict), STYLES[diagnosis.verdict]),
        no_wrap=True,
        overflow="ellipsis",
    )
    made = make_grid(8)
    kinds = " · ".join(f"{kind.value} {times:,}" for kind, times in row.snapshot.kinds.items())
    add_lines(made, "kinds", [kinds] if kinds else [])
    add_lines(made, "because", diagnosis.evidence)
    add_lines(made, "cause", [f"looks like {match.cause}"] if (match := blamed(diagnosis)) else [])
    add_lines(made, "do", diagnosis.advice)
    add_lines(made, "next", [diagnosis.next_step] if diagnosis.next_step else [])
    return Group(head, made)


WIDE = 120
_BAR = 8


class SortOrder(StrEnum):
    TREE = "tree"
    FDS = "descriptors"
    GROWTH = "growth"
    MEMORY = "memory"
    VERDICT = "verdict"


_ASCENDING: dict[SortOrder, Callable[[TopRow], float]] = {
    SortOrder.FDS: lambda row: -(row.fds or 0),
    SortOrder.GROWTH: lambda row: -(row.diagnosis.trend.per_hour if row.diagnosis.trend else 0.0),
    SortOrder.MEMORY: lambda row: -(row.rss_bytes or 0),
    SortOrder.VERDICT: lambda row: -SEVERITY[row.diagnosis.verdict],
}
COLUMNS = (
    TableColumn("pid"),
    TableColumn("fds", right=True),
    TableColumn("limit", right=True),
    TableColumn("used"),
    TableColumn("Δ/h", right=True),
    TableColumn("full in", right=True),
    TableColumn("dead", right=True),
    TableColumn("verdict"),
    TableColumn("history"),
    TableColumn("RSS", right=True),
    TableColumn("thr", right=True),
    TableColumn("command", cut=True),
)
# The minimum width at which a column is shown; pid, fds and verdict always are.
_ONLY_FROM = {"limit": WIDE, "history": WIDE, "RSS": WIDE, "thr": WIDE} | dict.fromkeys(
    ("used", "Δ/h", "full in", "dead", "command"), 58
)
_PAGE = 180


def columns_for(width: int) -> list[int]:
    """Returns the indices of COLUMNS that fit."""
    return [at for at, column in enumerate(COLUMNS) if width >= _ONLY_FROM.get(column.head, 0)]


def arrange(rows: Sequence[TopRow], order: SortOrder) -> list[tuple[TopRow, str]]:
    """Sorts the rows, and returns each with the prefix of its pid."""
    if order is SortOrder.TREE:
        return list(zip(rows, draw_stems([(row.pid, row.snapshot.process.ppid) for row in rows]), strict=True))
    return [(row, "") for row in sorted(rows, key=_ASCENDING[order])]


def cells_of(row: TopRow, stem: str) -> list[Text]:
    """In the order of COLUMNS."""
    diagnosis = row.diagnosis
    used = used_part(row.fds, diagnosis.soft) or 0.0
    forecast = forecast_of(diagnosis)
    dead = 0 if diagnosis.profile is None else diagnosis.profile.dead_pipes
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


def _growth(row: TopRow) -> str:
    trend = row.diagnosis.trend
    if trend is None or not trend.per_hour:
        return ""
    return f"{'+' if trend.per_hour > 0 else ''}{number_words(trend.per_hour)}"


def host_line(host: Sequence[Limit]) -> Text:
    """`files of the machine 1,504 of unlimited · pipes 120 of 1,024 · /dev/shm 1.2 GB of 8 GB`."""
    names = {"file_max": "open files of the machine", "pipe_user_pages": "pipes seen", "dev_shm_bytes": "/dev/shm"}
    line = Text()
    for limit in host:
        per = PIPE_PAGES if limit.name == "pipe_user_pages" else 1
        used, maximum = (None if value is None else value / per for value in (limit.used, limit.soft))
        line.append(" · " if line else "")
        line.append(f"{names[limit.name]} ", "dim")
        # Kernels report "no limit" as the largest integer.
        maximum = float("inf") if maximum is not None and maximum > 1e15 else maximum
        line.append(f"{amount(limit, used)} of {amount(limit, maximum)}", use_style(limit.ratio or 0.0))
    return line


class TopFrame:
    """One frame, laid out for the given width."""

    def __init__(self, snapshot: TopSnapshot, order: SortOrder = SortOrder.TREE) -> None:
        self._snapshot = snapshot
        self._order = order

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = min(options.max_width, _PAGE)
        shown = columns_for(width)
        rows = [cells_of(row, stem) for row, stem in arrange(self._snapshot.rows, self._order)]
        yield host_line(self._snapshot.host)
        yield ""
        cells = [[row[at] for at in shown] for row in rows]
        yield make_table([COLUMNS[at] for at in shown], cells, width, gap=2 if width >= WIDE else 1)
        yield ""
        yield summary(self._snapshot.rows)


def summary(rows: Sequence[TopRow]) -> Text:
    """`12 processes, 4,711 descriptors: 11 OK, 1 LEAK`."""
    fds = counted(sum(row.fds or 0 for row in rows), "descriptor")
    verdicts = [row.diagnosis.verdict for row in rows]
    line = Text(f"{counted(len(rows), 'process')}, {fds}")
    for at, verdict in enumerate(sorted(set(verdicts), key=SEVERITY.__getitem__, reverse=True)):
        line.append(", " if at else ": ").append(f"{verdicts.count(verdict)} {verdict.value}", STYLES[verdict])
    return line


def top_as_dict(snapshot: TopSnapshot) -> dict[str, Any]:
    """Unlimited and unknown are null."""
    return {
        "host": {limit.name: {"used": limit.used, "limit": finite(limit.soft)} for limit in snapshot.host},
        "processes": [_row_as_dict(row) for row in snapshot.rows],
    }


def _row_as_dict(row: TopRow) -> dict[str, Any]:
    diagnosis = row.diagnosis
    return {
        "pid": row.pid,
        "ppid": row.snapshot.process.ppid,
        "command": command_of(row),
        "fds": row.fds,
        "limit": finite(diagnosis.soft),
        "kinds": kinds_of(row),
        "dead_pipes": None if diagnosis.profile is None else diagnosis.profile.dead_pipes,
        "growth_per_hour": None if diagnosis.trend is None else finite(round(diagnosis.trend.per_hour, 3)),
        "eta_s": eta_of(diagnosis),
        "rss_bytes": row.rss_bytes,
        "threads": row.threads,
        "verdict": diagnosis.verdict.value,
        "signature": None if (match := blamed(diagnosis)) is None else match.name,
    }
