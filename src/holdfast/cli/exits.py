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

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from types import FrameType

import click

from ..errors import DataError, HoldfastError, SchemaError
from ..report.words import printable
from . import first_cause
from .overview import holdfast
from .streams import forget_stdout, prepare_streams

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
