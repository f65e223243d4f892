"""Writes to stdout and stderr: text for people, one JSON document for machines, progress bars on stderr."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from .._util.fds import point_to_null
from .._util.text import printable
from ..errors import WriteError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID


# stdout and stderr, whatever the caller did to them.


def prepare_streams() -> None:
    """Writing a name never fails, and no data file gets the number of a closed stdout."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
        reconfigure = getattr(getattr(sys, name), "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")


def forget_stdout() -> None:
    """Nobody reads on, as with `| head`: what is still to come goes nowhere."""
    point_to_null(sys.stdout.fileno(), inheritable=True)


# What goes to stdout: text for people, or one JSON document for machines.

_PIPE_WIDTH = 1 << 14  # in a pipe nothing is folded: paths stay whole, one row is one line


def bold(text: str, stream: TextIO) -> str:
    return f"\x1b[1m{text}\x1b[0m" if stream.isatty() and not os.environ.get("NO_COLOR") else text


class _Page(io.StringIO):
    """What rich draws on. Not stdout itself: rich ends the process when nobody reads on."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """For what stdout can show: without UTF-8 lines are drawn with ASCII."""
        return sys.stdout.encoding or "utf-8"


class Screen:
    """One command's output.

    as_json   only document() shows anything
    quiet     only document() does, and only with as_json
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.terminal = sys.stdout.isatty()
        self._made: Console | None = None
        self._gone = False

    @property
    def talks(self) -> bool:
        """Whether text for people is expected."""
        return not self.as_json and not self.quiet

    @property
    def _console(self) -> Console:
        from rich.console import Console

        if self._made is None:
            self._made = Console(
                file=_Page(),
                force_terminal=True if self.terminal else None,
                width=None if self.terminal else _PIPE_WIDTH,
                markup=False,  # brackets in a path are brackets
                highlight=False,
                emoji=False,
            )
        return self._made

    def print(self, *parts: RenderableType, width: int | None = None) -> None:
        """Strings, and what rich can show. `width`: for what fills its line."""
        if not self.talks:
            return
        console = self._console
        console.file = page = _Page()
        console.print(*parts, sep="", width=width, soft_wrap=not self.terminal and width is None)
        text = page.getvalue()
        if not self.terminal:
            text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        self._write(text)

    def styled(self, text: str, style: str) -> RenderableType:
        from rich.text import Text

        return Text(printable(text), style=style)

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 0) -> None:
        if self.talks:
            from .tables import table

            self.print(table(heads, rows, terminal=self.terminal, indent=indent))

    def document(self, facts: Mapping[str, Any]) -> None:
        """The one JSON document, if that is what was asked for."""
        if self.as_json:
            self._write(json.dumps(facts, indent=2) + "\n")

    def _write(self, text: str) -> None:
        if self._gone:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            forget_stdout()
            self._gone = True
        except OSError as error:
            forget_stdout()
            raise WriteError(f"cannot write to the output: {error.strerror}") from error


# Names and values under each other.


def show_facts(screen: Screen, facts: list[tuple[str, str]], width: int = 9) -> None:
    """Name and value; a long value goes on under itself."""
    if screen.talks and facts:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(min_width=width, overflow="fold", max_width=30)
        grid.add_column(overflow="fold")
        for name, value in facts:
            grid.add_row(Text(printable(name), style="dim"), Text(printable(value)))
        screen.print(Padding(grid, (0, 0, 0, 2), expand=False))


# Times as people type them.

_FACTORS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 365 * 86400.0


def parse_seconds(text: str) -> float:
    """`30s`, `5m`, `1.5h` or `90` -> seconds. ValueError says what was expected."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _FACTORS:
        raise ValueError(f"expected a time such as 30s, 5m or 1h, got {text!r}")
    value = float(match[1]) * _FACTORS[match[2]]
    if not 0 < value <= _LONGEST_S:
        raise ValueError(f"expected a time above zero and of a year at most, got {text!r}")
    return value


def seconds_of(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """An option's callback."""
    try:
        return None if value is None else parse_seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


# The bar on stderr: bytes done, rate, time left. It appears once the work has taken a second.

AFTER_S = 1.0


class Bar:
    """`advance(n)` from any thread. Nothing stays of it after the `with` block."""

    def __init__(self, doing: str, total_bytes: int, *, shown: bool, after_s: float = AFTER_S) -> None:
        self._doing = doing
        self._total = total_bytes
        self._shown = shown
        self._since = time.monotonic()
        self._after_s = after_s
        self.done = 0.0
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def advance(self, n: float) -> None:
        with self._lock:
            self.done = min(self.done + n, self._total)
            if not self._shown:
                return
            if self._progress is None and time.monotonic() - self._since >= self._after_s:
                self._show()
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, completed=self.done)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task(self._doing, total=self._total)
        self._progress.start()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._shown = False
            if self._progress is not None:
                self._progress.stop()


def bar_for(screen: Screen, doing: str, total_bytes: int) -> Bar:
    return Bar(doing, total_bytes, shown=sys.stderr.isatty() and not screen.quiet)


# The bar on stderr for work that takes a time known before.


class Waiting:
    """`passed(seconds)` shows and moves it. Nothing stays of it after the `with` block."""

    def __init__(self, doing: str, total_s: float, *, shown: bool) -> None:
        self._doing = doing
        self._total_s = total_s
        self._shown = shown
        self._progress: Progress | None = None

    def __enter__(self) -> Waiting:
        return self

    def passed(self, seconds: float) -> None:
        if self._shown and self._progress is None:  # not before: what ends at once shows no bar
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TimeRemainingColumn(),
                TextColumn("Ctrl-C: the verdict so far"),
                console=Console(stderr=True),
                transient=True,
                expand=True,
            )
            self._progress.add_task(self._doing, total=self._total_s)
            self._progress.start()
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=seconds)

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            self._progress.stop()
