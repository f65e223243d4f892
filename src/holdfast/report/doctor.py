"""What doctor found, for people: one page for each process asked about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..diagnose.facts import Structure, Trend
from ..diagnose.words import number_words, range_words, span_words
from ..look.target import Target
from ..proc.limit import Limit
from .bars import bar
from .doctor_facts import SOFT_LIMIT, blamed, command_of, cure_of, forecast_of
from .limits import amount, name_of, percent, quantity, used_part
from .spans import when
from .tree import WIDE, tree_lines
from .verdicts import STYLES, marked, use_style
from .words import counted, printable

_LABEL = 12
_PAGE = 140  # wider than that nobody reads a line to its end
_USED = 0.5
# That which is never used up by itself, and that which has a line of its own.
_NOT_LISTED = {"nofile", "nr_open"}
# What the kernel does not hold root to.
_NOT_FOR_ROOT = {"nproc", "pipe_user_pages"}


class DoctorPage:
    """Lays itself out for the width it is given."""

    def __init__(self, target: Target, now: datetime) -> None:
        self._target = target
        self._now = now
        self._worst = target.worst
        self._diagnosis = target.worst.diagnosis

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = min(options.max_width, _PAGE)
        yield self._headline(width)
        yield ""
        yield Padding(self._facts(width), (0, 0, 0, 2), expand=False)
        if len(self._target.judged) > 1:
            yield ""
            for line in tree_lines(self._target.judged, width - 2):
                yield Text("  ") + line
        yield ""
        yield Padding(self._meaning(), (0, 0, 0, 2), expand=False)

    # ---- the first line ----------------------------------------------------------------------------------

    def _headline(self, width: int) -> Text:
        process = self._worst.look.process
        name = f"{printable(self._target.role)} {process.pid}"
        up = "" if process.uptime_s is None else f"   up {span_words(process.uptime_s)}"
        verdict = self._verdict()
        said = Text(f"  {printable(command_of(self._worst))}")
        taken = cell_len(name) + cell_len(up)
        room = width - taken - verdict.cell_len - 3
        if said.cell_len > room and room < 24:
            said.truncate(max(0, width - taken), overflow="ellipsis")
            return Text.assemble((name, "bold"), said, (up, "dim"), "\n", verdict)
        said.truncate(room, overflow="ellipsis")
        gap = width - taken - said.cell_len - verdict.cell_len
        return Text.assemble((name, "bold"), said, (up, "dim"), " " * gap, verdict)

    def _verdict(self) -> Text:
        verdict = self._diagnosis.verdict
        forecast = forecast_of(self._diagnosis)
        dark = when(forecast.eta_s, self._now) if forecast else ""
        said = f"{marked(verdict)} · dark {dark}" if dark else marked(verdict)
        return Text(said, style=STYLES[verdict])

    # ---- facts -------------------------------------------------------------------------------------------

    def _facts(self, width: int) -> Table:
        made = _grid()
        made.add_row("descriptors", self._descriptors(width))
        if width < WIDE and (airbag := self._airbag()):
            made.add_row("", Text(airbag, "dim"))
        made.add_row("growth", _growth(self._diagnosis.trend, self._target.watched_s))
        for forecast in self._diagnosis.forecasts:
            if forecast.line != SOFT_LIMIT and (soon := when(forecast.eta_s, self._now)):
                made.add_row("", f"{forecast.line} ({forecast.at:,}) {soon}")
        made.add_row("kinds", self._kinds())
        if pipes := _dead_pipes(self._diagnosis.structure):
            made.add_row("dead pipes", pipes)
        limits = [*self._worst.look.limits, *self._target.shared]
        root = self._worst.look.process.uid == 0
        _list(made, "also used", _uses(_tight(limits, _NOT_LISTED | _NOT_FOR_ROOT if root else _NOT_LISTED), width))
        if not self._target.whole_tree:
            made.add_row("children", "could not be looked for: no descriptor is free here")
        return made

    def _descriptors(self, width: int) -> Text:
        diagnosis = self._diagnosis
        text = Text(f"{quantity(diagnosis.fds)} of {quantity(diagnosis.soft)} soft")
        if (used := used_part(diagnosis.fds, diagnosis.soft)) is not None:
            text.append("   ").append_text(_bar(used, width))
        if width >= WIDE and (airbag := self._airbag()):
            text.append(f"   {airbag}", "dim")
        return text

    def _airbag(self) -> str:
        hard = self._diagnosis.hard
        return f"airbag: hard limit {quantity(hard)}" if hard is not None and hard != self._diagnosis.soft else ""

    def _kinds(self) -> str:
        if self._worst.look.descriptors is None:
            uid = self._worst.look.process.uid
            owner = "another user" if uid is None else f"user {uid}"
            return f"not to be seen: the process is of {owner}; ask as that user or as root (with CAP_SYS_PTRACE)"
        return " · ".join(f"{kind.value} {times:,}" for kind, times in self._worst.look.kinds.items()) or "none"

    # ---- what it means -----------------------------------------------------------------------------------

    def _meaning(self) -> Table:
        diagnosis = self._diagnosis
        made = _grid()
        _list(made, "because", [printable(line) for line in diagnosis.evidence])
        if self._target.sureness:
            made.add_row("how sure", printable(self._target.sureness))
        if match := blamed(diagnosis):
            made.add_row("cause", printable(f"looks like {match.cause}"))
        _list(made, "held by", [printable(line) for line in self._target.held_by])
        if diagnosis.advice:
            made.add_row("do", _numbered(diagnosis.advice))
        if cure := cure_of(diagnosis):
            _list(made, "write", [*cure.code, f"({cure.page})"])
        return made


def _grid() -> Table:
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(width=_LABEL, style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    return made


def _list(made: Table, label: str, lines: Iterable[RenderableType]) -> None:
    for at, line in enumerate(lines):
        made.add_row("" if at else label, line)


def _numbered(lines: Sequence[str]) -> RenderableType:
    if len(lines) == 1:
        return printable(lines[0])
    made = Table.grid(padding=(0, 1, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for n, line in enumerate(lines, 1):
        made.add_row(f"{n}.", printable(line))
    return made


def _growth(trend: Trend | None, watched_s: float) -> str:
    if trend is not None:
        sign, span = "+" if trend.per_hour > 0 else "", span_words(trend.span_s)
        return f"{sign}{number_words(trend.per_hour)}/h ({range_words(trend.low, trend.high)}), its floor over {span}"
    if watched_s:
        return f"not to be told from {span_words(watched_s)}: watch it for longer"
    return "seen once: --for auto watches until it can tell"


def _dead_pipes(structure: Structure | None) -> str:
    if structure is None or not (structure.dead_pipes or structure.self_pairs):
        return ""
    if not structure.dead_pipes:
        return f"none; {counted(structure.self_pairs, 'pipe')} with both ends in this process alone"
    return f"{structure.dead_pipes:,}: their far end is closed in every process{_mix(structure)}"


def _mix(structure: Structure) -> str:
    """` (1 self-pair : 4 HUP : 4 ERR)`: the finished loaders of W workers leave 1 : W : W."""
    parts = [(structure.self_pairs, "self-pair"), (structure.hup, "HUP"), (structure.err, "ERR")]
    there = [(times, name) for times, name in parts if times]
    if len(there) == 1:
        return " (read ends)" if structure.hup else " (write ends)"
    least = min(times for times, _ in there)
    return f" ({' : '.join(f'{round(times / least, 1):g} {name}' for times, name in there)})"


def _tight(limits: list[Limit], without: set[str]) -> list[Limit]:
    used = [limit for limit in limits if limit.name not in without and (limit.ratio or 0) > _USED]
    return sorted(used, key=lambda limit: -(limit.ratio or 0))


def _uses(limits: list[Limit], width: int) -> list[Text]:
    amounts = [f"{amount(limit, limit.used)} of {amount(limit, limit.soft)}" for limit in limits]
    long = max(map(len, amounts), default=0)
    return [
        Text(f"{said:<{long}}   ").append_text(_bar(limit.ratio or 0.0, width)).append(f"   {name_of(limit)}")
        for said, limit in zip(amounts, limits, strict=True)
    ]


def _bar(ratio: float, width: int) -> Text:
    return Text.assemble((bar(ratio, 24 if width >= WIDE else 14), use_style(ratio)), f" {percent(ratio)}")
