"""Show processes and their descriptors live.

Shows a tree of processes with their descriptors against their limits, how
fast they grow and when they run out, pipes whose other end is closed, and a
verdict; below, what the selected process holds and what to do about it.

Without a PID or --name: all processes of this user that have children or more
than 64 descriptors, the one with most of them first.

Keys: up and down select; f, g, m, v and t sort by descriptors, growth, memory,
verdict or as a tree; space pauses; d shows the doctor's page; q quits.

Example:

  holdfast top --name train.py
  holdfast top --once

--once and --json show one frame, and need no more than holdfast itself; the
live view needs textual: pip install 'holdfast-io[ui]'.

With --json (unlimited and unknown are null):

  {"host": {"file_max": {"used": 1504, "limit": null}}, "processes": [{"pid":
   41231, "ppid": 1, "command": "…", "fds": 63912, "limit": 65536, "kinds": {},
   "dead_pipes": 63840, "growth_per_hour": null, "eta_s": null, "rss_bytes":
   4210000000, "threads": 12, "verdict": "LEAK", "signature": "dead-loaders"}]}

Exit codes: 0 it was shown; 2 wrong usage; 3 there is nothing to show (no such
process, none of that name), or textual is not installed.
"""

from __future__ import annotations

from importlib.util import find_spec

import click

from ..errors import InputError
from ..process.doctor.top_model import TopModel
from ..procfs.processes import find_by_name
from .app import FINE, command, seconds_of, usage_error
from .console import Screen

_NO_UI = "the live view needs textual: pip install 'holdfast-io[ui]'; `holdfast top --once` shows one frame without it"


@command(__doc__)
@click.argument("pids", nargs=-1, type=click.IntRange(min=1), metavar="[PID]...")
@click.option("--name", metavar="TEXT", help="Every process whose command line or name contains this.")
@click.option(
    "--every",
    "every_s",
    metavar="TIME",
    callback=seconds_of,
    default="2s",
    help="Between two samples.  [default: 2s]",
)
@click.option("--once", is_flag=True, help="Show one frame and exit.")
def top(screen: Screen, pids: tuple[int, ...], name: str | None, every_s: float, once: bool) -> int:
    model = TopModel(_wanted(pids, name), every_s=every_s)
    if once or not screen.talks:
        return _show_once(screen, model)
    if find_spec("textual") is None:
        raise InputError(_NO_UI)
    if not screen.terminal:
        raise usage_error("the live view needs a terminal; --once shows one frame")
    from .top_tui import TopApp

    TopApp(model, every_s).run()
    return FINE


def _wanted(pids: tuple[int, ...], name: str | None) -> list[int] | None:
    if name is None:
        return list(pids) or None
    found = [*pids, *find_by_name(name)]
    if not found:
        raise InputError(f"no process has {name!r} in its command line")
    return found


def _show_once(screen: Screen, model: TopModel) -> int:
    from ..process.doctor.render_top import SortOrder, TopFrame, top_as_dict
    from .tables import AnyTerminal

    snapshot = model.refresh()
    if not snapshot.rows:
        raise InputError("none of these processes is there" if model.chosen else "this user has no such processes")
    screen.document(top_as_dict(snapshot))
    frame = TopFrame(snapshot, SortOrder.TREE if model.chosen else SortOrder.FDS)
    screen.print(AnyTerminal(frame), width=screen.page_width)
    return FINE
