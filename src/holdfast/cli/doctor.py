"""Find leaks, and when descriptors, threads or memory run out.

Inspects each process and its descendants: descriptors by kind against the
limits, pipes whose other end is closed, and what these patterns mean. A watch
also finds growing threads, child processes, zombies, private memory, files in
/dev/shm and inotify watches, and the limit that each reaches first. One
snapshot takes a moment and can prove a leak; growth, and when it reaches the
limit, shows only after watching. --for auto, the default at a terminal,
watches until the verdict is clear, for 15 minutes at most; --for 30s, 5m or 1h
watches that long; in a pipe and with --json or -q the default is one snapshot.
A watch says how sure the verdict is, and how long a watch would settle it.
Ctrl-C ends the watch early and shows the verdict so far. A process that has
called holdfast.listen() also says which of its objects hold the descriptors.

PID is a process id. --name selects every process whose command line or name
contains that text.

Example:

  holdfast doctor 41231 --for 30s
  holdfast doctor --name train.py --json | jq .verdict

With --json the facts are those of the worst process of the tree, `about`:

  {"pid": 41231, "about": 41231, "command": "python -m ami.worker",
   "verdict": "LEAK", "evidence": ["…"], "advice": ["…"], "fds": 63912,
   "limit": 65536, "kinds": {"pipe": 63871}, "dead_pipes": 63840,
   "self_pairs": 15960, "growth_per_hour": 421.3, "eta_s": [7260, 8340],
   "signature": "dead-dataloader-iterators", "resources": {}, "held_by": [],
   "tree": [{"pid": 41231, "ppid": 1, "command": "…", "fds": 63912,
   "limit": 65536, "kinds": {}, "threads": 12, "rss_bytes": 4210000000,
   "verdict": "LEAK"}]}

  verdict   OK, UNCLEAR, SETTLING, GROWING, LEAK or EXHAUSTED
  eta_s     seconds to the soft limit, earliest and latest (null: never);
            null when it does not grow
  signature the cause; null: none, or unknown
  resources what else grows or is used up, each with a verdict: {"threads":
            {"verdict": "GROWING", "used": 465, "limit": "cgroup_pids",
            "headroom": 535, "growth_per_hour": 14400.0, "eta_s": [131, 136],
            "signature": "threads-never-ended"}}; also zombies, children,
            memory (bytes), shm_files, inotify_instances, inotify_watches
  growth_per_hour, kinds, dead_pipes, self_pairs   null: unknown

Several are {"verdict": worst, "targets": [these], "errors": ["…"]}.

Exit codes: 0 all are OK, UNCLEAR or SETTLING; 10 one is GROWING; 11 one has a
LEAK; 12 one is EXHAUSTED; otherwise 3 if one could not be inspected (no such
process, no permission, no process of that name); 2 wrong usage.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from datetime import datetime

import click

from .._util.text import counted, printable
from ..process.doctor.diagnose import MAX_S, Examination, WatchTarget
from ..process.doctor.model import Verdict
from ..process.doctor.render import targets_as_dict
from ..procfs.processes import find_by_name
from .app import NO_ACCESS, ProcessId, command, seconds_of, usage_error
from .console import Screen, Waiting

EXITS = {
    Verdict.OK: 0,
    Verdict.UNCLEAR: 0,
    Verdict.SETTLING: 0,
    Verdict.GROWING: 10,
    Verdict.LEAK: 11,
    Verdict.EXHAUSTED: 12,
}
_AUTO = math.inf


def _seconds_or_auto(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value in ("0", "0s"):
        return 0.0  # one snapshot, also at a terminal
    return _AUTO if value == "auto" else seconds_of(ctx, param, value)


@command(__doc__)
@click.argument("pids", nargs=-1, type=ProcessId("for its name write --name"), metavar="[PID]...")
@click.option(
    "--for",
    "for_s",
    metavar="TIME|auto",
    callback=_seconds_or_auto,
    help="Watch for that long: 30s, 5m, 1h; 0: one snapshot; auto: until the verdict is clear, 15 minutes at most.",
)
@click.option("--name", metavar="TEXT", help="Every process whose command line or name contains this.")
@click.option("--tree/--no-tree", default=True, show_default=True, help="Its descendants too.")
def doctor(screen: Screen, pids: tuple[int, ...], for_s: float | None, name: str | None, tree: bool) -> int:
    if not pids and not name:
        raise usage_error("say which process: its PID, or --name TEXT")
    found = find_by_name(name) if name else []
    if not pids and not found:
        return _report_errors([f"doctor: no process has {name!r} in its command line"], as_json=screen.as_json)
    examination = Examination([*pids, *found], tree=tree, role=name if name and not pids else "process")
    if for_s is None and screen.terminal and screen.talks:
        for_s = _AUTO
    if for_s:
        _watch(screen, examination, for_s)
    targets = examination.conclude()
    _report_errors(examination.errors, as_json=False)
    screen.document(targets_as_dict(targets, examination.errors))
    _show(screen, targets)
    return exit_code(targets, examination.errors)


def exit_code(targets: Sequence[WatchTarget], errors: Sequence[str]) -> int:
    return max([EXITS[target.verdict] for target in targets] + [NO_ACCESS] * bool(errors))


def _watch(screen: Screen, examination: Examination, for_s: float) -> None:
    try:
        doing, max_s = ("watching until it is clear", MAX_S) if for_s == _AUTO else ("watching", for_s)
        with Waiting(doing, max_s, shown=sys.stderr.isatty() and not screen.quiet) as waiting:
            examination.watch(None if for_s == _AUTO else for_s, waiting.passed)
    except KeyboardInterrupt:
        pass  # the verdict is based on the samples so far


def _show(screen: Screen, targets: Sequence[WatchTarget]) -> None:
    if not screen.talks:
        return
    from ..process.doctor.render import DoctorPage
    from .tables import AnyTerminal

    now = datetime.now()
    for at, target in enumerate(targets):
        screen.print(*(["\n"] if at else []), AnyTerminal(DoctorPage(target, now)), width=screen.page_width)
    if len(targets) > 1:
        worst = max(targets, key=lambda target: EXITS[target.verdict])
        screen.print(f"\n{counted(len(targets), 'target')}; the worst is {worst.pid}: {worst.verdict.value}")


def _report_errors(sentences: Sequence[str], *, as_json: bool) -> int:
    for sentence in sentences:
        print(f"holdfast: {printable(sentence)}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps({"error": sentence}), flush=True)
    return NO_ACCESS
