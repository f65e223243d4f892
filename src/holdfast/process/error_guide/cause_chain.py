"""Matches lines of text, and chains of exceptions, with the rules."""

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

# If two rules of the same rank match, the first one wins, so specific rules come before general ones.
RULES: tuple[Rule, ...] = (
    *rules_files.RULES,
    *rules_fds.RULES,
    *rules_workers.RULES,
    *rules_processes.RULES,
    *rules_files.GENERAL,
)
_ALL = {needle for rule in RULES for needle in rule.needles}
# The needles to search for: one that contains another is redundant.
NEEDLES = tuple(sorted(one for one in _ALL if not any(other != one and other in one for other in _ALL)))

_OF_A_TRACEBACK = ("Traceback (", "During handling of", "The above exception", "+-", "|", "^")
_LINES_BEFORE = 3
_LINES_OF_A_TRACEBACK = 80


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Compiled on first use, because most programs that import this module never see an error.
    return re.compile(pattern, re.IGNORECASE)


def rule_of(line: str, before: str = "") -> Rule | None:
    """Return the highest-ranked rule that matches a line; `before` is the text above it."""
    lower = line.lower()
    context: str | None = None
    best: Rule | None = None
    for rule in RULES:
        if best is not None and rule.rank <= best.rank:
            continue
        for needle in rule.needles:  # twice as fast as any(), for logs with millions of such lines
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
    """Return the line with the traceback that it ends, or else with the few lines above it."""
    above = before.rstrip("\n").rsplit("\n", _LINES_OF_A_TRACEBACK)[-_LINES_OF_A_TRACEBACK:]
    take = 0
    if not line[:1].isspace():
        while take < len(above) and _is_of_traceback(above[-1 - take]):
            take += 1
    kept = above[len(above) - max(take, min(_LINES_BEFORE, len(above))) :]
    return "\n".join([*kept, line])


def _is_of_traceback(line: str) -> bool:
    return not line or line[0].isspace() or line.startswith(_OF_A_TRACEBACK)


# Libraries wrap exceptions: requests' SSLError has urllib3's MaxRetryError in its args, whose reason is an SSLError
# that wraps the OSError with errno 24. Others keep only the message, or the traceback text of another process.

_CONTEXT = ".__context__"
MAX = 1000  # exceptions in one chain, including cycles and groups: retry loops make long chains
_MAX_CHARS = 65536
_MAX_NAMES = 12  # shown of a chain
_OUTPUT_BYTES = 8192
# The errno attribute of these holds a code of OpenSSL or of the resolver.
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

# Returns the text of a traceback's last frames. The caller passes it in, because it reads source files.
Frames = Callable[[TracebackType | None], str]


@dataclass(frozen=True, slots=True)
class CauseLink:
    """Holds one exception, and the path to it: a name for each exception on the way, the outermost first."""

    error: BaseException
    path: tuple[str, ...]

    @property
    def errno(self) -> int | None:
        return _errno_of(self.error)

    @property
    def meant(self) -> bool:
        """Whether it is a cause, and not just an exception that was being handled at the time."""
        return not any(step.endswith(_CONTEXT) for step in self.path)

    @property
    def chain(self) -> str:
        half = _MAX_NAMES // 2
        long = len(self.path) > _MAX_NAMES
        return " ← ".join((*self.path[:half], "…", *self.path[-half:]) if long else self.path)


@dataclass(frozen=True, slots=True)
class FoundCause:
    """Holds the link and the rule that match best. `line` is the text that matched."""

    link: CauseLink
    rule: Rule
    line: str


def walk(error: BaseException) -> list[CauseLink]:
    """Return this exception and every one it refers to, each once, at most MAX.

    Causes come before exceptions that were only being handled at the time, however near those are.
    """
    found: list[CauseLink] = []
    seen: set[int] = set()
    meant: deque[tuple[BaseException, tuple[str, ...]]] = deque([(error, (name_of(error),))])
    handled: deque[tuple[BaseException, tuple[str, ...]]] = deque()
    while (meant or handled) and len(found) < MAX:
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
    """Return `SSLError` or, with an errno, `OSError(24)`."""
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
        for at, inner in enumerate(error.exceptions[:MAX]):
            yield f".exceptions[{at}]", inner
    if error.__cause__ is not None:
        yield ".__cause__", error.__cause__
    if error.__context__ is not None:
        yield _CONTEXT, error.__context__


def _attribute(error: BaseException, name: str) -> object:
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - a property of a foreign class may raise anything
        return None


def recognise(links: list[CauseLink], frames: Frames = lambda traceback: "") -> FoundCause | None:
    """Return the best match: by rank, then a cause, then the errno itself, then the outermost."""
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
    """Return the message with notes and the output of a failed subprocess; bounded, and never raises."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - __str__ of a foreign class may raise anything
        text = ""
    return _shortened("\n".join([_shortened(text), *_notes(error), *_output(error)]))


def _shortened(text: str) -> str:
    half = _MAX_CHARS // 2
    return text if len(text) <= _MAX_CHARS else f"{text[:half]}\n{text[-half:]}"


def _notes(error: BaseException) -> list[str]:
    notes = _attribute(error, "__notes__")
    return [_shortened(note) for note in notes[:MAX] if isinstance(note, str)] if isinstance(notes, list) else []


def _output(error: BaseException) -> Iterator[str]:
    """Yield the end of the output that subprocess exceptions keep."""
    for name in ("stderr", "stdout"):
        said = _attribute(error, name)
        if isinstance(said, bytes):
            yield said[-_OUTPUT_BYTES:].decode("utf-8", "replace")
        elif isinstance(said, str):
            yield said[-_OUTPUT_BYTES:]


def _with_errno(link: CauseLink, text: str) -> str:
    """Add the errno as Python writes it, for classes that hide it and for messages in other languages."""
    if link.errno is None or f"[Errno {link.errno}]" in text:
        return text
    return f"[Errno {link.errno}] {errnos.errorcode.get(link.errno, '')} {text}"
