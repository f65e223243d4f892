"""Renders what doctor found: as JSON, whose keys are stable, and as one page for each process asked about."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from ..._util.terminal import TableColumn, add_lines, bar, make_grid, make_table, use_style
from ..._util.text import counted, format_bytes, printable, span_words
from ...procfs.limits import Limit, amount, finite, name_of, percent, quantity, used_part
from .diagnose import (
    SEVERITY,
    SOFT_LIMIT,
    HasDiagnosis,
    WatchTarget,
    advice_of,
    blamed,
    command_of,
    eta_of,
    forecast_of,
    kinds_of,
    remedy_of,
)
from .messages import number_words, range_words
from .model import FdProfile, ResourceUse, Trend, Verdict
from .sampler import ENDED


def targets_as_dict(targets: Sequence[WatchTarget], errors: Sequence[str] = ()) -> dict[str, Any]:
    """Returns one target as the document itself; several, or one beside errors, as a list."""
    if len(targets) == 1 and not errors:
        return target_as_dict(targets[0])
    if not targets:
        return {"error": "; ".join(errors)}
    worst = max((target.verdict for target in targets), key=SEVERITY.__getitem__)
    found: dict[str, Any] = {"verdict": worst.value, "targets": [target_as_dict(target) for target in targets]}
    return found | ({"errors": list(errors)} if errors else {})


def target_as_dict(target: WatchTarget) -> dict[str, Any]:
    """Describes the worst process of the tree, which `about` names."""
    worst = target.worst
    diagnosis = worst.diagnosis
    return {
        "pid": target.pid,
        "about": worst.snapshot.process.pid,
        "command": command_of(worst),
        "uptime_s": None if (up := worst.snapshot.process.uptime_s) is None else round(up, 1),
        "watched_s": round(target.watched_s, 3),
        "verdict": diagnosis.verdict.value,
        "evidence": [*diagnosis.evidence, *([target.confidence] if target.confidence else [])],
        "advice": advice_of(diagnosis),
        "fds": diagnosis.fds,
        "limit": finite(diagnosis.soft),
        "hard_limit": finite(diagnosis.hard),
        "kinds": kinds_of(worst),
        "dead_pipes": None if diagnosis.profile is None else diagnosis.profile.dead_pipes,
        "self_pairs": None if diagnosis.profile is None else diagnosis.profile.self_pairs,
        "growth_per_hour": None if diagnosis.trend is None else finite(round(diagnosis.trend.per_hour, 3)),
        "eta_s": eta_of(diagnosis),
        "signature": None if (match := blamed(diagnosis)) is None else match.name,
        "resources": {use.name: _use_as_dict(use) for use in diagnosis.resources},
        "held_by": list(target.held_by),
        "tree": [_row(one) for one in target.processes],
    }


def _use_as_dict(use: ResourceUse) -> dict[str, Any]:
    return {
        "verdict": use.verdict.value,
        "used": use.used,
        "limit": None if use.limit is None else use.limit.name,
        "headroom": None if use.limit is None else finite(use.limit.headroom),
        "growth_per_hour": None if use.trend is None else finite(round(use.trend.per_hour, 3)),
        "eta_s": None if finite(use.eta_s[0]) is None else [finite(round(one, 1)) for one in use.eta_s],
        "signature": use.match.name,
    }


def _row(one: HasDiagnosis) -> dict[str, Any]:
    process = one.snapshot.process
    return {
        "pid": process.pid,
        "ppid": process.ppid,
        "command": command_of(one),
        "fds": one.diagnosis.fds,
        "limit": finite(one.diagnosis.soft),
        "kinds": kinds_of(one),
        "threads": process.threads,
        "rss_bytes": process.rss_bytes,
        "verdict": one.diagnosis.verdict.value,
    }


# ---- marks

MARKS = {
    Verdict.OK: "✓",
    Verdict.UNCLEAR: "?",
    Verdict.SETTLING: "◌",
    Verdict.GROWING: "▲",
    Verdict.LEAK: "✗",
    Verdict.EXHAUSTED: "✗",
}
STYLES = {
    Verdict.OK: "green",
    Verdict.UNCLEAR: "yellow",
    Verdict.SETTLING: "cyan",
    Verdict.GROWING: "bold yellow",
    Verdict.LEAK: "bold red",
    Verdict.EXHAUSTED: "bold white on red",
}


def marked(verdict: Verdict) -> str:
    return f"{MARKS[verdict]} {verdict.value}"


# ---- forecasts

_DAY_S = 86400
# Later than this counts as never.
_FAR_S = 100 * 365 * _DAY_S


def clock(now: datetime, seconds: float) -> str:
    """`20:41`, `Thu 14:00`, `12 Mar`, `Mar 2031`: less exact the further away."""
    at = now + timedelta(seconds=min(seconds, _FAR_S))
    if at.date() == now.date():
        return at.strftime("%H:%M")
    if seconds < 6 * _DAY_S:
        return at.strftime("%a %H:%M")
    return at.strftime("%-d %b") if seconds < 300 * _DAY_S else at.strftime("%b %Y")


def when(eta_s: tuple[float, float], now: datetime) -> str:
    """`in about 2 h 10 min (20:41 ± 9 min)`, `in 1 h to 9 h (19:30 to Thu 03:30)`, `in 2 h at the earliest (20:41)`.

    Empty where it never happens.
    """
    low, high = eta_s
    if not low < _FAR_S:
        return ""
    if not high < _FAR_S:
        return f"in {span_words(low)} at the earliest ({clock(now, low)})"
    middle, half = (low + high) / 2, (high - low) / 2
    if half > middle / 3:
        return f"in {span_words(low)} to {span_words(high)} ({clock(now, low)} to {clock(now, high)})"
    return f"in about {span_words(middle)} ({clock(now, middle)} ± {span_words(half)})"


def short_when(eta_s: tuple[float, float]) -> str:
    """For a narrow column: `~2 h 10 min`, `>2 h` if it may never happen, "" if it does not."""
    low, high = eta_s
    if not low < _FAR_S:
        return ""
    return f"~{span_words((low + high) / 2)}" if high < _FAR_S else f">{span_words(low)}"


# ---- the tree of processes

WIDE = 110
SHOWN = 24
COLUMNS = (
    TableColumn("pid"),
    TableColumn("fds / limit", right=True),
    TableColumn("kinds", cut=True),
    TableColumn("thr", right=True),
    TableColumn("RSS", right=True),
    TableColumn("verdict"),
    TableColumn("command", cut=True),
)
_KINDS = 3
_STEP = 3
# Deeper processes are not indented further, so that their numbers stay on the line.
_DEEPEST = 4


def tree_table(processes: Sequence[HasDiagnosis], width: int, shown: int = SHOWN) -> Group:
    """Returns a table with a row for each process; the last line says how many are left out."""
    kept = choose(processes, shown)
    stems = draw_stems([(one.snapshot.process.pid, one.snapshot.process.ppid) for one in kept])
    columns = COLUMNS if width >= WIDE else COLUMNS[:-1]
    rows = [_cells(one, stem)[: len(columns)] for one, stem in zip(kept, stems, strict=True)]
    left = len(processes) - len(kept)
    more = [Text(f"… and {left:,} more processes (--json lists all)")] if left else []
    return Group(make_table(columns, rows, width), *more)


def _cells(one: HasDiagnosis, stem: str) -> list[Text]:
    process, diagnosis = one.snapshot.process, one.diagnosis
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


def kinds_in_short(one: HasDiagnosis, maximum: int = _KINDS) -> str:
    """`pipe 18 file 6 socket 2`: the most frequent ones."""
    if one.snapshot.process.state in ENDED:
        return "zombie, not waited for"
    if one.snapshot.descriptors is None:
        return "permission denied"
    return " ".join(f"{kind.value} {times:,}" for kind, times in list(one.snapshot.kinds.items())[:maximum])


def choose(processes: Sequence[HasDiagnosis], shown: int) -> list[HasDiagnosis]:
    """Returns all, or the first and the worst ones, in the order of the tree."""
    if len(processes) <= shown:
        return list(processes)
    ranked = sorted(processes[1:], key=lambda one: (-SEVERITY[one.diagnosis.verdict], -(one.diagnosis.fds or 0)))
    among = {id(one) for one in [processes[0], *ranked[: shown - 1]]}
    return [one for one in processes if id(one) in among]


def draw_stems(rows: Sequence[tuple[int, int | None]]) -> list[str]:
    """(pid, parent) of each, parents first -> the prefix of the pid: `├─ `, `│  └─ `. rich's Tree has no columns."""
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


# ---- the page

_LABEL = 12
_PAGE = 140  # longer lines are hard to read
_USED = 0.5
# nofile has a line of its own, and nr_open is not used up.
_NOT_LISTED = {"nofile", "nr_open"}
# The kernel does not enforce these for root.
_NOT_FOR_ROOT = {"nproc", "pipe_user_pages"}


class DoctorPage:
    """The page on one target, laid out for the given width."""

    def __init__(self, target: WatchTarget, now: datetime) -> None:
        self._target = target
        self._now = now
        self._worst = target.worst
        self._diagnosis = target.worst.diagnosis

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = min(options.max_width, _PAGE)
        yield self._headline(width)
        yield ""
        yield Padding(self._facts(width), (0, 0, 0, 2), expand=False)
        if len(self._target.processes) > 1:
            yield ""
            yield Padding(tree_table(self._target.processes, width - 2), (0, 0, 0, 2), expand=False)
        yield ""
        yield Padding(self._meaning(), (0, 0, 0, 2), expand=False)

    # ---- the first line ----------------------------------------------------------------------------------

    def _headline(self, width: int) -> Text:
        process = self._worst.snapshot.process
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
        decisive, forecast = self._diagnosis.decisive, forecast_of(self._diagnosis)
        said = marked(verdict)
        if decisive is not None:
            said += f" · {decisive.noun}"
        eta_s = decisive.eta_s if decisive is not None else forecast.eta_s if forecast else (math.inf, math.inf)
        eta = when(eta_s, self._now) if eta_s[1] > 0 else ""
        if eta:
            said += f"{':' if decisive else ' ·'} exhausted {eta}"
        return Text(said, style=STYLES[verdict])

    # ---- facts -------------------------------------------------------------------------------------------

    def _facts(self, width: int) -> Table:
        made = make_grid(_LABEL)
        made.add_row("descriptors", self._descriptors(width))
        if width < WIDE and (hard := self._hard_limit()):
            made.add_row("", Text(hard, "dim"))
        made.add_row("growth", _growth(self._diagnosis.trend, self._target.watched_s))
        for forecast in self._diagnosis.forecasts:
            if forecast.line != SOFT_LIMIT and (soon := when(forecast.eta_s, self._now)):
                made.add_row("", f"{forecast.line} ({forecast.at:,}) {soon}")
        made.add_row("kinds", self._kinds())
        if pipes := dead_pipes_words(self._diagnosis.profile):
            made.add_row("dead pipes", pipes)
        for use in self._diagnosis.resources:
            made.add_row(_LABELS[use.name], _use_words(use, self._now))
        limits = [*self._worst.snapshot.limits, *self._target.shared]
        root = self._worst.snapshot.process.uid == 0
        tight = _tight(limits, _NOT_LISTED | _NOT_FOR_ROOT if root else _NOT_LISTED)
        add_lines(made, "also used", _uses(tight, width))
        if not self._target.whole_tree:
            made.add_row("children", "not scanned: this process has no free descriptor")
        return made

    def _descriptors(self, width: int) -> Text:
        diagnosis = self._diagnosis
        text = Text(f"{quantity(diagnosis.fds)} of {quantity(diagnosis.soft)} soft")
        if (used := used_part(diagnosis.fds, diagnosis.soft)) is not None:
            text.append("   ").append_text(_bar(used, width))
        if width >= WIDE and (hard := self._hard_limit()):
            text.append(f"   {hard}", "dim")
        return text

    def _hard_limit(self) -> str:
        hard = self._diagnosis.hard
        return f"hard limit: {quantity(hard)}" if hard is not None and hard != self._diagnosis.soft else ""

    def _kinds(self) -> str:
        if self._worst.snapshot.descriptors is None:
            uid = self._worst.snapshot.process.uid
            owner = "another user" if uid is None else f"user {uid}"
            return f"permission denied: the process belongs to {owner}; run as that user or as root"
        return " · ".join(f"{kind.value} {times:,}" for kind, times in self._worst.snapshot.kinds.items()) or "none"

    # ---- what it means -----------------------------------------------------------------------------------

    def _meaning(self) -> Table:
        diagnosis = self._diagnosis
        made = make_grid(_LABEL)
        add_lines(made, "because", diagnosis.evidence)
        if self._target.confidence:
            made.add_row("confidence", printable(self._target.confidence))
        if match := blamed(diagnosis):
            made.add_row("cause", printable(f"looks like {match.cause}"))
        add_lines(made, "held by", self._target.held_by)
        if diagnosis.advice:
            made.add_row("do", _numbered(diagnosis.advice))
        if remedy := remedy_of(diagnosis):
            add_lines(made, "write", [*remedy.code, f"({remedy.page})"])
        add_lines(made, "next", [diagnosis.next_step] if diagnosis.next_step else [])
        return made


def _numbered(lines: Sequence[str]) -> RenderableType:
    if len(lines) == 1:
        return printable(lines[0])
    made = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 1, 0, 0))
    for n, line in enumerate(lines, 1):
        made.add_row(f"{n}.", printable(line))
    return made


def _growth(trend: Trend | None, watched_s: float) -> str:
    if trend is not None:
        sign, span = "+" if trend.per_hour > 0 else "", span_words(trend.span_s)
        return f"{sign}{number_words(trend.per_hour)}/h ({range_words(trend.low, trend.high)}), baseline over {span}"
    if watched_s:
        return f"unclear after {span_words(watched_s)}: watch it longer"
    return "one snapshot: --for auto watches until the verdict is clear"


_LABELS = {
    "threads": "threads",
    "zombies": "zombies",
    "children": "children",
    "memory": "memory",
    "shm_files": "/dev/shm",
    "inotify_instances": "inotify",
    "inotify_watches": "inotify",
}


def _use_words(use: ResourceUse, now: datetime) -> Text:
    text = quantity(use.used, in_bytes=use.in_bytes)
    if use.trend is not None:
        text += f", +{quantity(use.trend.per_hour, in_bytes=use.in_bytes)}/h"
    if use.limit is not None and (soon := when(use.eta_s, now)):
        text += f"; limit reached {soon}" if use.eta_s[1] > 0 else "; limit reached"
    return Text.assemble(text, "   ", (marked(use.verdict), STYLES[use.verdict]))


def dead_pipes_words(profile: FdProfile | None) -> str:
    if profile is None or not (profile.dead_pipes or profile.self_pairs):
        return ""
    if not profile.dead_pipes:
        return f"none; {counted(profile.self_pairs, 'pipe')} with both ends in this process"
    return f"{profile.dead_pipes:,}: the other end is closed in every process{_mix(profile)}"


def _mix(profile: FdProfile) -> str:
    """` (1 internal : 4 HUP : 4 ERR)`: finished loaders of W workers leave 1 : W : W."""
    parts = [(profile.self_pairs, "internal"), (profile.hup, "HUP"), (profile.err, "ERR")]
    there = [(times, name) for times, name in parts if times]
    if len(there) == 1:
        return " (read ends)" if profile.hup else " (write ends)"
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
