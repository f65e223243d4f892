"""Run one or more workers, and replace those that end or hang.

Starts COMMAND once, or --workers times, and scans it about once a second. A
worker is restarted when it ends with an error, and replaced when it runs but
does not work:

  stopped   a signal stopped it
  frozen    no Python thread runs (C code holds the GIL, or a dead mount)
  hung      its job makes no step
  failing   it runs, but nothing succeeds
  progress  its file did not change, or its page did not answer
  fds, rss, threads, children    it is over a cap

The first four need hold.Guard in the worker (stopped does not); the others work
for any program. Without --fds, one that stays at its descriptor limit and holds
mostly unusable ones is replaced; --fds off turns that off.

What ends a worker: its stacks are logged, it is asked to drain (SIGUSR1, only
with a Guard), then SIGTERM to all its processes, then SIGKILL. Nothing that it
started is left behind, not even daemons.

Exit code 75 of a worker asks for a restart, which follows at once. After a
failure, or when nothing succeeds, it waits 1 s, 2 s, 4 s … at most 5 min. It
gives up only on a program that fails at its start: 5 times in 10 min within
10 s, or before its Guard reports a success. Exit code 0 means done: it is not
started again, unless --restart always.

Examples:

  holdfast supervise -- python worker.py
  holdfast supervise --workers 4 --fds 0.5:0.85 --rss 24GiB:30GiB -- ./worker
  holdfast supervise --progress-file out/last.ckpt --progress-timeout 30m \\
    -- python train.py
  holdfast supervise --progress-http http://127.0.0.1:8000/healthz -- ./server
  holdfast supervise --config worker.toml

--config reads a TOML file: a table [supervise] with the names of the options
and command = ["python", "worker.py"]. Options on the command line win.

A worker finds its number in HOLDFAST_WORKER (1, 2, …); {worker} in
--progress-file and --progress-http stands for it.

Signals: TERM and INT stop all workers (a Guard finishes its job first); INT
again kills them. HUP restarts them one after the other. USR1 drains and
restarts all at once. USR2 logs the stacks of all. QUIT, CONT, WINCH, ALRM, PWR
and real-time signals are passed on.

Under systemd (Type=notify) it sends READY=1, STATUS= with the workers that it
gave up on, STOPPING=1, and WATCHDOG=1 while a worker works or waits for its
next start.

The log is written to stderr; the workers' own output is untouched. With
--json, each line is an object:

  {"t": 1700000000.0, "level": "warning", "kind": "ended", "worker": 1,
   "pid": 4711, "reason": "failing", "text": "…"}

Exit codes: 0 all workers are done, or it was stopped by SIGTERM; 1 it gave up
on a worker; 2 wrong usage or configuration; 3 COMMAND cannot be run; 130
interrupted with Ctrl-C.
"""

from __future__ import annotations

from typing import Any

import click

from ..process.guard.supervisor.config import make_options, read_config
from ..process.guard.supervisor.log_lines import LogLines
from ..process.guard.supervisor.supervisor import Supervisor
from ..process.guard.supervisor.worker_machine import RestartMode
from .app import Command, command, usage_error
from .console import Screen

_CAP = "SOFT[:HARD]"


class _SuperviseCommand(Command):
    """Leaves everything from the program's name on to the program, with or without `--`."""

    allow_interspersed_args = False


@command(__doc__, cls=_SuperviseCommand)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND …")
@click.option("--config", metavar="FILE", help="Read options from a TOML file.")
@click.option("-n", "--workers", metavar="N", help="Run N workers.  [default: 1]")
@click.option("--name", metavar="NAME", help="Name in `holdfast watch`.  [default: the program's]")
@click.option("--fds", metavar=_CAP, help="Cap on descriptors of a process: 800, 0.5 or 50% of its limit; off: none.")
@click.option("--rss", metavar=_CAP, help="Cap on the memory of a worker with its children: 24GiB.")
@click.option("--threads", metavar=_CAP, help="Cap on the threads of a process.")
@click.option("--children", metavar=_CAP, help="Cap on the processes that a worker starts.")
@click.option("--progress-file", metavar="PATH", help="The worker must change this file …")
@click.option("--progress-http", metavar="URL", help="… or this page must answer with 2xx …")
@click.option("--progress-timeout", metavar="TIME", help="… within this time.  [default: the Guard's, or 10min]")
@click.option("--frozen-timeout", metavar="TIME", help="How long no thread may run.  [default: 60s]")
@click.option("--drain-timeout", metavar="TIME", help="How long a drain may take.  [default: the Guard's]")
@click.option("--stop-timeout", metavar="TIME", help="From SIGTERM to SIGKILL.  [default: 10s]")
@click.option(
    "--restart", type=click.Choice([mode.value for mode in RestartMode]), help="When to restart.  [default: on-failure]"
)
@click.option("--backoff", metavar="TIME", help="Wait after the first failure; it doubles.  [default: 1s]")
@click.option("--backoff-limit", metavar="TIME", help="The longest wait.  [default: 5min]")
@click.option("--max-failures", metavar="N", help="Give up after N failures at the start; 0: never.  [default: 5]")
@click.option("--failure-window", metavar="TIME", help="… within this time.  [default: 10min]")
@click.option("--tick", metavar="TIME", hidden=True)
def supervise(screen: Screen, program: tuple[str, ...], config: str | None, **given: Any) -> int:
    try:
        values = {} if config is None else read_config(config)
        values |= {name.replace("_", "-"): value for name, value in given.items() if value is not None}
        if program:
            values["command"] = program
        options = make_options(values)
    except ValueError as error:
        raise usage_error(str(error)) from None
    log = LogLines(as_json=screen.as_json, quiet=screen.quiet)
    try:
        return Supervisor(options, log).run()
    finally:
        log.close()


for _option in supervise.params:
    if _option.name == "as_json":
        assert isinstance(_option, click.Option)
        _option.help = "Write the log as JSON, one object per line."
    if _option.name == "quiet":
        assert isinstance(_option, click.Option)
        _option.help = "Write no log."
