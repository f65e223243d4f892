"""From an exception to the ones behind it.

Libraries wrap: requests' SSLError has urllib3's MaxRetryError in its args, that one an SSLError as its reason, and that
one the OSError with errno 24. Others keep only the text, or the text of a traceback in another process.
"""

from __future__ import annotations

import errno as errnos
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from .row import Row
from .table import row_of

_CONTEXT = ".__context__"
MOST = 64  # exceptions in one chain, rings and groups included
_MOST_CHARS = 65536
_ATTRIBUTES = (
    "reason",
    "original",
    "orig",
    "original_exception",
    "original_error",
    "inner",
    "inner_exception",
    "cause",
    "error",
    "exc",
    "exception",
    "err",
)

# The text of a traceback's last frames; reading source files is not this room's work.
Frames = Callable[[TracebackType | None], str]


@dataclass(frozen=True, slots=True)
class Link:
    """One exception, and the way to it: `path` has a word for each exception on it, the outermost first."""

    error: BaseException
    path: tuple[str, ...]

    @property
    def errno(self) -> int | None:
        number = getattr(self.error, "errno", None) if isinstance(self.error, OSError) else None
        return number if isinstance(number, int) else None

    @property
    def chain(self) -> str:
        return " ← ".join(self.path)


@dataclass(frozen=True, slots=True)
class Found:
    """What a chain turned out to be. `line` is the text that was recognised."""

    link: Link
    row: Row
    line: str


def walk(error: BaseException) -> list[Link]:
    """Every exception that hangs on this one, this one first; each once, MOST at most.

    What was meant comes before what merely was being handled at the time, however near that is.
    """
    found: list[Link] = []
    seen: set[int] = set()
    meant: deque[tuple[BaseException, tuple[str, ...]]] = deque([(error, (name_of(error),))])
    handled: deque[tuple[BaseException, tuple[str, ...]]] = deque()
    while (meant or handled) and len(found) < MOST:
        one, path = (meant or handled).popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        found.append(Link(one, path))
        for way, inner in _inside(one):
            step = (*path[:-1], name_of(one) + way, name_of(inner))
            (handled if way == _CONTEXT else meant).append((inner, step))
    return found


def name_of(error: BaseException) -> str:
    """`SSLError`, `OSError(24)`."""
    number = getattr(error, "errno", None) if isinstance(error, OSError) else None
    name = type(error).__name__
    return f"{name}({number})" if isinstance(number, int) else name


def _inside(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    args = getattr(error, "args", ())
    for inner in args if isinstance(args, tuple) else ():
        if isinstance(inner, BaseException):
            yield "", inner
    for name in _ATTRIBUTES:
        inner = _attribute(error, name)
        if isinstance(inner, BaseException):
            yield f".{name}", inner
    if isinstance(error, BaseExceptionGroup):
        for at, inner in enumerate(error.exceptions[:MOST]):
            yield f".exceptions[{at}]", inner
    if error.__cause__ is not None:
        yield ".__cause__", error.__cause__
    if error.__context__ is not None:
        yield _CONTEXT, error.__context__


def _attribute(error: BaseException, name: str) -> object:
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - a property of a stranger's class
        return None


def recognise(links: list[Link], frames: Frames = lambda traceback: "") -> Found | None:
    """The most telling of them; of several that say the same the one with the errno itself, then the outermost."""
    best: tuple[tuple[int, bool, int], Found] | None = None
    for link in links:
        for row, line in _rows(link, frames):
            key = (row.rank, link.errno is not None and link.errno == row.errno, -len(link.path))
            if best is None or key > best[0]:
                best = key, Found(link, row, line)
    return best[1] if best else None


def _rows(link: Link, frames: Frames) -> Iterator[tuple[Row, str]]:
    before = frames(link.error.__traceback__)
    lines = message_of(link.error).splitlines() or [""]
    lines[0] = f"{type(link.error).__name__}: {_with_errno(link, lines[0])}"
    for at, line in enumerate(lines):
        row = row_of(line, "\n".join([before, *lines[max(0, at - 40) : at]]))
        if row is not None:
            yield row, line


def message_of(error: BaseException) -> str:
    """Its text, bounded, whatever its class does."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - __str__ of a stranger's class
        return ""
    half = _MOST_CHARS // 2
    return text if len(text) <= _MOST_CHARS else f"{text[:half]}\n{text[-half:]}"


def _with_errno(link: Link, text: str) -> str:
    """As Python itself writes it, also where a class hides the number or the system speaks another language."""
    if link.errno is None or f"[Errno {link.errno}]" in text:
        return text
    return f"[Errno {link.errno}] {errnos.errorcode.get(link.errno, '')} {text}"
