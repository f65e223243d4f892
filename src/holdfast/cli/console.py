"""Writes to stdout and stderr: text for people, one JSON document for machines, progress bars on stderr."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TextIO

from .._util.fds import point_to_null
from .._util.text import counted, format_bytes, printable
from ..errors import WriteError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, ProgressColumn

    from ..data.formats.base import FileEntry
    from ..data.formats.sections import Section


# ---- stdout and stderr


def prepare_streams() -> None:
    """Opens closed standard streams on /dev/null, so that no data file gets their numbers, and escapes bad names."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - stays open
        reconfigure = getattr(getattr(sys, name), "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")


def forget_stdout() -> None:
    """Sends further output to /dev/null, after the reader has closed the pipe as `| head` does."""
    point_to_null(sys.stdout.fileno(), inheritable=True)


PIPE_WIDTH = 1 << 14  # in a pipe nothing is wrapped: one row is one line


def bold(text: str, stream: TextIO) -> str:
    return f"\x1b[1m{text}\x1b[0m" if stream.isatty() and not os.environ.get("NO_COLOR") else text


class _Page(io.StringIO):
    """The buffer that rich renders to. Rich would end the process if stdout itself were a closed pipe."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Returns the encoding of stdout: without UTF-8, rich draws lines with ASCII."""
        return sys.stdout.encoding or "utf-8"


class Screen:
    """The output of one command: text, or one JSON document with `as_json`. With `quiet` there is no text."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.terminal = sys.stdout.isatty()
        self._rich: Console | None = None
        self._is_closed = False

    @property
    def talks(self) -> bool:
        """Whether text is printed."""
        return not self.as_json and not self.quiet

    @property
    def page_width(self) -> int | None:
        """The width for a page of prose and tables: COLUMNS, also in a pipe; None: that of the terminal or pipe."""
        columns = os.environ.get("COLUMNS", "")
        return int(columns) if columns.isdecimal() and int(columns) > 0 else None

    @property
    def _console(self) -> Console:
        from rich.console import Console

        if self._rich is None:
            self._rich = Console(
                file=_Page(),
                force_terminal=True if self.terminal else None,
                width=None if self.terminal else PIPE_WIDTH,
                markup=False,  # a path may contain brackets
                highlight=False,
                emoji=False,
            )
        return self._rich

    def print(self, *parts: RenderableType, width: int | None = None) -> None:
        """Prints strings and rich renderables; `width` is for renderables that fill the line."""
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
        """Prints the JSON document, if --json was given."""
        if self.as_json:
            self._write(json.dumps(facts, indent=2) + "\n")

    def line(self, facts: Mapping[str, Any]) -> None:
        """Prints one document of several, each on a line of its own, if --json was given."""
        if self.as_json:
            self._write(json.dumps(facts) + "\n")

    def _write(self, text: str) -> None:
        if self._is_closed:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            forget_stdout()
            self._is_closed = True
        except OSError as error:
            forget_stdout()
            raise WriteError(f"cannot write to the output: {error.strerror}") from error


def show_facts(screen: Screen, facts: list[tuple[str, str]], width: int = 9) -> None:
    """Prints names and values in two columns; a long value is wrapped in its column."""
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


def show_schema(screen: Screen, code: str) -> None:
    screen.print("\n".join(f"    {printable(line)}" for line in f"schema = {code}".splitlines()))


def show_rest(screen: Screen, left: int, what: str = "", *, indent: int = 0) -> None:
    """Says how many of a list were not printed, if any."""
    if left > 0:
        more = counted(left, f"more {what}") if what else f"{left:,} more"
        screen.print(f"{' ' * indent}… and {more} (--json lists all)")


def show_section(screen: Screen, section: Section) -> None:
    """Prints a section of a report on a file."""
    if section.title:
        screen.print(f"  {printable(section.title)}" + ("\n" if section.facts or section.code else ""))
    show_facts(screen, list(section.facts))
    if section.rows:
        screen.table(section.heads, section.rows, indent=2)
    show_rest(screen, section.left, indent=2)
    if section.code:
        show_schema(screen, section.code)
    for line in section.lines:
        screen.print(f"    {printable(line)}")


_SHOWN_REPEATED = 5


def show_repeated(screen: Screen, repeated: Sequence[str], done: str) -> None:
    """Prints which files were given more than once. `done`: what was done with each once."""
    if repeated:
        screen.print(f"Given more than once and {done} once:")
        for text in repeated[:_SHOWN_REPEATED]:
            screen.print(f"  {printable(text)}")
        show_rest(screen, len(repeated) - _SHOWN_REPEATED, indent=2)


_SHOWN_FILES = 20


def show_files(screen: Screen, entries: Sequence[FileEntry], what: str) -> None:
    """Prints a table of new files, the first ones if there are many. `what` the files hold: records or samples."""
    rows = [(entry.path, f"{entry.records:,}", format_bytes(entry.bytes)) for entry in entries[:_SHOWN_FILES]]
    screen.table(["file", f">{what}", ">size"], rows)
    show_rest(screen, len(entries) - _SHOWN_FILES, "file")
    screen.print()


# ---- progress bars on stderr

AFTER_S = 1.0


class _ProgressBar:
    """A transient rich progress bar that is started by its first update, and removed when the `with` block ends."""

    def __init__(self, doing: str, total: float, *, shown: bool) -> None:
        self._doing = doing
        self._total = total
        self._shown = shown
        self._progress: Progress | None = None

    def _columns(self) -> list[ProgressColumn]:
        raise NotImplementedError

    def _update(self, completed: float) -> None:
        if not self._shown:
            return
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = [TextColumn("{task.description}"), BarColumn(bar_width=None), *self._columns()]
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
            self._progress.add_task(self._doing, total=self._total)
            self._progress.start()
        self._progress.update(self._progress.task_ids[0], completed=completed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._shown = False
        if self._progress is not None:
            self._progress.stop()


class Bar(_ProgressBar):
    """Shows bytes done, the rate and the time left, once the work has taken `after_s` seconds.

    Any thread may call `advance`.
    """

    def __init__(self, doing: str, total_bytes: int, *, shown: bool, after_s: float = AFTER_S) -> None:
        super().__init__(doing, total_bytes, shown=shown)
        self._show_at = time.monotonic() + after_s
        self._lock = threading.Lock()
        self.done = 0.0

    def _columns(self) -> list[ProgressColumn]:
        from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

        return [DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()]

    def advance(self, n: float) -> None:
        with self._lock:
            self.done = min(self.done + n, self._total)
            if self._progress is not None or time.monotonic() >= self._show_at:
                self._update(self.done)

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            super().__exit__(*exc)


def bar_for(screen: Screen, doing: str, total_bytes: int) -> Bar:
    return Bar(doing, total_bytes, shown=sys.stderr.isatty() and not screen.quiet)


class Waiting(_ProgressBar):
    """Shows how much of a known time has passed, from the first call of `passed` on."""

    def _columns(self) -> list[ProgressColumn]:
        from rich.progress import TextColumn, TimeRemainingColumn

        return [TimeRemainingColumn(), TextColumn("Ctrl-C: show the verdict so far")]

    def passed(self, seconds: float) -> None:
        self._update(seconds)
