"""When a line of a log was written, as the line itself has it."""

from __future__ import annotations

import re
from functools import cache

_LOOKED_AT = 200  # a stamp stands at the front; in a line of JSON a little later
_LINES_AWAY = 200

_FORMS = (
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?Z|[+-]\d\d:?\d\d)?",  # 2026-05-01 12:34:56,789
    r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?",  # nginx, Go
    r"\d\d/[A-Z][a-z]{2}/\d{4}[: ]\d\d:\d\d:\d\d(?: [+-]\d{4})?",  # Apache
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d",  # syslog
    r"(?:(?<=^)|(?<=\s))[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+",  # glog, TensorFlow
    r"(?:(?<=^)|(?<=[\[ ]))\d\d:\d\d:\d\d(?:[.,]\d+)?",  # the time of day alone
)


@cache
def _pattern() -> re.Pattern[str]:
    return re.compile("|".join(_FORMS))


def stamp_of(line: str) -> str | None:
    """`2026-05-01 12:34:56,789 ERROR …` -> `2026-05-01 12:34:56,789`; not parsed: nobody knows its time zone."""
    found = _pattern().search(line[:_LOOKED_AT])
    return found[0] if found else None


class Clock:
    """The nearest stamp above a line, as the lines of a traceback have none of their own.

    Lines are looked at once: it is told of each place in turn, with what stands before it.
    """

    def __init__(self) -> None:
        self._stamp: str | None = None
        self._stamped = 0
        self._looked = 0

    def at(self, line: int, text: str, before: str) -> str | None:
        """`line` counts from 1 and does not go back."""
        own = stamp_of(text)
        if own is None and line > self._looked + 1:
            above = before.splitlines()[-(line - self._looked - 1) :]
            for back, other in enumerate(reversed(above), 1):
                if stamp := stamp_of(other):
                    self._stamp, self._stamped = stamp, line - back
                    break
        if own is not None:
            self._stamp, self._stamped = own, line
        self._looked = line
        return self._stamp if line - self._stamped <= _LINES_AWAY else None
