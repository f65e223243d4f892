"""Exit codes, and the one place where an error becomes a sentence on stderr.

0     fine
1     something was found: data that are damaged, unfinished or of another kind; a DataError
2     wrong usage: an option, a schema, or files that do not fit together; a SchemaError
3     cannot read or write: a missing file, the same file twice, no permission, a full disk, a target that is there
      already; every other HoldfastError, and an OSError
70    a bug in holdfast
130   interrupted with Ctrl-C; 128 + its number for another signal

`doctor` has verdicts of its own from 0 to 4; its --help tells them.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import cleandoc
from types import FrameType
from typing import Any

import click

from .. import __version__
from .._util.text import parse_bytes, printable
from ..errors import DataError, HoldfastError, SchemaError, TargetExistsError
from . import first_cause
from .console import Screen, bold, forget_stdout, prepare_streams


def version_line() -> str:
    return f"holdfast {__version__} ({_codec()})"


def _codec() -> str:
    # The same choice as in _native/codec.py, which would load numpy for pure Python.
    wanted = os.environ.get("HOLDFAST_NATIVE", "")
    if wanted == "0":
        return "pure Python codec: HOLDFAST_NATIVE=0 asks for it; slower, same results"
    try:
        from .._native import _codec
    except ImportError as error:
        if wanted == "1":
            return f"no codec: HOLDFAST_NATIVE=1 asks for the compiled one, and {error}"
        return "pure Python codec: no compiler was there when it was installed; slower, same results"
    return f"compiled codec, {_codec.crc_kind()}"


FINE = 0
FOUND = 1
USAGE = 2
NO_ACCESS = 3
BUG = 70


class SignalledError(BaseException):
    """Ended from outside. A BaseException, like KeyboardInterrupt: everything is cleaned up, nothing goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(arguments: list[str]) -> int:
    """One command, start to end."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    prepare_streams()
    try:
        with _signals_raise():
            context = holdfast.make_context("holdfast", list(arguments))
            with context:
                code = holdfast.invoke(context)
    except BaseException as error:  # noqa: BLE001 - the one place
        sentence, code = describe(error)
        if sentence:
            _tell(sentence, error, as_json="--json" in options, debug="--debug" in options)
    return _flush(int(code or FINE))


def describe(error: BaseException) -> tuple[str, int]:
    """What to say, and the exit code. Nothing to say: "--help" was shown, or nobody reads on."""
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
            return f"ended by {signal.Signals(error.number).name}", 128 + error.number
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
    return f"a bug in holdfast: {kind}: {error}. With --debug it says where; please report it", BUG


def _usage(error: click.UsageError) -> str:
    said = error.format_message().rstrip(".")
    said = said[:1].lower() + said[1:]
    path = error.ctx.command_path if error.ctx else "holdfast"
    if isinstance(error, click.NoSuchOption):
        near = " or ".join(sorted(error.possibilities or []))
        said = f"no such option: {error.option_name}" + (f"; did you mean {near}?" if near else "")
    name = path.removeprefix("holdfast").strip()
    return f"{name}: {said} (see `{path} --help`)" if name else f"{said} (see `{path} --help`)"


def _system(error: OSError) -> str:
    said = error.strerror or str(error)
    return said if error.filename is None else f"{os.fsdecode(error.filename)}: {said}"


def _tell(sentence: str, error: BaseException, *, as_json: bool, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    try:
        print(f"holdfast: {printable(sentence)}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps({"error": sentence}), flush=True)
    except OSError:
        pass  # nobody there to be told


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
    """`kill` and a closed terminal clean up like Ctrl-C."""

    def end(number: int, _: FrameType | None) -> None:
        raise SignalledError(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup had it ignored
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# What a command is: a function whose module's docstring is its --help, with the options every command has.

COMPRESSION = click.Choice(["none", "gzip", "zlib"])


class Command(click.Command):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TargetExistsError as error:
            if "force" in ctx.params and str(error).endswith("allow it to be replaced"):
                raise TargetExistsError(f"{error}, with --force") from error
            raise

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As it is written, not filled anew: examples and lists keep their lines."""
        formatter.write(f"\n{cleandoc(self.help or '')}\n")


def command(page: str | None) -> Callable[[Callable[..., int]], Command]:
    """Makes a command of a function that takes a Screen and its own options, and returns an exit code."""

    def make(function: Callable[..., int]) -> Command:
        @functools.wraps(function)
        def run(as_json: bool, quiet: bool, debug: bool, **options: Any) -> int:
            return function(Screen(as_json=as_json, quiet=quiet), **options)

        made = click.command(function.__name__, cls=Command, help=page, short_help="")(run)
        made.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="One JSON document on stdout."),
            click.Option(["-q", "--quiet"], is_flag=True, help="No text, no progress bar: the exit code tells."),
            click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
        ]
        return made

    return make


def size_of(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """An option's callback: `256MB` -> bytes."""
    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


# The commands by purpose. A command's module is loaded when the command is called, so the rest is quick.

# Each line is the first line of the command's docstring; a test compares them.
COMMANDS = {
    "Look": {
        "doctor": "Whether processes leak descriptors, when they run dry, what to do.",
        "top": "Processes and their descriptors, live.",
        "plan": "What a run will need, against what this machine gives.",
        "explain": "What an error really means, here and now.",
    },
    "Look into files": {
        "inspect": "What is in files: records, sizes, the schema, first values.",
        "verify": "Whether files are whole, and where they are not.",
    },
    "Repair": {
        "salvage": "Every intact record of a damaged file, in a new one.",
    },
    "Reshape": {
        "split": "Many files from one, or from many others.",
        "merge": "One file from many.",
        "convert": "From one format to another: TFRecord, HDF5 and tar.",
        "index": "Where every record begins, for reading by number.",
    },
    "Write": {
        "serve": "The central writer of a run, for producers of any launcher.",
    },
    "Learn": {
        "demo": "The main job end to end, on data it makes, in under a minute.",
    },
}

LINES = {name: line for group in COMMANDS.values() for name, line in group.items()}

ABOUT = "holdfast keeps multi-process ML data I/O alive and intact."

EXIT_CODES = """\
  0    fine
  1    something was found: data that are damaged, unfinished, of another kind
  2    wrong usage: an option, a schema, or files that do not fit together
  3    cannot read or write: no such file, the same file twice, no permission,
       a target that is there already, disk full, …
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
        lines += [f"  {'--version':<10} The version, and how the codec was built"]
        lines += [f"  {'--debug':<10} Show the traceback of an error"]
        lines += [f"  {'--help':<10} This page; `holdfast COMMAND --help` has more, with an example", ""]
        lines += [bold("Exit codes", sys.stdout), *EXIT_CODES.splitlines()]
        formatter.write("\n".join(lines) + "\n")


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(version_line())
        ctx.exit()


@click.group(cls=Overview, invoke_without_command=True)
@click.option("--debug", is_flag=True, expose_value=False)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version)
@click.pass_context
def holdfast(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
