"""Record who opens and closes descriptors while a program runs.

Runs a Python script, a module, a piece of code or any other program, follows
all processes that it starts, and saves a recording for `holdfast report`. Every
descriptor gets the Python stack that made it and the one that closed it. The
program's input, output, exit code and signals are untouched. It costs a few
percent of CPU time.

Examples:

  holdfast trace train.py --epochs 3
  holdfast trace -o run.hft -m torch.distributed.run --nproc-per-node 2 train.py
  holdfast trace -c 'import this'
  holdfast trace -- bash job.sh
  holdfast trace --attach 4711 --for 60s

--live shows the sites that grow while the program runs. What the program prints
is then shown at the end, and its input is empty.

--attach traces a process that runs already, until it ends, --for is over, or
Ctrl-C or SIGTERM; the process goes on. It needs the right to debug the process,
and gdb before Python 3.14. What was open before has no stack.

The recording is written to trace-PID.hft in the current folder, or where -o
says. Options for holdfast come before the script: what follows it belongs to
the script. The verdict is printed on stderr (with --json as one line of JSON),
because stdout is the program's.

Exit codes: 0 traced, with --attach; otherwise the code of the program, or the
signal that ended it; 2 wrong usage; 3 the program cannot be run or traced, or
the recording cannot be saved.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from .._util.text import printable
from ..errors import InputError, MissingFileError, WriteError
from ..process.fdtrace import trace_file
from ..process.fdtrace.attach import record_attached
from ..process.fdtrace.recording import Outcome, TraceOptions, record
from ..process.fdtrace.render import Findings
from .app import FINE, Command, command, seconds_of
from .console import Screen

_WITH_VALUE = {"-o", "--output", "--arm-above", "--attach", "--for"}
Watch = Callable[[trace_file.Trace], None] | None
# Records with (what is called about once a second, whether to stop, what is called with the program's process number).
Work = Callable[[Watch, Callable[[], bool], Callable[[int], None]], Outcome]
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ANY_PROGRAM = "holdfast.trace.any_program"


class _TraceCommand(Command):
    """Leaves everything from the script on to the program, as `python` does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = 0
        while at < len(args):
            if not args[at].startswith("--"):
                args = [*args[:at], *_separate(args[at]), *args[at + 1 :]]
            word = args[at]
            if word == "--":
                ctx.meta[_ANY_PROGRAM] = True
                break
            if word in ("-m", "-c"):
                args = [*args[: at + 2], "--", *args[at + 2 :]]
                break
            if not word.startswith("-"):
                args = [*args[:at], "--", *args[at:]]
                break
            at += 2 if word in _WITH_VALUE else 1
        return super().parse_args(ctx, args)


def _separate(word: str) -> list[str]:
    """Splits short options that are written together: -qc is -q -c, and -mpytest is -m pytest."""
    if word[:2] == "-q" and len(word) > 2:
        return ["-q", *_separate(f"-{word[2:]}")]
    return [word[:2], word[2:]] if word[:2] in ("-m", "-c", "-o") and len(word) > 2 else [word]


@command(__doc__, cls=_TraceCommand)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Where to save the recording.")
@click.option("-m", "module", metavar="MODULE", help="Run a Python module, like `python -m`.")
@click.option("-c", "code", metavar="CODE", help="Run a piece of Python code, like `python -c`.")
@click.option("--attach", type=int, metavar="PID", help="Trace a process that runs already.")
@click.option("--for", "for_s", callback=seconds_of, metavar="TIME", help="With --attach: how long, such as 60s or 5m.")
@click.option("--live", is_flag=True, help="Show the sites that grow now, on the whole terminal.")
@click.option("--native", is_flag=True, help="Record the C frames too. About three times the cost.")
@click.option("--ebadf/--no-ebadf", default=True, help="Record calls that fail with EBADF. On by default.")
@click.option(
    "--no-reuse", is_flag=True, help="Reuse descriptor numbers as late as possible: a stale use becomes a clean EBADF."
)
@click.option(
    "--arm-above",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Take stacks only while more than N descriptors are open.",
)
@click.option("--no-owners", is_flag=True, help="Do not look for what keeps descriptors open when Python ends.")
def trace(
    screen: Screen,
    program: tuple[str, ...],
    output: str | None,
    module: str | None,
    code: str | None,
    attach: int | None,
    for_s: float | None,
    live: bool,
    native: bool,
    ebadf: bool,
    no_reuse: bool,
    arm_above: int,
    no_owners: bool,
) -> int:
    target = Path(output or f"trace-{attach or os.getpid()}{trace_file.SUFFIX}")
    options = TraceOptions(native=native, ebadf=ebadf, no_reuse=no_reuse, arm_above=arm_above, owners=not no_owners)
    if attach is not None:
        if program or module is not None or code is not None:
            raise click.UsageError("expected --attach PID or a program to run, got both")
        trace_file.check_target(target)

        def work(watch: Watch, is_over: Callable[[], bool], _: Callable[[int], None]) -> Outcome:
            return Outcome(record_attached(attach, options, for_s=for_s, is_over=is_over, watch=watch), FINE)

        outcome = _live(f"process {attach}", work, kills=False) if live else _attach(work)
    else:
        if for_s is not None:
            raise click.UsageError("expected --for only with --attach; a program is traced until it ends")
        arguments = command_line(program, module, code, is_any=_ANY_PROGRAM in click.get_current_context().meta)
        trace_file.check_target(target)
        outcome = _live_program(arguments, options) if live else record(arguments, options)
    _save(outcome.trace, target)
    _show_end(screen, outcome.trace, target)
    return end_like(outcome.returncode)


def _attach(work: Work) -> Outcome:
    """Traces a running process. Ctrl-C ends the recording, not the work."""
    is_over = threading.Event()
    with _on_signals(lambda number: is_over.set()):
        return work(None, is_over.is_set, lambda pid: None)


@contextmanager
def _on_signals(act: Callable[[int], None]) -> Iterator[None]:
    """Has a signal end the recording, which is then saved, and not this process."""
    numbers = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, _: act(number)) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _save(recording: trace_file.Trace, target: Path) -> None:
    """Saves the recording, or, where that fails, raises an error that says where it is: with the temporary files."""
    try:
        trace_file.save(recording, target)
    except (OSError, WriteError) as error:
        why = f"cannot write {target}: {error.strerror}" if isinstance(error, OSError) else str(error)
        try:
            other = Path(tempfile.mkdtemp(prefix="holdfast-saved-"), target.name)
            trace_file.save(recording, other)
        except (OSError, WriteError):
            raise WriteError(f"{why}; the recording is lost") from error
        raise WriteError(f"{why}; the recording was saved as {other}") from error


def _live_program(arguments: list[str], options: TraceOptions) -> Outcome:
    with tempfile.TemporaryFile() as output:

        def work(watch: Watch, is_over: Callable[[], bool], started: Callable[[int], None]) -> Outcome:
            return record(arguments, options, watch=watch, started=started, output=output)

        try:
            return _live(" ".join(arguments), work, kills=True)
        finally:
            output.seek(0)
            with suppress(OSError):  # the terminal is gone: the recording is saved nevertheless
                sys.stdout.flush()
                shutil.copyfileobj(output, sys.stdout.buffer)
                sys.stdout.flush()


def _live(name: str, work: Work, *, kills: bool) -> Outcome:
    if not sys.stdout.isatty():
        raise click.UsageError("the live view needs a terminal; leave --live out")
    try:
        from .trace_tui import TraceApp
    except ImportError as error:
        raise InputError(f"the live view needs {error.name}: pip install 'holdfast-io[ui]'") from error
    app = TraceApp(name, work, kills=kills)
    with _on_signals(app.end):
        app.run()
        return app.outcome()


def _show_end(screen: Screen, recording: trace_file.Trace, target: Path) -> None:
    verdict = Findings(recording).verdict()
    if screen.as_json:
        print(json.dumps({"file": str(target), "verdict": verdict, "warnings": recording.warnings}), file=sys.stderr)
    elif not screen.quiet:
        for line in (*recording.warnings, verdict, f"saved {target}; see `holdfast report {target}`"):
            with suppress(OSError):  # the terminal may be gone
                print(f"holdfast: {printable(line)}", file=sys.stderr)


def command_line(program: tuple[str, ...], module: str | None, code: str | None, *, is_any: bool) -> list[str]:
    """Returns the command to run. A first argument that is no Python file must follow `--`."""
    if module is not None and code is not None:
        raise click.UsageError("expected -m or -c, got both")
    if module is not None:
        return [sys.executable, "-m", module, *program]
    if code is not None:
        return [sys.executable, "-c", code, *program]
    if not program:
        raise click.UsageError("expected a script to run, -m MODULE, -c CODE or -- COMMAND")
    first = program[0]
    if is_any:
        return list(program)
    if os.path.isdir(first) or first.endswith((".py", ".pyc", ".pyz", ".zip")):
        if not os.path.exists(first):
            raise MissingFileError(f"{first}: no such script", first)
        return [sys.executable, *program]
    raise click.UsageError(f"expected a Python script, got {first}; write `-- {first}` to trace another program")


def end_like(returncode: int) -> int:
    """Returns the exit code of the program, or ends this process by the signal that ended it."""
    if returncode < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program's own core is enough
        if -returncode != signal.SIGKILL:
            signal.signal(-returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -returncode)
    return returncode
