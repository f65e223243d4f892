"""Builds explanations, and formats them as text and as JSON."""

from __future__ import annotations

import errno as errnos
import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..doctor.model import Match
from ..doctor.remedies import Remedy
from .cause_chain import CauseLink, FoundCause, message_of
from .log_scanner import LogPosition, Sighting
from .rules import Fact, Rank, Rule, Scope, SystemContext
from .sentences import sentences

UNKNOWN = "unknown"
_LABEL = 15
_INDENT = "  "
_TEXT = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explains an error. `str()` formats it for people.

    Attributes:
        name: The kind of error, a fixed identifier; "unknown" if no rule matches.
        title: A readable name.
        errno: The errno behind it, even if the error hides it.
        says: What it means.
        here: What was found on this machine.
        mistaken_for: What it is often mistaken for.
        advice: What to do, in order.
        chain: How it was found: `SSLError ← MaxRetryError.reason ← OSError(24)`.
        text: The line that matched, shortened.
        count: The number of lines with this error; 1 for an exception.
        first, last: The first and the last of these lines.
        remedy: Code of holdfast that avoids it: two lines of `code`, and the `page` about it; None if there is none.
    """

    __module__ = "holdfast"

    name: str
    title: str
    errno: int | None = None
    says: str
    here: tuple[str, ...] = ()
    mistaken_for: str = ""
    advice: tuple[str, ...] = ()
    chain: str = ""
    text: str = ""
    count: int = 1
    first: LogPosition | None = None
    last: LogPosition | None = None
    remedy: Remedy | None = None

    @property
    def known(self) -> bool:
        return self.name != UNKNOWN

    @property
    def headline(self) -> str:
        """The title with the errno: `Too many open files (EMFILE, errno 24)`."""
        if self.errno is None:
            return self.title
        return f"{self.title} ({errnos.errorcode.get(self.errno, 'errno')}, errno {self.errno})"

    def __str__(self) -> str:
        return "\n".join([self.headline, "", *(f"{label}{text}" for label, text in body(self))])


def body(what: Explanation, width: int = 80) -> list[tuple[str, str]]:
    """Wrap everything except the headline. Each line comes with its label, or with blanks of the same width."""
    lines = [*_part("", what.says, width, hang=0), ("", "")]
    lines += _labelled("here", what.here, width)
    lines += _labelled("mistaken for", [what.mistaken_for] if what.mistaken_for else [], width)
    lines += _labelled("do", [f"{at}. {one}" for at, one in enumerate(what.advice, 1)], width, hang=3)
    if what.remedy is not None:
        code = (*what.remedy.code, f"({what.remedy.page})")  # not wrapped, so that users can copy it
        lines += [(f"{_INDENT}{'' if at else 'write':<{_LABEL}}", line) for at, line in enumerate(code)]
    lines += _labelled("found", _found(what), width)
    return lines


def _labelled(label: str, parts: Sequence[str], width: int, hang: int = 2) -> Iterator[tuple[str, str]]:
    """Put the label before the first line, and indent the others."""
    for at, part in enumerate(parts):
        yield from _part(f"{label if at == 0 else '':<{_LABEL}}", part, width, hang)


def _part(label: str, text: str, width: int, hang: int) -> Iterator[tuple[str, str]]:
    label = _INDENT + label
    plain = "".join(c if c.isprintable() else " " for c in text)  # names of files and processes may contain anything
    folded = textwrap.wrap(
        " ".join(plain.split()),
        max(width - len(label), 24),
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for at, line in enumerate(folded):
        yield (label if at == 0 else " " * len(label)), line


def _found(what: Explanation) -> list[str]:
    parts = [what.chain] if what.first is None and what.chain else []
    if what.first is not None and what.last is not None and (what.count > 1 or what.first.line > 1):
        parts.append(_positions(what.count, what.first, what.last))
    if what.text and what.text != what.title:
        parts.append(what.text if len(what.text) <= _TEXT else what.text[: _TEXT - 1] + "…")
    return parts


def _positions(count: int, first: LogPosition, last: LogPosition) -> str:
    if count == 1:
        return f"once, on {_position(first, first.source)}"
    between = "" if first.source == last.source else first.source
    return f"on {count:,} lines: the first is {_position(first, between)}, the last {_position(last, last.source)}"


def _position(position: LogPosition, source: str) -> str:
    of = f" of {source}" if source else ""
    time = f" ({position.time})" if position.time else ""
    return f"line {position.line:,}{of}{time}"


def of_exception(found: FoundCause, context: SystemContext) -> Explanation:
    errno = found.rule.errno if found.link.errno is None else found.link.errno
    text = " ".join(found.line.split())[:400]
    return replace(_of_rule(found.rule, context), errno=errno, chain=found.link.chain, text=text)


def of_sighting(seen: Sighting, context: SystemContext) -> Explanation:
    chain = f"{seen.first.source} line {seen.first.line:,}".lstrip()
    return replace(
        _of_rule(seen.rule, context), chain=chain, text=seen.text, count=seen.count, first=seen.first, last=seen.last
    )


def _of_rule(rule: Rule, context: SystemContext) -> Explanation:
    return Explanation(
        name=rule.name,
        title=rule.title,
        errno=rule.errno,
        says=rule.says,
        here=sentences(rule.facts, context),
        mistaken_for=rule.mistaken_for,
        advice=_advice(rule, context),
        remedy=_remedy(rule, context),
    )


def _advice(rule: Rule, context: SystemContext) -> tuple[str, ...]:
    """Put the advice about the leak found in this process before the general advice."""
    leak = _leak(rule, context)
    advice: tuple[str, ...] = rule.advice
    if leak is not None:
        advice = (*(_sentence(one) for one in leak.advice[:1]), *rule.advice)
    if context.scope is Scope.SHELL:
        return advice
    return tuple(one.replace("PID", str(context.pid)) for one in advice)


def _remedy(rule: Rule, context: SystemContext) -> Remedy | None:
    leak = _leak(rule, context)
    return leak.remedy if leak is not None and leak.remedy is not None else rule.remedy


def _leak(rule: Rule, context: SystemContext) -> Match | None:
    """Return the leak found in this process, if the error is one that leaks cause."""
    return context.match if rule.rank is Rank.CAUSE and rule.facts[:1] == (Fact.DESCRIPTORS,) else None


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def of_unknown_exception(links: Sequence[CauseLink]) -> Explanation:
    """No rule matches: report at least the system's description of the errno."""
    inner = next((link for link in reversed(links) if link.errno is not None), links[0])
    own_words = f"The system describes it as: {os.strerror(inner.errno)}." if inner.errno is not None else ""
    return Explanation(
        name=UNKNOWN,
        title=type(links[0].error).__name__,
        errno=inner.errno,
        says=" ".join(["holdfast does not know this error.", own_words]).strip(),
        chain=inner.chain,
        text=" ".join(message_of(inner.error).split())[:400],
    )


def of_unknown_text() -> Explanation:
    says = "No line of this text is an error that holdfast knows."
    return Explanation(name=UNKNOWN, title="No known error", says=says)


def explanations_as_dict(causes: Sequence[Explanation], lines: int) -> dict[str, Any]:
    """Return the document of `holdfast explain --json`."""
    return {"known": bool(causes), "lines": lines, "causes": [explanation_as_dict(one) for one in causes]}


def explanation_as_dict(one: Explanation) -> dict[str, Any]:
    return {
        "name": one.name,
        "title": one.title,
        "errno": one.errno,
        "says": one.says,
        "here": list(one.here),
        "mistaken_for": one.mistaken_for,
        "advice": [*one.advice, *([] if one.remedy is None else [str(one.remedy)])],
        "chain": one.chain,
        "text": one.text,
        "count": one.count,
        "first": _position_as_dict(one.first),
        "last": _position_as_dict(one.last),
    }


def _position_as_dict(position: LogPosition | None) -> dict[str, Any] | None:
    if position is None:
        return None
    return {"source": position.source or None, "line": position.line, "time": position.time}
