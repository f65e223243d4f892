"""All kinds of errors that are known, and which of them a line of text is."""

from __future__ import annotations

import re
from functools import cache

from . import rows_descriptors, rows_files, rows_tasks, rows_workers
from .row import Row

# Of two rows of the same rank that fit a line the earlier one is meant: special ones stand before general ones.
ROWS: tuple[Row, ...] = (
    *rows_files.ROWS,
    *rows_descriptors.ROWS,
    *rows_workers.ROWS,
    *rows_tasks.ROWS,
    *rows_files.GENERAL,
)
_ALL = {needle for row in ROWS for needle in row.needles}
# What a line is searched for first: a needle inside of another one finds that as well.
NEEDLES = tuple(sorted(one for one in _ALL if not any(other != one and other in one for other in _ALL)))

_OF_A_TRACEBACK = ("Traceback (", "During handling of", "The above exception", "+-", "|", "^")
_LINES_BEFORE = 3
_LINES_OF_A_TRACEBACK = 80


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Not when this module is loaded: that is done by programs which never see an error.
    return re.compile(pattern, re.IGNORECASE)


def row_of(line: str, before: str = "") -> Row | None:
    """The most telling row that a line is; `before` is what stands above it."""
    lower = line.lower()
    context: str | None = None
    best: Row | None = None
    for row in ROWS:
        if best is not None and row.rank <= best.rank:
            continue
        for needle in row.needles:  # a loop, not any(): it is twice as fast, and a log may have millions of such lines
            if needle in lower:
                break
        else:
            continue
        if row.pattern and not _compiled(row.pattern).search(line):
            continue
        if row.near:
            if context is None:
                context = own_context(line, before).lower()
            if not any(word in context for word in row.near):
                continue
        best = row
    return best


def own_context(line: str, before: str) -> str:
    """The line with the traceback it ends; without one, with the few lines above it."""
    above = before.rstrip("\n").rsplit("\n", _LINES_OF_A_TRACEBACK)[-_LINES_OF_A_TRACEBACK:]
    take = 0
    if not line[:1].isspace():
        while take < len(above) and _is_of_traceback(above[-1 - take]):
            take += 1
    kept = above[len(above) - max(take, min(_LINES_BEFORE, len(above))) :]
    return "\n".join([*kept, line])


def _is_of_traceback(line: str) -> bool:
    return not line or line[0].isspace() or line.startswith(_OF_A_TRACEBACK)
