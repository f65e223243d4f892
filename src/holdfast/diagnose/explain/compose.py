"""A row of the table and the facts of this machine -> an explanation."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..cures import Cure
from ..facts import Match
from .chain import Found, Link, message_of
from .explanation import UNKNOWN, Explanation
from .here import Here, Whose
from .logs import Sighting
from .row import Ask, Rank, Row
from .sentences import sentences


def of_exception(found: Found, here: Here) -> Explanation:
    row, link = found.row, found.link
    return Explanation(
        name=row.name,
        title=row.title,
        errno=row.errno if link.errno is None else link.errno,
        says=row.says,
        here=sentences(row.asks, here),
        mistaken_for=row.mistaken_for,
        advice=_advice(row, here),
        cure=_cure(row, here),
        chain=link.chain,
        text=" ".join(found.line.split())[:400],
    )


def of_sighting(seen: Sighting, here: Here) -> Explanation:
    row = seen.row
    place = f"{seen.first.source} " if seen.first.source else ""
    return Explanation(
        name=row.name,
        title=row.title,
        errno=row.errno,
        says=row.says,
        here=sentences(row.asks, here),
        mistaken_for=row.mistaken_for,
        advice=_advice(row, here),
        cure=_cure(row, here),
        chain=f"{place}line {seen.first.line:,}",
        text=seen.text,
        count=seen.count,
        first=seen.first,
        last=seen.last,
    )


def _advice(row: Row, here: Here) -> tuple[str, ...]:
    """What leaks here comes before what leaks elsewhere."""
    leak = _leak(row, here)
    advice: tuple[str, ...] = row.advice
    if leak is not None:
        advice = (*(_sentence(one) for one in leak.advice[:1]), *row.advice)
    if here.whose is Whose.SHELL:
        return advice
    return tuple(one.replace("PID", str(here.pid)) for one in advice)


def _cure(row: Row, here: Here) -> Cure | None:
    leak = _leak(row, here)
    return leak.cure if leak is not None and leak.cure is not None else row.cure


def _leak(row: Row, here: Here) -> Match | None:
    """What leaks here, for an error that a leak explains."""
    return here.match if row.rank is Rank.CAUSE and row.asks[:1] == (Ask.DESCRIPTORS,) else None


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def of_unknown_exception(links: Sequence[Link]) -> Explanation:
    """None of the rows: at least the system's own words on the errno inside."""
    inner = next((link for link in reversed(links) if link.errno is not None), links[0])
    own_words = f"The system's word for it is: {os.strerror(inner.errno)}." if inner.errno is not None else ""
    return Explanation(
        name=UNKNOWN,
        title=type(links[0].error).__name__,
        errno=inner.errno,
        says=" ".join(["This is none of the errors that are known here.", own_words]).strip(),
        here=(),
        mistaken_for="",
        advice=(),
        chain=inner.chain,
        text=" ".join(message_of(inner.error).split())[:400],
    )


def of_unknown_text() -> Explanation:
    return Explanation(
        name=UNKNOWN,
        title="Nothing that is known",
        errno=None,
        says="No line of this text is one of the errors that are known here.",
        here=(),
        mistaken_for="",
        advice=(),
        chain="",
    )
