"""Show which lines leak descriptors, from a recording.

Reads what `holdfast trace` has saved. A site is the innermost line of your own
code on the stack that made a descriptor; frames of libraries are folded under
it. The page ranks sites by growth, not by count, and shows for those that grow
what keeps their descriptors open. It also shows calls that found no free
descriptor, descriptors of unknown origin, and who is at fault where a closed
descriptor was used or closed again.

Of the database of `holdfast watch` it shows the verdict on every target as of
the last sample, also while the watch goes on; --html writes its page with all
charts as one file that needs no network.

Examples:

  holdfast report run.hft
  holdfast report run.hft --since 5m --site train.py:31
  holdfast report run.hft --html run.html
  holdfast report run.hft --collapsed | flamegraph.pl > run.svg
  holdfast report --diff before.hft after.hft
  holdfast report run.hft --fail-on-growth 10        in CI
  holdfast report watch.db --html watch.html

With --json:

  {"file": "run.hft", "command": "python train.py", "started": 1790000000.0,
   "duration_s": 61.2, "since_s": 0.0, "until_s": 60.9, "mode": "full",
   "exit_code": 0, "verdict": "…", "problem": "leak", "coverage": 1.0,
   "untraced": [{"pid": 4188, "command": "env -i make"}],
   "dropped_events": 0, "warnings": [],
   "sites": [{"file": "/home/me/train.py", "line": 31, "function": "train",
   "text": "for batch in DataLoader(…):", "live": 144, "born": 599,
   "closed": 455, "peak": 145, "growth": 131.0, "growth_per_minute": 143.1,
   "oldest_s": 58.2, "kinds": {"pipe": 120, "file": 24}, "pids": [4121],
   "inherited": 1512, "inherited_by": 24, "closed_by_another_thread": 60,
   "lifetime_p50_s": 0.0004, "lifetime_p99_s": 0.32, "closed_at":
   {"/home/me/train.py:31": 395}, "owners": ["…"], "targets": ["pipe:[77]"],
   "via": ["torch/utils/data/dataloader.py:493"]}],
   "failed": [{"file": "…", "line": 7, "function": "load", "text": "…",
   "call": "open", "error": "EMFILE", "count": 12}],
   "unknown": [{"target": "/dev/nvidia0", "count": 3}],
   "bad": [{"kind": "stale close", "fd": 3, "call": "read", "count": 1,
   "sentence": "…", "doubt": "", "deadly": true, "culprit": {"file": "…",
   "line": 3, "function": "load", "text": "…"}, "victim": {…}, "steps":
   [{"t_s": 0.31, "pid": 4121, "tid": 4130, "what": "opened", "note": "",
   "file": "…", "line": 3, "function": "load", "text": "…", "stack":
   ["data.py:3 load"]}]}],
   "processes": [{"pid": 4121, "parent": null, "command": "…",
   "python": "3.11.7", "start_s": 0.01, "end_s": 61.0, "ended": "exit",
   "live": 3, "peak": 151, "dropped_events": 0}]}

  mode      full, or partial where the tracing library could not be used
  live, born, closed   until the program began to shut down; what ends with
            its process is closed
  inherited copies in forked processes; not part of live
  coverage  the part of all births in traced processes that was seen, 0 to 1
  untraced  processes that ran without the tracing library; pid 0: the shell of
            system() or popen()
  problem   bad descriptor, leak, no descriptor free, or "" for none
  bad       one entry a descriptor, the most important first; deadly: the
            program failed after it; doubt: what else it may be
  bad.kind  double close, use after close, stale close, stale dup2, suspected
            stale close, not inherited, never open, cannot be told

and with --diff {"before": "a.hft", "after": "b.hft", "sites": [{"change":
"grew", "file": …, "line": …, "function": …, "text": …, "live_before": 3,
"live_after": 90, "growth_per_minute_before": 0.0,
"growth_per_minute_after": 41.0}]}, where change is new, grew, shrank, gone or
same; and of a database what /api/state of `holdfast watch` returns.

Exit codes: 0 shown; 1 a site grows faster than --fail-on-growth allows, or the
recording is corrupt; 2 wrong usage; 3 the file cannot be read.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from .._util.atomic import check_not_input
from .._util.text import printable, span_words
from ..process.fdtrace import trace_file
from ..process.fdtrace.compare import compare
from ..process.fdtrace.export import WEIGHTS, changes_as_dict, folded_stacks, report_as_dict, site_as_dict
from ..process.fdtrace.html_page import write_page
from ..process.fdtrace.render import ChangesPage, Findings, ReportPage, SitePage
from ..process.fdtrace.sites import Site, Statistics, rate, short
from ..process.watch.documents import load_state
from ..process.watch.report_page import write_state
from ..process.watch.state import TargetState
from .app import FINE, FOUND, command, seconds_of
from .console import Screen
from .tables import AnyTerminal


def _seconds_or_zero(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    return 0.0 if value in ("0", "0s") else seconds_of(ctx, param, value)


def _rate_of(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise click.BadParameter(f"expected descriptors a minute, at least 0, got {value:g}", ctx, param)
    return value


@command(__doc__)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--html", type=click.Path(dir_okay=False), metavar="OUT", help="Write one page for a browser.")
@click.option("--collapsed", is_flag=True, help="Print folded stacks, for speedscope and flamegraph.pl.")
@click.option(
    "--weight", type=click.Choice(WEIGHTS), default="live", show_default=True, help="What --collapsed counts."
)
@click.option("--since", metavar="TIME", callback=_seconds_or_zero, help="Leave out what was before: 30s, 5m.")
@click.option("--until", metavar="TIME", callback=seconds_of, help="Leave out what was after: 30s, 5m.")
@click.option("--diff", is_flag=True, help="Compare two recordings. A line that has moved is still the same site.")
@click.option(
    "--fail-on-growth",
    type=float,
    metavar="N",
    callback=_rate_of,
    help="Exit with 1 if a site grows by more than N descriptors a minute; with --diff, by N more than before.",
)
@click.option("--top", type=click.IntRange(1, 100_000), metavar="N", help="Show that many sites.")
@click.option("--site", metavar="FILE:LINE", help="Show all stacks of this site.")
def report(
    screen: Screen,
    files: tuple[str, ...],
    html: str | None,
    collapsed: bool,
    weight: str,
    since: float | None,
    until: float | None,
    diff: bool,
    fail_on_growth: float | None,
    top: int | None,
    site: str | None,
) -> int:
    if any(map(_is_database, files)):
        for_recordings = (collapsed, diff, site, top, since, until, fail_on_growth)
        if len(files) > 1 or any(one not in (None, False) for one in for_recordings):
            raise click.UsageError("expected one database of holdfast watch, with --html or --json or alone")
        return _report_watch(screen, files[0], html)
    if len(files) != (2 if diff else 1):
        wanted = "two recordings, before and after" if diff else "one recording (--diff compares two)"
        raise click.UsageError(f"expected {wanted}, got {len(files)}")
    if diff:
        if html or collapsed or site:
            raise click.UsageError("expected --diff alone, got it with --html, --collapsed or --site")
        return _compare(screen, files[0], files[1], since, until, fail_on_growth, top)
    if sum((html is not None, collapsed, screen.as_json)) > 1:
        raise click.UsageError("expected one of --html, --collapsed and --json, got several")
    if html:
        check_not_input(files, [html])
    found = _find(files[0], since, until)
    statistics = found.statistics
    if html:
        write_page(found.trace, html, since=since, until=until)
        screen.print(f"wrote {html}")
    elif collapsed:
        if not screen.quiet:
            print("\n".join(folded_stacks(statistics, weight)))
    elif site:
        sites = _matching(statistics, site)
        screen.document({"sites": [site_as_dict(statistics, one) for one in sites]})
        for one in sites:
            screen.print(AnyTerminal(SitePage(statistics, one, top)))
    else:
        screen.document(report_as_dict(found, files[0], top))
        screen.print(AnyTerminal(ReportPage(found, top=top)))
    return FINE if fail_on_growth is None else _judge(found.growing_above(fail_on_growth), fail_on_growth)


def _find(file: str, since: float | None, until: float | None) -> Findings:
    trace = trace_file.load(file)
    try:
        return Findings(trace, since=since, until=until)
    except ValueError as error:
        raise click.UsageError(f"{file}: {error}") from error


def _judge(growing: Sequence[Site], limit: float) -> int:
    for site in growing:
        said = f"{site.where} in {site.frame.function} grows by {rate(site.per_minute)}; --fail-on-growth allows"
        print(f"holdfast: {printable(said)} {limit:g} a minute", file=sys.stderr)
    return FOUND if growing else FINE


def _matching(statistics: Statistics, wanted: str) -> list[Site]:
    """Returns the sites of `FILE:LINE`, where FILE may be the end of a path, or of FILE alone."""
    found = [
        site
        for site in statistics.sites
        for where in (site.where, site.frame.file)
        if where == wanted or where.endswith(f"/{wanted.removeprefix('./')}")
    ]
    if not found:
        there = ", ".join(short(site.where) for site in statistics.sites[:3])
        raise click.UsageError(f"expected a site of this recording, got {wanted}; the first are {there or 'none'}")
    return found


def _compare(
    screen: Screen,
    before: str,
    after: str,
    since: float | None,
    until: float | None,
    fail_on_growth: float | None,
    top: int | None,
) -> int:
    old, new = (_find(file, since, until).statistics.sites for file in (before, after))
    changes = compare(old, new)
    screen.document(changes_as_dict(changes, before, after))
    screen.print(AnyTerminal(ChangesPage(changes, after, top=top)))
    if fail_on_growth is None:
        return FINE
    worse = {
        (one.frame.file, one.frame.line)
        for one in changes
        if one.per_minute_after - one.per_minute_before > fail_on_growth
    }
    return _judge([site for site in new if (site.frame.file, site.frame.line) in worse], fail_on_growth)


# ---- databases of watch

_SQLITE = b"SQLite format 3\0"


def _is_database(file: str) -> bool:
    if not os.path.isfile(file):  # a pipe would block
        return False
    try:
        with open(file, "rb") as opened:
            return opened.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False  # whoever reads it next says why


def _report_watch(screen: Screen, file: str, html: str | None) -> int:
    if html and screen.as_json:
        raise click.UsageError("expected one of --html and --json, got both")
    if html:
        check_not_input([file], [html])
    state = load_state(Path(file))
    if html:
        write_state(state, html)
        screen.print(f"wrote {html}")
        return FINE
    screen.document(state)
    screen.print(screen.styled(f"{state['verdict']}: {state['sentence']}", "bold"))
    heads = ("Target", ">PID", "Verdict", ">Open", ">Limit", ">Growth/h", ">Full in", ">Dead pipe ends")
    screen.table(heads, [_row(target) for target in state["targets"]])
    for target in state["targets"]:
        screen.print(f"{printable(target['target'])}: {printable(target['sentence'])}")
        for line in target["advice"]:
            screen.print(f"  advice: {printable(line)}")
    return FINE


def _row(target: TargetState) -> tuple[str, ...]:
    growth, eta, dead = target["growth_per_hour"], target["eta_s"], target["dead_pipes"]
    return (
        target["target"],
        str(target["pid"]),
        target["verdict"] if target["alive"] else f"{target['verdict']}, ended",
        _or_dash(target["fds"]),
        _or_dash(target["limit"]),
        f"{growth[0]:+,.0f}" if growth and growth[1] > 0 else "0" if growth else "-",
        span_words(eta[0]) if eta and eta[0] is not None else "-",
        _or_dash(sum(dead.values()) if dead else None),
    )


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
