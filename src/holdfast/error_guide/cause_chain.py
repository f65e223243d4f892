"""All kinds of errors that are known, and which of them a line of text is."""

from __future__ import annotations

import errno as errnos
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import TracebackType

from . import rules_fds, rules_files, rules_processes, rules_workers
from .rules import Rule

# Of two rows of the same rank that fit a line the earlier one is meant: special ones stand before general ones.
RULES: tuple[Rule, ...] = (
    *rules_files.RULES,
    *rules_fds.RULES,
    *rules_workers.RULES,
    *rules_processes.RULES,
    *rules_files.GENERAL,
)
_ALL = {needle for rule in RULES for needle in rule.needles}
# What a line is searched for first: a needle inside of another one finds that as well.
NEEDLES = tuple(sorted(one for one in _ALL if not any(other != one and other in one for other in _ALL)))

_OF_A_TRACEBACK = ("Traceback (", "During handling of", "The above exception", "+-", "|", "^")
_LINES_BEFORE = 3
_LINES_OF_A_TRACEBACK = 80


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Not when this module is loaded: that is done by programs which never see an error.
    return re.compile(pattern, re.IGNORECASE)


def rule_of(line: str, before: str = "") -> Rule | None:
    """The most telling row that a line is; `before` is what stands above it."""
    lower = line.lower()
    context: str | None = None
    best: Rule | None = None
    for rule in RULES:
        if best is not None and rule.rank <= best.rank:
            continue
        for needle in rule.needles:  # a loop, not any(): it is twice as fast, and a log may have millions of such lines
            if needle in lower:
                break
        else:
            continue
        if rule.pattern and not _compiled(rule.pattern).search(line):
            continue
        if rule.near:
            if context is None:
                context = own_context(line, before).lower()
            if not any(word in context for word in rule.near):
                continue
        best = rule
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


# From an exception to the ones behind it.
#
# Libraries wrap: requests' SSLError has urllib3's MaxRetryError in its args, that one an SSLError as its reason, and
# that one the OSError with errno 24. Others keep only the text, or the text of a traceback in another process.

_CONTEXT = ".__context__"
MOST = 1000  # exceptions in one chain, rings and groups included: a loop of retries makes long ones
_MOST_CHARS = 65536
_MOST_NAMES = 12  # of a chain that is shown
_OUTPUT_BYTES = 8192
# Their numbers are OpenSSL's and the resolver's, though they stand where an errno does.
_OTHER_NUMBERS = {"SSLError", "gaierror", "herror"}
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
class CauseLink:
    """One exception, and the way to it: `path` has a word for each exception on it, the outermost first."""

    error: BaseException
    path: tuple[str, ...]

    @property
    def errno(self) -> int | None:
        return _errno_of(self.error)

    @property
    def meant(self) -> bool:
        """Not only being handled at the time."""
        return not any(step.endswith(_CONTEXT) for step in self.path)

    @property
    def chain(self) -> str:
        half = _MOST_NAMES // 2
        long = len(self.path) > _MOST_NAMES
        return " ← ".join((*self.path[:half], "…", *self.path[-half:]) if long else self.path)


@dataclass(frozen=True, slots=True)
class FoundCause:
    """What a chain turned out to be. `line` is the text that was recognised."""

    link: CauseLink
    rule: Rule
    line: str


def walk(error: BaseException) -> list[CauseLink]:
    """Every exception that hangs on this one, this one first; each once, MOST at most.

    What was meant comes before what merely was being handled at the time, however near that is.
    """
    found: list[CauseLink] = []
    seen: set[int] = set()
    meant: deque[tuple[BaseException, tuple[str, ...]]] = deque([(error, (name_of(error),))])
    handled: deque[tuple[BaseException, tuple[str, ...]]] = deque()
    while (meant or handled) and len(found) < MOST:
        one, path = (meant or handled).popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        found.append(CauseLink(one, path))
        for way, inner in _inside(one):
            step = (*path[:-1], name_of(one) + way, name_of(inner))
            (handled if way == _CONTEXT else meant).append((inner, step))
    return found


def name_of(error: BaseException) -> str:
    """`SSLError`, `OSError(24)`."""
    number = _errno_of(error)
    name = type(error).__name__
    return name if number is None else f"{name}({number})"


def _errno_of(error: BaseException) -> int | None:
    number = _attribute(error, "errno") if isinstance(error, OSError) else None
    if not isinstance(number, int) or not 0 < number < 1 << 16:
        return None
    return None if any(_counts_otherwise(kind) for kind in type(error).__mro__) else number


def _counts_otherwise(kind: type) -> bool:
    return kind.__name__ in _OTHER_NUMBERS and kind.__module__ in ("ssl", "socket", "_socket")


def _inside(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    args = _attribute(error, "args")
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


def recognise(links: list[CauseLink], frames: Frames = lambda traceback: "") -> FoundCause | None:
    """The most telling of them; of several one that was meant, then one with the errno itself, then the outermost."""
    best: tuple[tuple[int, bool, bool, int], FoundCause] | None = None
    for link in links:
        for rule, line in _matches(link, frames):
            exact = link.errno is not None and link.errno == rule.errno
            key = (rule.rank, link.meant, exact, -len(link.path))
            if best is None or key > best[0]:
                best = key, FoundCause(link, rule, line)
    return best[1] if best else None


def _matches(link: CauseLink, frames: Frames) -> Iterator[tuple[Rule, str]]:
    before = frames(link.error.__traceback__)
    lines = message_of(link.error).splitlines() or [""]
    lines[0] = f"{type(link.error).__name__}: {_with_errno(link, lines[0])}"
    for at, line in enumerate(lines):
        rule = rule_of(line, "\n".join([before, *lines[max(0, at - 40) : at]]))
        if rule is not None:
            yield rule, line


def message_of(error: BaseException) -> str:
    """Its text with its notes and, of a program that failed, what that said; bounded, whatever its class does."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - __str__ of a stranger's class
        text = ""
    return _shortened("\n".join([_shortened(text), *_notes(error), *_output(error)]))


def _shortened(text: str) -> str:
    half = _MOST_CHARS // 2
    return text if len(text) <= _MOST_CHARS else f"{text[:half]}\n{text[-half:]}"


def _notes(error: BaseException) -> list[str]:
    notes = _attribute(error, "__notes__")
    return [_shortened(note) for note in notes[:MOST] if isinstance(note, str)] if isinstance(notes, list) else []


def _output(error: BaseException) -> Iterator[str]:
    """The last words of a child, as subprocess keeps them."""
    for name in ("stderr", "stdout"):
        said = _attribute(error, name)
        if isinstance(said, bytes):
            yield said[-_OUTPUT_BYTES:].decode("utf-8", "replace")
        elif isinstance(said, str):
            yield said[-_OUTPUT_BYTES:]


def _with_errno(link: CauseLink, text: str) -> str:
    """As Python itself writes it, also where a class hides the number or the system speaks another language."""
    if link.errno is None or f"[Errno {link.errno}]" in text:
        return text
    return f"[Errno {link.errno}] {errnos.errorcode.get(link.errno, '')} {text}"
