"""What goes to stdout: text for people, or one JSON document for machines."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import WriteError
from ..report.words import printable
from .streams import forget_stdout

if TYPE_CHECKING:  # rich takes a tenth of a second to load: --version and --help do without
    from rich.console import Console, RenderableType

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
            from ..report.tables import table

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
