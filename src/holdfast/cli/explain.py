"""Explain an error message using this machine's limits.

TEXT is an error message, a traceback, or any text that contains one. FILE is a
log, which may be compressed with gzip, and - is stdin. The answer says which
limit is reached and how much of it is used, which process holds the lock, what
the error is often mistaken for, what to do, and which holdfast code avoids it.
In a log, the errors are grouped by kind, with the first and last line of each
and their times. Causes come before consequences: the error behind two hundred
SSLErrors is shown before them.

Examples:

  holdfast explain "OSError: [Errno 24] Too many open files" --pid 41231
  holdfast explain "unable to lock file" --path train.h5
  kubectl logs worker-3 | holdfast explain -

With --json:

  {"known": true, "lines": 9120, "causes": [{"name": "EMFILE",
   "title": "Too many open files", "errno": 24, "says": "…", "here": ["…"],
   "mistaken_for": "…", "advice": ["…"], "chain": "worker.log line 88",
   "text": "OSError: [Errno 24] …", "count": 214,
   "first": {"source": "worker.log", "line": 88,
    "time": "2026-05-01 10:22:01"}, "last": {…}}]}

  name      the kind of error, a fixed identifier
  errno     the errno behind it; null if there is none
  here      what was found on this machine
  count     the number of lines with this error
  time      the line's timestamp, or the nearest one above it; null if none

Exit codes: 0 a known error was found; 1 no known error was found; 3 a file
cannot be read, or there is no process PID.
"""

from __future__ import annotations

import os
import shutil
import sys

import click

from .._util.text import counted, format_bytes, printable
from ..errors import InputError, MissingFileError
from ..process.error_guide.explain import explain_sighting
from ..process.error_guide.explanation import Explanation, body, explanations_as_dict
from ..process.error_guide.log_scanner import Scanner, scan_file, scan_stream
from ..procfs.procfs import REAL, stat_or_none
from .app import FINE, FOUND, command
from .console import Screen, bar_for, show_rest

_SHOWN = 5
_WIDTH = 80
_WIDEST = 100


@command(__doc__)
@click.argument("texts", nargs=-1, required=True, metavar="TEXT|FILE|-")
@click.option("--pid", type=click.IntRange(min=1), metavar="PID", help="Look at the limits of this process.")
@click.option("--path", metavar="FILE", help="The file in question, if the text does not name it.")
def explain(screen: Screen, texts: tuple[str, ...], pid: int | None, path: str | None) -> int:
    if pid is not None and stat_or_none(REAL, f"/proc/{pid}") is None:
        raise InputError(f"there is no process {pid}")
    if path is not None and not os.path.exists(path):
        raise MissingFileError(f"there is no file {path}", path)
    if path is not None and os.path.isdir(path):
        raise InputError(f"{path} is a folder; expected the file in question")
    scanner = _scan(screen, texts)
    causes = [explain_sighting(seen, pid, path, shell=True) for seen in scanner.sightings()]
    screen.document(explanations_as_dict(causes, scanner.lines))
    for at, cause in enumerate(causes[:_SHOWN]):
        _show(screen, cause, first=at == 0)
    if len(causes) > _SHOWN:
        screen.print()
        show_rest(screen, len(causes) - _SHOWN, "kind")
    if not causes:
        screen.print(_nothing(texts, scanner.lines))
    return FINE if causes else FOUND


def _scan(screen: Screen, texts: tuple[str, ...]) -> Scanner:
    """Scan the given files. If none of the arguments is a file, join them into one text: its quotes were forgotten."""
    scanner = Scanner()
    files = [text for text in texts if text == "-" or _is_there(text)]
    if not files:
        scanner.begin("")
        scanner.feed(" ".join(texts).encode("utf-8", "replace"))
        scanner.end()
        return scanner
    missing = [text for text in texts if text not in files]
    if missing:
        raise InputError(f"there is no file {missing[0]}, but {files[0]} is a file; put a text in quotes")
    if "-" in files and sys.stdin is None:
        raise InputError("cannot read stdin: it is closed")
    total = sum(os.path.getsize(file) for file in files if file != "-" and os.path.exists(file))
    with bar_for(screen, f"reading {format_bytes(total)} of logs", total) as bar:
        for file in files:
            if file == "-":
                scan_stream(scanner, sys.stdin.buffer, "", bar.advance)
            else:
                scan_file(scanner, file, bar.advance)
    return scanner


def _is_there(text: str) -> bool:
    """Return True also if permission is denied: the file may exist, and reading it reports the error."""
    try:
        os.stat(text)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _show(screen: Screen, cause: Explanation, *, first: bool) -> None:
    if not screen.talks:
        return
    if not first:
        screen.print()
    width = min(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDEST)
    screen.print(screen.styled(cause.headline, "bold red" if first else "bold yellow"))
    screen.print()
    for label, text in body(cause, width):
        screen.print(screen.styled(label, "cyan"), printable(text))


def _nothing(texts: tuple[str, ...], lines: int) -> str:
    if any(text == "-" or _is_there(text) for text in texts):
        return f"found no known error in {counted(lines, 'line')}"
    if not " ".join(texts).strip():
        return "the text is empty: expected an error message, a log file, or - for stdin"
    name = " is neither a file nor" if len(texts) == 1 and " " not in texts[0] and len(texts[0]) < 200 else ": not"
    return f"{printable(' '.join(texts)[:200])}{name} a known error"
