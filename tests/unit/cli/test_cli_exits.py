"""Every kind of error has its sentence and its exit code."""

from __future__ import annotations

import errno
import signal
from concurrent.futures import BrokenExecutor

import click
import pytest

from holdfast import errors
from holdfast.cli import main
from holdfast.cli.app import SignalledError, describe


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


CASES: list[tuple[BaseException, str, int]] = [
    (click.exceptions.Exit(7), "", 7),
    (SystemExit(5), "", 5),
    (BrokenPipeError(), "", 0),
    (click.UsageError("Wrong thing."), "wrong thing (see `holdfast --help`)", 2),
    (KeyboardInterrupt(), "interrupted", 130),
    (SignalledError(signal.SIGTERM), "terminated by SIGTERM", 143),
    (errors.CorruptError("f", 3, 40, "bad data CRC", "Do this"), "f, record 3 at byte 40: bad data CRC. Do this", 1),
    (errors.UnfinishedError("f", 3, 40, "truncated"), "f, record 3 at byte 40: truncated", 1),
    (errors.FormatError("f", None, None, "not one"), "f: not one", 1),
    (errors.SchemaError("no sense"), "no sense", 2),
    (errors.InputError("f: gone"), "f: gone", 3),
    (errors.TargetExistsError("f is there"), "f is there", 3),
    (errors.WriterBusyError("busy"), "busy", 3),
    (OSError(errno.ENOSPC, "No space left on device", "f"), "f: No space left on device", 3),
    (OSError(errno.EIO, "Input/output error"), "Input/output error", 3),
    (MemoryError(), "out of memory", 3),
    (BrokenExecutor(), "a worker process died (out of memory?); try again with --jobs 1", 3),
    (ImportError("no numpy"), "no numpy; is the installation complete?", 3),
    (caused(ImportError("numpy"), caused(RuntimeError("__set_name__"), KeyboardInterrupt())), "interrupted", 130),
    (caused(RuntimeError("__set_name__"), SignalledError(signal.SIGTERM)), "terminated by SIGTERM", 143),
    (KeyError("x"), "a bug in holdfast: KeyError: 'x'. Please report it with the traceback that --debug shows", 70),
]


@pytest.mark.parametrize(("error", "said", "code"), CASES, ids=lambda value: type(value).__name__)
def test_describe(error: BaseException, said: str, code: int) -> None:
    assert describe(error) == (said, code)


def test_main_returns_the_code_and_puts_signal_handlers_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    assert main(["frobnicate"]) == 2
    assert capsys.readouterr().err.startswith("holdfast: no such command: frobnicate")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)] == before


def test_a_file_that_is_called_like_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--", "--json", "--debug"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("--json\n  cannot open: No such file or directory\n")
