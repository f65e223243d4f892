"""A tree of processes as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from .._base.units import format_bytes
from ..look.target import SEVERITY, Judged
from ..look.watch import ENDED
from .columns import Column, lay_out
from .doctor_facts import command_of
from .limits import quantity
from .verdicts import STYLES, marked
from .words import printable

WIDE = 110
SHOWN = 24
COLUMNS = (
    Column("pid"),
    Column("fds / limit", right=True),
    Column("kinds", cut=True),
    Column("thr", right=True),
    Column("RSS", right=True),
    Column("verdict"),
    Column("command", cut=True),
)
_KINDS = 3
_STEP = 3
# Deeper ones are drawn no further to the right: the numbers beside them must stay on the line.
_DEEPEST = 4


def tree_lines(judged: Sequence[Judged], width: int, shown: int = SHOWN) -> list[Text]:
    """The table line by line; where rows are left out the last line says so."""
    kept = choose(judged, shown)
    stems = draw_stems([(one.look.process.pid, one.look.process.ppid) for one in kept])
    columns = COLUMNS if width >= WIDE else COLUMNS[:-1]
    rows = [_cells(one, stem)[: len(columns)] for one, stem in zip(kept, stems, strict=True)]
    left = len(judged) - len(kept)
    more = [Text(f"… and {left:,} more processes (--json lists all)")] if left else []
    return lay_out(columns, rows, width) + more


def _cells(one: Judged, stem: str) -> list[Text]:
    process, diagnosis = one.look.process, one.diagnosis
    rss = "?" if process.rss_bytes is None else format_bytes(process.rss_bytes)
    return [
        Text.assemble((stem, "dim"), str(process.pid)),
        Text(f"{quantity(diagnosis.fds)} / {quantity(diagnosis.soft)}"),
        Text(kinds_in_short(one), style="dim"),
        Text(quantity(process.threads)),
        Text(rss),
        Text(marked(diagnosis.verdict), style=STYLES[diagnosis.verdict]),
        Text(printable(command_of(one)), style="dim"),
    ]


def kinds_in_short(one: Judged, most: int = _KINDS) -> str:
    """`pipe 18 file 6 socket 2`: the most frequent ones."""
    if one.look.process.state in ENDED:
        return "ended, not waited for"
    if one.look.descriptors is None:
        return "not to be seen"
    return " ".join(f"{kind.value} {times:,}" for kind, times in list(one.look.kinds.items())[:most])


def choose(judged: Sequence[Judged], shown: int) -> list[Judged]:
    """All, or the first and the worst ones, in the order of the tree."""
    if len(judged) <= shown:
        return list(judged)
    ranked = sorted(judged[1:], key=lambda one: (-SEVERITY[one.diagnosis.verdict], -(one.diagnosis.fds or 0)))
    among = {id(one) for one in [judged[0], *ranked[: shown - 1]]}
    return [one for one in judged if id(one) in among]


def draw_stems(rows: Sequence[tuple[int, int | None]]) -> list[str]:
    """(pid, parent) of each, parents first -> what is drawn before the pid: `├─ `, `│  └─ `; "" where it has none."""
    parents: dict[int, int | None] = {}
    for pid, parent in rows:
        parents[pid] = parent if parent in parents else None
    last = {parent: pid for pid, parent in parents.items() if parent is not None}
    return [_stem(pid, parents, last) for pid, _ in rows]


def _stem(pid: int, parents: Mapping[int, int | None], last: Mapping[int, int]) -> str:
    parent = parents[pid]
    if parent is None:
        return ""
    drawn = "└─ " if last[parent] == pid else "├─ "
    while (above := parents[parent]) is not None and len(drawn) < _DEEPEST * _STEP:
        drawn = ("   " if last[above] == parent else "│  ") + drawn
        parent = above
    return drawn
