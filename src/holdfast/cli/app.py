"""The command line itself: exit codes, error messages on stderr, options that every command has, and the overview."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import cleandoc
from types import FrameType
from typing import Any, TypeVar

import click

from .. import __version__
from .._util.text import parse_bytes, parse_seconds, printable
from ..errors import DataError, HoldfastError, SchemaError, TargetExistsError
from . import first_cause
from .console import Screen, bold, forget_stdout, prepare_streams

FINE = 0
FOUND = 1
USAGE = 2
NO_ACCESS = 3
BUG = 70

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class SignalledError(BaseException):
    """Raised by SIGTERM and SIGHUP. Like KeyboardInterrupt it is a BaseException: only clean-up code runs."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code. Errors become one sentence on stderr."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    prepare_streams()
    try:
        with _signals_raise():
            context = holdfast.make_context("holdfast", list(arguments))
            with context:
                code = holdfast.invoke(context)
    except BaseException as error:  # noqa: BLE001 - no error may escape
        message, code = describe(error)
        if message:
            _report(message, error, as_json="--json" in options, debug="--debug" in options)
    return _flush(int(code or FINE))


def describe(error: BaseException) -> tuple[str, int]:
    """Returns the message and the exit code. No message: --help was shown, or the reader closed the pipe."""
    error = first_cause(error, KeyboardInterrupt, SignalledError)
    match error:
        case click.exceptions.Exit():
            return "", error.exit_code
        case SystemExit():
            return "", error.code if isinstance(error.code, int) else FINE
        case BrokenPipeError():
            return "", FINE
        case click.UsageError():
            return _usage(error), USAGE
        case KeyboardInterrupt():
            return "interrupted", 128 + signal.SIGINT
        case SignalledError():
            return f"terminated by {signal.Signals(error.number).name}", 128 + error.number
        case DataError():
            return str(error), FOUND
        case SchemaError():
            return str(error), USAGE
        case HoldfastError():
            return str(error), NO_ACCESS
        case OSError():
            return _system(error), NO_ACCESS
        case ImportError():
            return f"{error}; is the installation complete?", NO_ACCESS
        case MemoryError():
            return "out of memory", NO_ACCESS
        case BrokenExecutor():
            return "a worker process died (out of memory?); try again with --jobs 1", NO_ACCESS
    kind = type(error).__name__
    return f"a bug in holdfast: {kind}: {error}. Please report it with the traceback that --debug shows", BUG


def _usage(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    path = error.ctx.command_path if error.ctx else "holdfast"
    if isinstance(error, click.NoSuchOption):
        near = " or ".join(sorted(error.possibilities or []))
        message = f"no such option: {error.option_name}" + (f"; did you mean {near}?" if near else "")
    name = path.removeprefix("holdfast").strip()
    return f"{name}: {message} (see `{path} --help`)" if name else f"{message} (see `{path} --help`)"


def _system(error: OSError) -> str:
    message = error.strerror or str(error)
    return message if error.filename is None else f"{os.fsdecode(error.filename)}: {message}"


def _report(message: str, error: BaseException, *, as_json: bool, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    try:
        print(f"holdfast: {printable(message)}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps({"error": message}), flush=True)
    except OSError:
        pass  # stderr or stdout is closed


def _flush(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()
    except OSError as error:
        forget_stdout()
        print(f"holdfast: cannot write to the output: {error.strerror}", file=sys.stderr)
        return NO_ACCESS
    return code


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Makes `kill` and a closed terminal clean up like Ctrl-C."""

    def stop(number: int, _: FrameType | None) -> None:
        raise SignalledError(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- a command: its module's docstring is its --help

COMPRESSION = click.Choice(["none", "gzip", "zlib"])


class Command(click.Command):
    """A click command that names --force where it helps, and prints its help as it is written."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TargetExistsError as error:
            if "force" in ctx.params and str(error).endswith("allow it to be replaced"):
                raise TargetExistsError(f"{error}, with --force") from error
            raise

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the page without rewrapping it: examples and lists keep their lines."""
        formatter.write(f"\n{cleandoc(self.help or '')}\n")


class ProcessId(click.IntRange):
    """A process id. `by_name` says what to write for a name instead, which is what people try first."""

    def __init__(self, by_name: str = "") -> None:
        super().__init__(min=1)
        self._by_name = by_name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not re.fullmatch(r"-?\d+", value.strip()):
            by_name = f"; {self._by_name} {shlex.quote(value)}" if self._by_name else ""
            self.fail(f"expected a process id, got {value!r}{by_name}", param, ctx)
        return super().convert(value, param, ctx)


def command(page: str | None, cls: type[Command] = Command) -> Callable[[Callable[..., int]], Command]:
    """Turns a function into a command. The function takes a Screen and its own options, and returns an exit code."""

    def make(function: Callable[..., int]) -> Command:
        @functools.wraps(function)
        def run(as_json: bool, quiet: bool, debug: bool, **options: Any) -> int:
            return function(Screen(as_json=as_json, quiet=quiet), **options)

        made = click.command(function.__name__, cls=cls, help=page, short_help="")(run)
        made.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON document on stdout."),
            click.Option(
                ["-q", "--quiet"], is_flag=True, help="Print no text and no progress bar, only set the exit code."
            ),
            click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
        ]
        return made

    return make


def worst_code(codes: Iterable[int]) -> int:
    """Returns the exit code of a command with one code for each file: a finding matters most."""
    there = set(codes)
    return FOUND if FOUND in there else NO_ACCESS if there - {FINE} else FINE


def usage_error(text: str) -> click.UsageError:
    """Makes the error for wrong usage of the command that runs."""
    return click.UsageError(text, click.get_current_context(silent=True))


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns a ValueError of a public function into a usage error that names options instead of arguments."""
    try:
        yield
    except ValueError as error:
        raise usage_error(re.sub(r"\b([a-z_]+)=", _as_option, str(error))) from error


def _as_option(argument: re.Match[str]) -> str:
    name = {"overwrite": "force", "shard_bytes": "shard_size", "verify_sources": "no_verify_sources"}.get(
        argument[1], argument[1]
    )
    return f"--{name.replace('_', '-')}"


def jobs_option(function: F) -> F:
    from ..data.file_tools.parallel_files import cores

    text = "Process N files in parallel.  [default: all cores]"
    return click.option("-j", "--jobs", type=click.IntRange(min=1), default=cores, metavar="N", help=text)(function)


def _parsed_by(parse: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """Returns the callback of an option whose value `parse` reads."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> T | None:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


size_of = _parsed_by(parse_bytes)
seconds_of = _parsed_by(parse_seconds)


# ---- the overview

# Each text is the first line of the module's docstring, repeated here so that the overview imports no command. A test
# compares them.
COMMANDS = {
    "Diagnose": {
        "doctor": "Find leaks, and when descriptors, threads or memory run out.",
        "top": "Show processes and their descriptors live.",
        "plan": "Check whether a run fits the limits of this machine.",
        "explain": "Explain an error message using this machine's limits.",
    },
    "Trace": {
        "trace": "Record who opens and closes descriptors while a program runs.",
        "report": "Show which lines leak descriptors, from a recording.",
    },
    "Keep alive": {
        "supervise": "Run one or more workers, and replace those that end or hang.",
        "watch": "Watch processes for days: a live page, Prometheus metrics, alerts.",
        "rescue": "Rescue a process that is out of descriptors, and say why.",
    },
    "Check files": {
        "inspect": "Show records, sizes, the schema and the first values of files.",
        "verify": "Check files for corruption and report where it is.",
    },
    "Repair": {
        "salvage": "Copy the intact records of a corrupt file to a new one.",
    },
    "Reshape": {
        "split": "Split files into shards.",
        "merge": "Merge files into one.",
        "convert": "Convert between TFRecord, HDF5 and tar.",
        "index": "Build a record index for random access.",
    },
    "Write": {
        "serve": "Run the central writer of a dataset directory.",
        "log": "Export a log of hold.log for TensorBoard.",
    },
    "Learn": {
        "demo": "Show the main features on generated data, in under a minute.",
    },
}

LINES = {name: line for group in COMMANDS.values() for name, line in group.items()}

ABOUT = "holdfast keeps multi-process ML data I/O alive and intact."

EXIT_CODES = """\
  0    success
  1    a finding: data is corrupt, unfinished or of another format
  2    wrong usage: an option, a schema, or files that do not fit together
  3    cannot read or write: file not found, given twice, permission denied,
       target exists, disk full, …
  10   doctor: a resource is GROWING; 11: a LEAK; 12: EXHAUSTED
  70   a bug in holdfast
  130  interrupted with Ctrl-C (128 + its number for another signal)"""


class Overview(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(LINES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LINES:
            return None
        command = getattr(importlib.import_module(f".{cmd_name}", __package__), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in LINES:
            near = get_close_matches(args[0], LINES, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"no such command: {args[0]}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [ABOUT, "", "Usage: holdfast COMMAND [OPTIONS] …", ""]
        for purpose, commands in COMMANDS.items():
            lines.append(bold(purpose, sys.stdout))
            lines += [f"  {name:<10} {line.rstrip('.')}" for name, line in commands.items()]
            lines.append("")
        lines += [bold("Options", sys.stdout)]
        lines += [f"  {'--version':<10} Show the version and which codec is used"]
        lines += [f"  {'--debug':<10} Show the traceback of an error"]
        lines += [f"  {'--help':<10} Show this page; `holdfast COMMAND --help` shows that of a command", ""]
        lines += [bold("Exit codes", sys.stdout), *EXIT_CODES.splitlines()]
        formatter.write("\n".join(lines) + "\n")


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"holdfast {__version__} (distribution holdfast-io; {_codec_in_use()})")
        ctx.exit()


def _codec_in_use() -> str:
    # The same choice as in _native/codec.py, which would load numpy for pure Python.
    choice = os.environ.get("HOLDFAST_NATIVE", "")
    if choice == "0":
        return "pure Python codec: selected by HOLDFAST_NATIVE=0; slower, same results"
    try:
        from .._native import _codec
    except ImportError as error:
        if choice == "1":
            return f"no codec: HOLDFAST_NATIVE=1 requires the compiled one, and {error}"
        return "pure Python codec: there was no compiler at installation; slower, same results"
    return f"compiled codec, {_codec.crc_kind()}"


@click.group(cls=Overview, invoke_without_command=True)
@click.option("--debug", is_flag=True, expose_value=False)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version)
@click.pass_context
def holdfast(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
