"""Renders a recording as a page for a terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..._util.terminal import TableColumn, make_grid, make_table, sparkline
from ..._util.text import counted, printable, span_words
from ..doctor.messages import number_words
from .bad_descriptors import NumberHistory, find_histories
from .compare import GONE, GREW, NEW, SAME, SHRANK, SiteChange
from .descriptor_lives import HistoryStep, describe_frame
from .sites import Site, Statistics, is_library, short
from .trace_file import SourceFrame, Trace

_PAGE = 140  # longer lines are hard to read
_PIPE = 1_000  # no terminal is as wide: nothing is cut or wrapped
_WIDE = 104
_SHOWN = 10
_DETAILED = 3
_HISTORIES = 5
_UNKNOWN = 8
_A_SITE = 3


class Findings:
    """What a report says of a recording."""

    def __init__(self, trace: Trace, *, since: float | None = None, until: float | None = None) -> None:
        self.trace = trace
        self.statistics = Statistics(trace, since=since, until=until)
        limit = float("inf") if until is None else until
        self.histories = find_histories(trace, since=since or 0.0, until=limit)

    @property
    def misused(self) -> list[NumberHistory]:
        """The descriptors that were used or closed after their end, without mere suspicions."""
        return [history for history in self.histories if history.is_certain]

    @property
    def problem(self) -> str:
        """Names what the report begins with, "" if nothing is wrong."""
        grows = any(site.growth > 0 for site in self.statistics.sites)
        # A program that goes on after an EBADF is hurt more by a leak.
        if self.misused and (self.misused[0].is_deadly or not grows):
            return "bad descriptor"
        return "leak" if grows else "no descriptor free" if self.statistics.failed else ""

    def verdict(self) -> str:
        """Says whose mistake a bad descriptor is, and what grows."""
        misused = self.misused
        if not misused:
            return self.statistics.verdict()
        more = sum(history.count for history in misused) - 1
        others = f" {counted(more, 'more descriptor')} {'was' if more == 1 else 'were'} misused." if more else ""
        bad = f"Bad file descriptor: {misused[0].headline}{others}"
        if self.problem == "leak":
            return f"{self.statistics.verdict()} {bad}"
        grows = any(site.growth > 0 for site in self.statistics.sites)
        return f"{bad} {self.statistics.verdict()}" if grows or self.statistics.failed else bad

    def growing_above(self, per_minute: float) -> list[Site]:
        """Returns the sites that grow faster than this."""
        return [site for site in self.statistics.sites if site.growth > 0 and site.per_minute > per_minute]


# ---- words


def library_path(file: str) -> str:
    """Shortens the path of a library's file to the part that an import would name: `torch/utils/data/dataloader.py`."""
    for mark in (r"/(?:site|dist)-packages/", r"/lib(?:64)?/python3?[\d.]*/"):
        if len(parts := re.split(mark, file)) > 1:
            return parts[-1]
    return short(file)


def place_words(frame: SourceFrame) -> str:
    return f"{library_path(frame.file)}:{frame.line}" if frame.line else library_path(frame.file)


def time_words(seconds: float) -> str:
    """`40 µs`, `3.2 ms`, `1.5 s`, `12 min`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{number_words(seconds * 1e3)} ms"
    return f"{seconds:.1f} s" if seconds < 60 else span_words(seconds)


def _processes(count: int) -> str:
    return f"{count:,} {'process' if count == 1 else 'processes'}"


def kind_words(site: Site, maximum: int = 3) -> str:
    return " ".join(f"{kind} {count:,}" for kind, count in list(site.kinds.items())[:maximum])


def growth_words(per_minute: float) -> str:
    return f"+{number_words(per_minute)}" if per_minute else ""


def path_words(frames: Sequence[SourceFrame], maximum: int = 4) -> str:
    """`torch/…/dataloader.py:493 → … 3 more … → multiprocessing/connection.py:533`, in the order of the calls."""
    places = [place_words(frame) for frame in frames]
    if len(places) > maximum:
        places = [*places[: maximum - 1], f"… {len(places) - maximum} more …", places[-1]]
    return " → ".join(places)


def owner_words(owners: Sequence[str], live: int, maximum: int = _A_SITE) -> list[str]:
    """Joins paths that differ in an index or the number only: `'kept'[0] → …` and 11 more like it.

    The owners of a few of the `live` descriptors are looked for; if there are more, it says of how many these were.
    """
    like: dict[str, list[str]] = {}
    for line in owners:
        like.setdefault(re.sub(r"\[\d+\]|\(fd \d+\)", "", line), []).append(line)
    found = sorted(like.values(), key=len, reverse=True)
    of_all = "" if len(owners) >= live else f"; {len(owners)} of {live:,} were looked at"
    shown = found[:maximum]
    return [f"{line} (and {len(like)} more like it{of_all})" if like else line for line, *like in shown]


def closer_words(site: Site, maximum: int = 3) -> str:
    places = [f"{library_path(where)} ({count:,})" for where, count in list(site.closers.items())[:maximum]]
    more = len(site.closers) - maximum
    return ", ".join(places) + (f" and {counted(more, 'other line')}" if more > 0 else "")


# ---- pages

_COLUMNS = (
    TableColumn("site", cut=True),
    TableColumn("live", right=True),
    TableColumn("born", right=True),
    TableColumn("closed", right=True),
    TableColumn("peak", right=True),
    TableColumn("growth/min", right=True),
    TableColumn("oldest", right=True),
    TableColumn("procs", right=True),
    TableColumn("kinds", cut=True),
)


def _width(options: ConsoleOptions) -> int:
    return options.max_width if options.max_width > _PIPE else min(options.max_width, _PAGE)


def _indented(page: RenderableType, by: int = 2) -> Padding:
    return Padding(page, (0, 0, 0, by), expand=False)


class ReportPage:
    """The page on one recording."""

    def __init__(self, found: Findings, *, top: int | None = None) -> None:
        self._found = found
        self._trace = found.trace
        self._statistics = found.statistics
        self._top = _SHOWN if top is None else top

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = _width(options)
        yield self._verdict()
        yield ""
        yield _indented(self._facts(width))
        if self._found.misused:
            yield from self._histories(width)
        # Imports and other short-lived files of libraries are left out.
        sites = self._statistics.sites
        shown = [site for site in sites if site.live or (site.born and not is_library(site.frame.file))][: self._top]
        if shown:
            yield ""
            yield _indented(sites_table(shown, width - 2))
        if more := len(sites) - len(shown):
            yield Text(f"  … and {counted(more, 'more site')} (--top N shows more, --json all)", "dim")
        for number, site in enumerate(self._detailed(), 1):
            yield ""
            yield from self._site(number, site)
        yield from self._failed(width)
        yield from self._unknown(width)
        if not self._found.misused:
            yield from self._histories(width)

    def _verdict(self) -> Text:
        found = self._found
        is_wrong = found.problem in ("bad descriptor", "leak")
        is_doubtful = bool(found.problem or found.histories)
        mark, style = ("✗", "bold red") if is_wrong else ("▲", "bold yellow") if is_doubtful else ("✓", "bold green")
        return Text(f"{mark} {printable(self._found.verdict())}", style)

    def _facts(self, width: int) -> Table:
        trace, statistics = self._trace, self._statistics
        grid = make_grid(9)
        ended = "" if trace.exit_code is None else f", exit code {trace.exit_code}"
        window = (
            f", shown from {statistics.since:.1f} s to {statistics.until:.1f} s" if not statistics.is_entire else ""
        )
        grid.add_row("program", printable(trace.command))
        processes = _processes(len(trace.processes))
        grid.add_row("recorded", f"{time_words(trace.duration_s)}{window}, {processes}{ended}")
        total = statistics.live
        peak = max(total)
        drawn = sparkline(total.tolist(), 40 if width >= _WIDE else 24) if peak else ""
        grid.add_row("open", f"{total[-1]:,} at the end, {peak:,} at most  {drawn}".rstrip())
        grid.add_row("mode", self._mode())
        for warning in trace.warnings:
            grid.add_row("warning", Text(printable(warning), "yellow"))
        return grid

    def _mode(self) -> Text:
        trace, statistics = self._trace, self._statistics
        seen = f"{100 * statistics.coverage:.4g} % of all births in traced processes seen"
        if trace.untraced:
            seen += f"; {_processes(len(trace.untraced))} not traced"
        text = Text(f"{'partial' if trace.is_partial else 'full'}: {seen}")
        if dropped := statistics.dropped_events:
            text.append(f"; {counted(dropped, 'old event')} dropped (counts stay exact)")
        return text

    def _detailed(self) -> list[Site]:
        """Returns the sites to explain: those that grow, else the one with the most descriptors."""
        sites = self._statistics.sites
        growing = [site for site in sites if site.growth > 0]
        many = [site for site in sites[:1] if site.live > 1]
        return (growing or many)[:_DETAILED]

    def _site(self, number: int, site: Site) -> Iterator[RenderableType]:
        yield site_heading(f"{number}. ", site)
        yield _indented(site_details(self._statistics, site), 3)

    def _failed(self, width: int) -> Iterator[RenderableType]:
        failed = self._statistics.failed
        if not failed:
            return
        yield ""
        yield Text("Calls that failed because no descriptor was free", "bold")
        rows = [
            [
                Text(f"{one.count:,} ×"),
                Text(f"{one.error} in {one.call}", "red"),
                Text(printable(describe_frame(one.frame))),
            ]
            for one in failed[: self._top]
        ]
        yield _indented(_plain_table(rows, width - 2))

    def _unknown(self, width: int) -> Iterator[RenderableType]:
        unknown = self._statistics.unknown
        if not unknown:
            return
        yield ""
        yield Text.assemble(
            ("Origin unknown", "bold"), (" (made before the recording, or without a call that is seen)", "dim")
        )
        rows = [[Text(f"{one.count:,} ×"), Text(printable(one.target))] for one in unknown[:_UNKNOWN]]
        yield _indented(_plain_table(rows, width - 2))
        if len(unknown) > _UNKNOWN:
            yield Text(f"  … and {counted(len(unknown) - _UNKNOWN, 'more target')} (--json lists all)", "dim")

    def _histories(self, width: int) -> Iterator[RenderableType]:
        histories = self._found.histories
        if not histories:
            return
        yield ""
        yield Text("Descriptors that were used or closed after their end", "bold")
        for history in histories[:_HISTORIES]:
            yield ""
            times = f", {history.count:,} descriptors" if history.count > 1 else ""
            name = f"descriptor {history.fd}" if history.fd >= 0 else "a closed object"
            yield _indented(Text.assemble(f"{name}: ", (history.kind, "bold red"), times))
            yield _indented(_culprit(history), 4)
            yield _indented(Text(printable(history.sentence)), 4)
            if history.doubt:
                yield _indented(Text(printable(history.doubt), "yellow"), 4)
            yield _indented(history_table(self._trace, history, width - 4), 4)
        if len(histories) > _HISTORIES:
            yield ""
            yield Text(f"  … and {len(histories) - _HISTORIES:,} more (--json lists all)", "dim")


def sites_table(sites: Sequence[Site], width: int) -> RenderableType:
    """Returns a table with a row for each site."""
    wide = width >= _WIDE
    columns = _COLUMNS if wide else _COLUMNS[:-1]
    rows = []
    for site in sites:
        name = short(site.where) if not is_library(site.frame.file) else place_words(site.frame)
        where = Text(printable(name))
        if wide:
            where.append(f" {printable(_function(site.frame))}", "dim")
        style = "bold red" if site.growth > 0 else ""
        cells = [
            where,
            Text(f"{site.live:,}", style),
            Text(f"{site.born:,}"),
            Text(f"{site.closed:,}"),
            Text(f"{site.peak:,}"),
            Text(growth_words(site.per_minute), style),
            Text(time_words(site.oldest_s) if site.live else ""),
            Text(f"{len(site.processes):,}"),
            Text(kind_words(site), "dim"),
        ]
        rows.append(cells[: len(columns)])
    gap = 2 if wide else 1
    if not wide:
        _cut_left(columns, rows, width, gap)
    return make_table(columns, rows, width, gap=gap)


def _cut_left(columns: Sequence[TableColumn], rows: Sequence[list[Text]], width: int, gap: int) -> None:
    """Shortens the first cells from the left: the end of a place says the file and the line."""
    taken = sum(max(len(column.head), *(row[at].cell_len for row in rows)) for at, column in enumerate(columns) if at)
    room = max(8, width - taken - gap * len(columns))
    for row in rows:
        if row[0].cell_len > room:
            row[0] = Text(f"…{row[0].plain[1 - room :]}", row[0].style)


def _function(frame: SourceFrame) -> str:
    return frame.function.rsplit(".<locals>.", 1)[-1]


def site_heading(prefix: str, site: Site) -> Text:
    where = site.where if not is_library(site.frame.file) else place_words(site.frame)
    return Text.assemble(
        prefix, (printable(where), "bold"), f" in {printable(_function(site.frame))}" * bool(site.frame.line)
    )


def site_details(statistics: Statistics, site: Site) -> Table:
    """Says of one site what it runs, what it has open, who closes it and what keeps it open."""
    grid = make_grid(9)
    if site.frame.text:
        grid.add_row("line", Text(printable(site.frame.text), "cyan"))
    if path := path_words(statistics.path_of(site)):
        grid.add_row("via", Text(printable(path)))
    copies = f"; +{site.inherited:,} inherited by {_processes(statistics.inheritors(site))}" if site.inherited else ""
    kinds = f" ({kind_words(site)})" if site.kinds else ""
    oldest = f", the oldest for {time_words(site.oldest_s)}" if site.live else ""
    grid.add_row("open", f"{site.live:,}{kinds}{oldest}{copies}")
    if site.lifetime_p50_s is not None and site.lifetime_p99_s is not None:
        spans = (
            f"half are closed within {time_words(site.lifetime_p50_s)}, 99 % within {time_words(site.lifetime_p99_s)}"
        )
        grid.add_row("lifetimes", spans)
    if closers := closer_words(site):
        others = f"; {site.closed_elsewhere:,} by another thread than opened them" if site.closed_elsewhere else ""
        grid.add_row("closed at", Text(printable(closers) + others))
    for number, owner in enumerate(owner_words(site.owners, site.live)):
        grid.add_row("" if number else "kept by", Text(printable(owner), "yellow"))
    if site.targets:
        grid.add_row("leads to", Text(printable(", ".join(site.targets[:_A_SITE])), "dim"))
    return grid


def _culprit(history: NumberHistory) -> Table:
    """Names the line to change, and the one that failed."""
    grid = make_grid(9)
    for name, frame, style in (("culprit", history.culprit, "bold red"), ("failed", history.victim, "")):
        if name == "culprit" or frame != history.culprit:
            text = f"  {frame.text}" if frame.text else ""
            grid.add_row(name, Text.assemble((printable(describe_frame(frame)), style), (printable(text), "cyan")))
    return grid


def history_table(trace: Trace, history: NumberHistory, width: int) -> RenderableType:
    """Returns a table with a row for each event of the number."""
    first = history.steps[0].t_s
    several = len({step.pid for step in history.steps}) > 1
    rows = []
    for step in history.steps:
        thread = f"{step.pid}/{step.tid}" if several else str(step.tid)
        style = "bold red" if step.note else "red" if step.what.startswith("EBADF") else ""
        rows.append(
            [
                Text(f"{step.t_s:.3f} s" if step.t_s == first else f"+{time_words(step.t_s - first)}", "dim"),
                Text(thread, "dim"),
                Text(f"{step.what}, stale" if step.note else step.what, style),
                Text(printable(_step_words(trace, step))),
            ]
        )
    heads = (
        TableColumn("time", right=True),
        TableColumn("thread"),
        TableColumn("what"),
        TableColumn("where", cut=True),
    )
    return make_table(heads, rows, width)


def _step_words(trace: Trace, step: HistoryStep) -> str:
    frames = trace.frames_of(step.stack)
    at = frames.index(step.frame) if step.frame in frames else 0
    text = describe_frame(step.frame)
    callers = [place_words(frame) for frame in frames[at + 1 :]]
    return f"{text}, called from {' ← '.join(callers)}" if callers else text


def _plain_table(rows: Sequence[Sequence[Text]], width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for number in range(len(rows[0])):
        grid.add_column(justify="left" if number else "right", no_wrap=number + 1 < len(rows[0]), overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


class SitePage:
    """The page of --site: one site with all its stacks."""

    def __init__(self, statistics: Statistics, site: Site, maximum: int | None = None) -> None:
        self._statistics = statistics
        self._site = site
        self._max = _SHOWN if maximum is None else maximum

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield site_heading("", self._site)
        yield _indented(site_details(self._statistics, self._site), 3)
        live, born = self._statistics.weights("live"), self._statistics.weights("born")
        stacks = sorted(self._site.stacks, key=lambda stack: (-live.get(stack, 0), -born.get(stack, 0)))
        for stack in stacks[: self._max]:
            yield ""
            yield Text(f"   {live.get(stack, 0):,.0f} open, {born.get(stack, 0):,.0f} opened by this stack", "bold")
            for frame in reversed(self._statistics.trace.frames_of(stack)):
                style = "dim" if is_library(frame.file) else ""
                yield Text(printable(f"     {frame.file}:{frame.line} in {frame.function}"), style)
                if frame.text:
                    yield Text(printable(f"       {frame.text}"), style or "cyan")
            for line in self._statistics.trace.native.get(stack, ()):
                yield Text(printable(f"     {line}"), "dim")
        if len(stacks) > self._max:
            yield Text(f"   … and {counted(len(stacks) - self._max, 'more stack')} (--top N shows more)", "dim")


_STYLES = {NEW: "bold red", GREW: "red", SHRANK: "green", GONE: "green", SAME: "dim"}


class ChangesPage:
    """The page of --diff."""

    def __init__(self, changes: Sequence[SiteChange], after: str, *, top: int | None = None) -> None:
        self._changes = [one for one in changes if one.change != SAME or one.per_minute_after or one.per_minute_before]
        self._after = after
        self._top = 2 * _SHOWN if top is None else top

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = _width(options)
        counts = Counter(one.change for one in self._changes)
        said = ", ".join(f"{counts[name]} {name}" for name in (NEW, GREW, SHRANK, GONE) if counts[name])
        worse = counts[NEW] or counts[GREW]
        yield Text(
            f"{'▲' if worse else '✓'} Sites of {printable(self._after)}: {said}."
            if said
            else f"✓ No site of {printable(self._after)} has more or fewer open descriptors than before.",
            "bold yellow" if worse else "bold green",
        )
        if not self._changes:
            return
        yield ""
        rows = [
            [
                Text(one.change, _STYLES[one.change]),
                Text(printable(short(_where(one.frame)))),
                Text(f"{one.live_before:,}"),
                Text(f"{one.live_after:,}"),
                Text(growth_words(one.per_minute_before)),
                Text(growth_words(one.per_minute_after)),
                Text(printable(one.frame.text), "dim"),
            ]
            for one in self._changes[: self._top]
        ]
        columns = (
            TableColumn(""),
            TableColumn("site"),
            TableColumn("live", right=True),
            TableColumn("now", right=True),
            TableColumn("growth/min", right=True),
            TableColumn("now", right=True),
            TableColumn("line", cut=True),
        )
        yield _indented(make_table(columns, rows, width - 2))
        if len(self._changes) > self._top:
            yield Text(f"  … and {counted(len(self._changes) - self._top, 'more site')} (--top N shows more)", "dim")


def _where(frame: SourceFrame) -> str:
    return f"{frame.file}:{frame.line}" if frame.line else frame.file
