"""Watch processes for days: a live page, Prometheus metrics, alerts.

Samples processes with all their descendants, reports when one begins to leak
descriptors and when it runs out, and follows it over restarts. It prints a line
for every change: a verdict, a process that ended or was replaced, a worker
whose Guard reports that it hangs or that nothing succeeds any more. A verdict
rises at once, and falls when it was lower for 5 minutes.

PID is a process id. --name selects every process whose command line or name
contains that text, also those that start later: watch waits for them. It means
the program, not what starts it (timeout, sudo, bash -c), and no process that
ends within 3 s. A `holdfast supervise` is watched as one target for each of its
workers.

Examples:

  holdfast watch 41231
  holdfast watch --name train.py --http 127.0.0.1:9321 --db train.db
  holdfast watch --name ami.worker --notify 'mail -s "$HOLDFAST_TEXT" ops'

--http serves the live page at /, and also
  /metrics      for Prometheus
  /healthz      200, or 503 if a target is out of descriptors or will be
                within --unhealthy-eta, has ended, is restarted again and
                again, frozen, hung or failing (?target=NAME asks about one)
  /readyz       200, or 503 also while a worker starts or drains
  /api/state, /api/targets, /api/events   JSON
An address without a host is on 127.0.0.1; any other needs a token of 16
characters or more in the variable HOLDFAST_TOKEN (or --token), which clients
send as `Authorization: Bearer TOKEN`; a browser opens the page once with
?token=TOKEN.

--db keeps the samples in a SQLite file, at most 2 MB for each target: every 5 s
for an hour, one a minute for 2 days, one per quarter of an hour for 30 days. A
watch that is started again goes on with it, also after it was killed, and
`holdfast report FILE` makes a page of it. Without --db they are in memory. A
damaged file is renamed to FILE.damaged-TIME, and a new one begins.

--notify runs a command of the shell for what a person should know, with JSON on
its stdin and HOLDFAST_EVENT, _TARGET, _TEXT, _ADVICE, _VERDICT, _HEALTH, _PID,
_FDS, _LIMIT and _ETA_S in its environment; --webhook posts the same JSON. There
is one message for each state that a target enters: GROWING, LEAK, EXHAUSTED, a
bad health, a restart loop (within 10 minutes 3 unplanned restarts, or 10 of any
kind), its end, and one when it has been well for 15 minutes. A worker that
drains and is replaced is no message.

--write-integrations DIR writes alert rules for Prometheus and a dashboard for
Grafana into a folder.

With --json, each line is a document:

  {"url": "http://127.0.0.1:9321/"}
  {"t": 1790000000.0, "target": "worker", "kind": "verdict", "text": "…"}
  {"verdict": "LEAK", "sentence": "…", "targets": [{"target": "worker",
   "pid": 41231, "alive": true, "verdict": "LEAK", "fds": 812, "limit": 1024,
   "eta_s": [7800, 8400]}]}

  kind   start, end, restart, loop, verdict, health, drain or limit

It ends after --for, with Ctrl-C, or when all PIDs have ended (with --http it
goes on and says so).

Exit codes: 0 it was stopped, or at the end nothing was wrong; 1 at the end of
--for, or of the processes, one was GROWING, LEAK or EXHAUSTED; 2 wrong usage; 3
no such process, the address or the file cannot be used.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from .._util.fds import raise_nofile
from .._util.text import printable
from ..errors import InputError
from .app import FINE, FOUND, ProcessId, command, seconds_of, usage_error
from .console import Screen

if TYPE_CHECKING:
    from ..process.watch.collector import WatchCollector
    from ..process.watch.notify import Notifier
    from ..process.watch.state import EventState, StateDocument

_JITTER = 0.25
_LEAST_EVERY_S = 0.1
_MAX_EVERY_S = 900.0


@command(__doc__)
@click.argument("pids", nargs=-1, type=ProcessId("for its name write --name"), metavar="[PID]...")
@click.option(
    "--name", "names", multiple=True, metavar="TEXT", help="Every process whose command line or name contains this."
)
@click.option("--label", metavar="TEXT", help="The name of the target, instead of its command.")
@click.option("--http", "address", metavar="HOST:PORT", help="Serve a page and metrics there; port 0: a free one.")
@click.option("--token", metavar="TEXT", envvar="HOLDFAST_TOKEN", help="What clients must send.")
@click.option("--db", type=click.Path(path_type=Path), metavar="FILE", help="Keep the samples in this file.")
@click.option(
    "--every", "every_s", metavar="TIME", callback=seconds_of, default="5s", help="Between samples.  [default: 5s]"
)
@click.option("--for", "for_s", metavar="TIME", callback=seconds_of, help="End after that long: 10m, 24h.")
@click.option("--notify", metavar="CMD", help="Run this for what a person should know.")
@click.option("--webhook", metavar="URL", help="Post the same as JSON.")
@click.option(
    "--unhealthy-eta",
    "eta_s",
    metavar="TIME",
    callback=seconds_of,
    default="1h",
    help="A leak that runs out sooner makes /healthz fail.  [default: 1h]",
)
@click.option(
    "--write-integrations",
    "integrations",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write alert rules and a dashboard, and exit.",
)
def watch(
    screen: Screen,
    pids: tuple[int, ...],
    names: tuple[str, ...],
    label: str | None,
    address: str | None,
    token: str | None,
    db: Path | None,
    every_s: float,
    for_s: float | None,
    notify: str | None,
    webhook: str | None,
    eta_s: float,
    integrations: Path | None,
) -> int:
    if integrations is not None:
        return _write_integrations(screen, integrations)
    _check_usage(pids, names, every_s)
    from ..process.watch.collector import WatchCollector
    from ..process.watch.finder import Selection
    from ..process.watch.notify import Notifier, check_webhook
    from ..process.watch.server import WatchServer, parse_http_address
    from ..process.watch.store import Store

    try:
        where = None if address is None else parse_http_address(address)
    except ValueError as error:
        raise usage_error(f"--http: {error}") from error
    if webhook is not None:
        check_webhook(webhook)
    raise_nofile()
    stop = _stop_by_signals()
    store = Store(db, every_s)
    collector = WatchCollector(Selection(pids=pids, names=names, label=label), store, every_s=every_s)
    server = None
    notifier = Notifier(notify, webhook, _warn)
    try:
        first = collector.round()  # before the server listens: its first answer is complete
        if where is not None:
            server = WatchServer(collector, where, clock=time.time, token=token or None, eta_s=eta_s)
            _report(screen, {"url": server.url}, f"watching at {server.url}; press Ctrl-C to stop")
        rounds = Rounds(screen, collector, notifier, stop, stays=server is not None)
        was_stopped = rounds.run(first, for_s)
        document = collector.document(history=False)
    finally:
        if server is not None:
            server.close()
        notifier.close()
        collector.close()
    _report(screen, _summary(document), document["sentence"])
    return FINE if was_stopped else _exit_code(document)


def _check_usage(pids: tuple[int, ...], names: tuple[str, ...], every_s: float) -> None:
    if not pids and not names:
        raise usage_error("say which process: its PID, or --name TEXT")
    if any(not name.strip() for name in names):
        raise usage_error("--name: expected a text, got none: it would be part of every command line")
    if not _LEAST_EVERY_S <= every_s <= _MAX_EVERY_S:
        raise usage_error(f"--every: expected {_LEAST_EVERY_S} s to 15 minutes, got {every_s:g} s")


class Rounds:
    """The loop: samples at intervals, prints events, and sends them to a command or a webhook."""

    def __init__(
        self, screen: Screen, collector: WatchCollector, notifier: Notifier, stop: threading.Event, *, stays: bool
    ) -> None:
        self._screen = screen
        self._collector = collector
        self._notifier = notifier
        self._stop = stop
        self._stays = stays
        self._problems: list[str] = []
        self._chance = random.Random()

    def run(self, first: list[EventState], for_s: float | None) -> bool:
        """Returns whether it was stopped by a signal; otherwise --for is over or everything has ended."""
        self._announce(first)
        waiting = [name for name in self._collector.selection.names if not self._collector.has_seen(name)]
        if waiting:
            text = f"no process has {waiting[0]!r} in its command line yet: waiting for one"
            _report(self._screen, {"waiting": waiting}, text)
        start = time.monotonic()
        every_s = self._collector.every_s
        number = 0
        while not self._stop.is_set():
            passed_s = time.monotonic() - start
            if (for_s is not None and passed_s >= for_s) or (self._collector.is_over and not self._stays):
                return False
            # Counted from the start, so that slow rounds do not add up; with jitter, so that they do not coincide with
            # a job that runs at regular intervals.
            number = max(number + 1, int(passed_s / every_s))
            due_s = number * every_s + self._chance.uniform(-_JITTER, _JITTER) * every_s
            if for_s is not None:
                due_s = min(due_s, for_s)
            if not self._stop.wait(max(0.0, due_s - passed_s)):
                self._sample()
        return True

    def _sample(self) -> None:
        try:
            events = self._collector.round()
        except (OSError, sqlite3.Error) as error:
            # No descriptor is free, say: the next round may work.
            self._collector.problems[:] = [f"the last round of samples failed: {error}"]
            events = []
        else:
            self._collector.problems.clear()
        self._announce(events)

    def _announce(self, events: list[EventState]) -> None:
        for event in events:
            _report(self._screen, dict(event), _line(event))
        for message in self._collector.messages:
            self._notifier.send(message, self._collector.target_facts(message["target"]))
        notices = self._collector.store.notices
        while notices:
            _warn(notices.pop(0))
        problems = self._collector.all_problems
        for problem in problems:
            if problem not in self._problems:
                _warn(problem)
        self._problems = problems


def _line(event: EventState) -> str:
    at = datetime.fromtimestamp(event["t"]).strftime("%Y-%m-%d %H:%M:%S")
    return f"{at}  {event['target']}  {event['kind']}  {event['text']}"


def _report(screen: Screen, facts: dict[str, Any], line: str) -> None:
    """Prints one line of text or of JSON at once: other programs wait for it."""
    if screen.as_json:
        screen.line(facts)
    else:
        screen.print(printable(line))


def _warn(sentence: str) -> None:
    print(f"holdfast: {printable(sentence)}", file=sys.stderr, flush=True)


def _summary(document: StateDocument) -> dict[str, Any]:
    names = ("target", "pid", "alive", "verdict", "fds", "limit", "eta_s")
    facts: list[dict[str, Any]] = [dict(one) for one in document["targets"]]
    return {
        "verdict": document["verdict"],
        "sentence": document["sentence"],
        "targets": [{name: one[name] for name in names} for one in facts],
    }


def _exit_code(document: StateDocument) -> int:
    bad = any(one["verdict"] in ("GROWING", "LEAK", "EXHAUSTED") or one["restart_loop"] for one in document["targets"])
    return FOUND if bad else FINE


def _stop_by_signals() -> threading.Event:
    """Returns an event that the first signal sets, so that a round is never cut; a second Ctrl-C ends at once."""
    stopped = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, stop)
    return stopped


def _write_integrations(screen: Screen, folder: Path) -> int:
    from ..process.watch.prometheus import write_integrations

    try:
        paths = write_integrations(folder)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: cannot write: {error.strerror}") from error
    screen.document({"files": [str(path) for path in paths]})
    for path in paths:
        screen.print(printable(str(path)))
    return FINE
