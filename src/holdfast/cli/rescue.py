"""Rescue a process that is out of descriptors, and say why.

First raises the soft limit of the running process to its hard limit: what it
opens next works again, and it goes on by itself. Then dumps what helps to find
the cause: its descriptors by kind, pipes whose other end is closed, the paths
that it opened most, its Python stacks, the objects that hold the descriptors,
and its health. Last comes what to do next. Each step that fails is reported,
and the next one is done.

Stacks come from py-spy if it is installed, else from the process's own
hold.Guard. Owners are known for a process with a Guard, or one that has called
hold.listen(). No signal is sent to a process that has not asked for it.

--drain asks its Guard to finish the current job and exit, which has the
process restarted. Processes of other users can be rescued by root only.

Examples:

  holdfast rescue 41231
  holdfast rescue 41231 --drain --wait 15m
  sudo holdfast rescue 41231 --hard 262144 -o rescue.txt
  holdfast rescue 41231 --dry-run --json

With --json:

  {"pid": 41231, "command": "python -m ami.worker", "user": "ami (1000)",
   "rescued": true, "limit": {"soft": [1024, 524288], "hard": [524288,
   524288], "raised": true, "dry_run": false, "problem": null},
   "fds": 1021, "verdict": "LEAK", "evidence": ["…"], "kinds": {"pipe": 998},
   "dead_pipes": 960, "self_pairs": 12, "paths": [{"path": "…", "count": 9}],
   "signature": "dead-dataloader-iterators", "cause": "…",
   "health": "failing", "health_sentence": "…", "guard": {"name": "worker",
   "state": "running", "job": "17", "jobs_done": 16, "log": "…"},
   "stacks": {"source": "py-spy", "text": "…"}, "held_by": ["…"],
   "restarter": {"kind": "systemd", "name": "ami.service", "pid": null},
   "drain": {"draining": true, "exited": true, "waited_s": 4.2},
   "problems": ["…"], "advice": ["…"]}

  rescued     it was out of descriptors, and no longer is
  limit       each is [before, after]; null: unlimited
  verdict     with the new limit, as of holdfast doctor; null: not inspected
  health      of its Guard: starting, ok, draining, stopped, frozen, hung or
              failing; null without one, as are guard and drain
  problems    the steps that failed

-o FILE also saves it all, with every single descriptor (as JSON with --json).

Exit codes: 0 it is not out of descriptors, or no longer; 1 still
exhausted, or with --drain not drained within --wait; 2 wrong usage; 3 cannot:
no permission, no such process, it ended meanwhile, or --drain without a Guard.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from .._util.atomic import write_atomically
from .._util.text import counted, printable, span_words
from ..errors import WriteError
from ..process.guard.rescue import Rescue, user_name
from ..procfs.limits import finite, quantity
from ..procfs.procfs import REAL, number_or_none
from .app import FINE, FOUND, NO_ACCESS, ProcessId, command, seconds_of, usage_error
from .console import Screen, Waiting

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import ProgressColumn

_DRAIN_S = 10.0
_SHOWN_PATHS = 5
_SHOWN_STACK_LINES = 60
_DUMP_WIDTH = 100


@command(__doc__)
@click.argument("pid", type=ProcessId(), metavar="PID")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The new soft limit.  [default: the hard limit]")
@click.option("--hard", type=click.IntRange(min=1), metavar="N", help="Raise the hard limit, too; needs root.")
@click.option("--drain", is_flag=True, help="Ask its Guard to finish the current job and exit.")
@click.option(
    "--wait",
    "wait_s",
    callback=seconds_of,
    metavar="TIME",
    help="With --drain: wait for its exit, for so long.  [default: 10s, for the start of draining]",
)
@click.option("--dry-run", is_flag=True, help="Only inspect: change no limit, send no signal.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Save it all to FILE.")
def rescue(
    screen: Screen,
    pid: int,
    limit: int | None,
    hard: int | None,
    drain: bool,
    wait_s: float | None,
    dry_run: bool,
    output: str | None,
) -> int:
    _check_options(limit, hard, drain=drain, wait_s=wait_s)
    work = Rescue(pid, dry_run=dry_run)
    work.raise_limit(limit, hard)
    page = _Page(screen, work)
    page.show(page.limit)
    work.scan()
    page.show(page.facts)
    work.dump_stacks()
    work.ask_owners()
    page.show(page.stacks)
    if drain:
        _drain(screen, work, wait_s)
    work.conclude()
    page.show(page.end)
    screen.document(as_dict(work))
    if output is not None:
        _save(output, page, work, as_json=screen.as_json)
        screen.print(f"\nsaved {printable(output)}")
    return exit_code(work)


def _check_options(limit: int | None, hard: int | None, *, drain: bool, wait_s: float | None) -> None:
    if wait_s is not None and not drain:
        raise usage_error("expected --wait only with --drain, which it waits for")
    maximum = number_or_none(REAL, "/proc/sys/fs/nr_open")
    if hard is not None and maximum is not None and hard > maximum:
        raise usage_error(f"expected --hard of at most {maximum}, which fs.nr_open of this machine allows, got {hard}")
    if limit is not None and hard is not None and limit > hard:
        raise usage_error(f"expected --limit of at most --hard {hard}, got {limit}")


class _DrainBar(Waiting):
    def _columns(self) -> list[ProgressColumn]:
        from rich.progress import TextColumn, TimeRemainingColumn

        return [TimeRemainingColumn(), TextColumn("Ctrl-C: do not wait, it drains all the same")]


def _drain(screen: Screen, work: Rescue, wait_s: float | None) -> None:
    max_s = _DRAIN_S if wait_s is None else wait_s
    doing = "waiting until it drains" if wait_s is None else "waiting until it has drained and exits"
    with _DrainBar(doing, max_s, shown=sys.stderr.isatty() and not screen.quiet) as bar:
        bar.passed(0.0)  # imports all that it needs, which Ctrl-C must not interrupt
        try:
            work.drain(max_s, until_exit=wait_s is not None, progress=bar.passed)
        except KeyboardInterrupt:
            work.drain(0.0)  # says how far it is


def exit_code(work: Rescue) -> int:
    drained = work.drained
    if drained is not None and drained.done:
        return FOUND if work.exhausted else FINE
    if work.gone or (work.change.problem and not work.change.raised):
        return NO_ACCESS
    if drained is not None and not drained.asked:
        return FINE if work.dry_run else NO_ACCESS
    return FOUND if work.exhausted or drained is not None else FINE


# ---- as JSON


def as_dict(work: Rescue, *, descriptors: bool = False) -> dict[str, Any]:
    change, process, page = work.change, work.process, work.page
    diagnosis = work.found.diagnosis if work.found is not None else None
    profile = diagnosis.profile if diagnosis is not None else None
    snapshot = work.found.snapshot if work.found is not None else None
    listed = snapshot is not None and snapshot.descriptors is not None
    drained = work.drained
    facts: dict[str, Any] = {
        "pid": work.pid,
        "command": process.cmdline or process.comm,
        "user": None if work.user is None else user_name(work.user.uid),
        "rescued": exit_code(work) == FINE and work.was_exhausted and not work.dry_run,
        "limit": {
            "soft": [finite(change.old_soft), finite(change.soft)],
            "hard": [finite(change.old_hard), finite(change.hard)],
            "raised": change.raised and not change.planned,
            "dry_run": change.planned,
            "problem": change.problem or None,
        },
        "fds": work.fds,
        "verdict": None if diagnosis is None else diagnosis.verdict.value,
        "evidence": [] if diagnosis is None else list(diagnosis.evidence),
        "kinds": {kind.value: times for kind, times in snapshot.kinds.items()} if snapshot and listed else None,
        "dead_pipes": None if profile is None else profile.dead_pipes,
        "self_pairs": None if profile is None else profile.self_pairs,
        "paths": [{"path": path, "count": times} for path, times in _paths(work)],
        "signature": None if diagnosis is None or diagnosis.match is None else diagnosis.match.name,
        "cause": None if diagnosis is None or diagnosis.match is None else diagnosis.match.cause,
        "health": None if work.health is None else work.health.health.value,
        "health_sentence": None if work.health is None else work.health.sentence,
        "guard": None
        if page is None
        else {
            "name": page.name,
            "state": page.state.name.lower(),
            "job": page.job or None,
            "jobs_done": page.jobs_done,
            "log": page.log or None,
        },
        "stacks": {"source": work.stacks.source or None, "text": work.stacks.text},
        "held_by": list(work.held_by),
        "restarter": None
        if work.service_manager is None
        else {
            "kind": work.service_manager.kind,
            "name": work.service_manager.name or None,
            "pid": work.service_manager.pid,
        },
        "drain": None
        if drained is None
        else {"draining": drained.draining, "exited": drained.exited, "waited_s": round(drained.waited_s, 3)},
        "problems": work.problems,
        "advice": work.advice,
    }
    if descriptors:
        facts["descriptors"] = [] if snapshot is None else snapshot.as_dict(descriptors=True)["descriptors"]
    return facts


def _paths(work: Rescue) -> list[tuple[str, int]]:
    """Returns the paths that are open most often."""
    groups = work.found.snapshot.path_groups if work.found is not None else []
    return [(one.path, len(one.fds)) for one in groups[:_SHOWN_PATHS]]


# ---- as text


class _Page:
    """The text, section by section: the first is printed as soon as the limit is raised."""

    def __init__(self, screen: Screen, work: Rescue) -> None:
        self._screen = screen
        self._work = work

    def show(self, section: Callable[[], Iterator[RenderableType]]) -> None:
        if not self._screen.talks:
            return
        from .tables import AnyTerminal

        for part in section():
            self._screen.print(AnyTerminal(part))

    def as_text(self, columns: int = _DUMP_WIDTH) -> str:
        """Returns all sections, those that were printed and with -q those that were not."""
        from rich.console import Console

        file = io.StringIO()
        console = Console(file=file, width=columns, no_color=True, markup=False, highlight=False, emoji=False)
        for section in (self.limit, self.facts, self.all_stacks, self.end):
            for part in section():
                console.print(part)
        return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())

    def limit(self) -> Iterator[RenderableType]:
        from rich.text import Text

        work, change = self._work, self._work.change
        name = printable(work.process.cmdline or work.process.comm)
        yield Text.assemble((f"process {work.pid}", "bold"), f"  {name}", no_wrap=True, overflow="ellipsis")
        yield ""
        yield self._rows([("soft limit", _change(change.old_soft, change.soft, planned=change.planned))])
        if change.hard != change.old_hard:
            yield self._rows([("hard limit", _change(change.old_hard, change.hard, planned=change.planned))])

    def facts(self) -> Iterator[RenderableType]:
        from rich.text import Text

        from ..process.doctor.render import MARKS, STYLES, dead_pipes_words

        work = self._work
        rows: list[tuple[str, Any]] = []
        if work.found is not None:
            diagnosis, snapshot = work.found.diagnosis, work.found.snapshot
            verdict = diagnosis.verdict
            rows.append(("descriptors", f"{quantity(diagnosis.fds)} of {quantity(diagnosis.soft)}"))
            if snapshot.descriptors is not None:
                kinds = " · ".join(f"{kind.value} {times:,}" for kind, times in snapshot.kinds.items())
                rows.append(("kinds", kinds or "none"))
            if pipes := dead_pipes_words(diagnosis.profile):
                rows.append(("dead pipes", pipes))
            often = [f"{times:,} × {path}" for path, times in _paths(work)]
            rows += [("" if at else "most opened", line) for at, line in enumerate(often)]
            rows.append(("verdict", Text(f"{MARKS[verdict]} {verdict.value}", style=STYLES[verdict])))
            rows += [("" if at else "because", line) for at, line in enumerate(diagnosis.evidence)]
            if diagnosis.match is not None:
                rows.append(("cause", f"looks like {diagnosis.match.cause}"))
        yield self._rows(rows + list(self._guard()))

    def _guard(self) -> Iterator[tuple[str, str]]:
        work = self._work
        if work.health is not None and work.page is not None:
            yield "health", f"{work.health.health.value}: {work.health.sentence}"
            name = f"{work.page.name}: " if work.page.name else ""
            job = f", now job {work.page.job}" if work.page.job else ""
            yield "guard", f"{name}{counted(work.page.jobs_done, 'job')} done{job}"
        if work.service_manager is not None:
            yield "runs under", str(work.service_manager)

    def stacks(self, maximum: int = _SHOWN_STACK_LINES) -> Iterator[RenderableType]:
        from rich.padding import Padding
        from rich.text import Text

        work = self._work
        yield self._rows([("" if at else "held by", line) for at, line in enumerate(work.held_by)])
        if work.stacks.source:
            lines = work.stacks.text.splitlines()
            yield self._rows([("stacks", f"by {work.stacks.source}")])
            shown = "\n".join(map(printable, lines[:maximum]))
            yield Padding(Text(shown, no_wrap=not self._screen.terminal), (0, 0, 0, 4), expand=False)
            if len(lines) > maximum:
                yield f"    … and {counted(len(lines) - maximum, 'more line')} (-o FILE saves all)"

    def all_stacks(self) -> Iterator[RenderableType]:
        return self.stacks(maximum=sys.maxsize)

    def end(self) -> Iterator[RenderableType]:
        work = self._work
        if work.drained is not None and work.drained.done:
            did = f"exited after {span_words(work.drained.waited_s)}" if work.drained.exited else "draining"
            yield self._rows([("drain", did)])
        yield self._rows([("" if at else "not done", line) for at, line in enumerate(work.problems)])
        yield ""
        yield _outcome(work)
        if work.advice:
            yield self._rows([(f"{n}.", line) for n, line in enumerate(work.advice, 1)], label=2)

    def _rows(self, rows: list[tuple[str, Any]], label: int = 12) -> RenderableType:
        from rich.padding import Padding

        from .._util.terminal import make_grid

        grid = make_grid(label)
        for name, value in rows:
            grid.add_row(name, printable(value) if isinstance(value, str) else value)
        return Padding(grid, (0, 0, 0, 2), expand=False)


def _change(old: float | None, new: float | None, *, planned: bool) -> str:
    if old is None:
        return "unknown"
    if old == new:
        return f"{quantity(old)}, as before"
    return f"{quantity(old)} → {quantity(new)}" + (" (dry run: not changed)" if planned else "")


def _outcome(work: Rescue) -> RenderableType:
    from rich.text import Text

    code = exit_code(work)
    if work.drained is not None and work.drained.exited:
        return Text("✓ it has drained and exited", style="green")
    if work.gone:
        return Text("✗ it ended during the rescue", style="bold red")
    if code == FINE:
        change = work.change
        if change.planned:
            raised = "it is not out of descriptors; its limit would be raised"
            return Text(raised if change.raised else "nothing needs to be changed")
        if work.was_exhausted:
            return Text("✓ rescued: its limit was raised", style="green")
        done = "; its limit was raised all the same" if change.raised else ", and its limit needs no raise"
        return Text(f"✓ nothing to rescue: it is not out of descriptors{done}", style="green")
    if work.exhausted:
        return Text(f"✗ still exhausted{': nothing was changed' if work.dry_run else ''}", style="bold white on red")
    return Text(f"✗ {work.problems[-1] if work.problems else 'not rescued'}", style="bold red")


def _save(output: str, page: _Page, work: Rescue, *, as_json: bool) -> None:
    facts = as_dict(work, descriptors=True)
    text = json.dumps(facts, indent=2) + "\n" if as_json else page.as_text() + _table(facts["descriptors"] or [])
    try:
        write_atomically(output, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise WriteError(f"cannot write {output}: {error.strerror}") from error


def _table(descriptors: list[dict[str, Any]]) -> str:
    """Lists every descriptor on a line of its own: number, kind, state of the other end, target."""
    rows = [
        f"{one['fd']:>7} {one['kind']:<10} {one.get('peer_state', ''):<8} {printable(one['target'])}"
        for one in descriptors
    ]
    return "\n".join(["", f"{counted(len(rows), 'descriptor')}:", *rows, ""])
