"""Explanations for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..diagnose.explain.explanation import Explanation
from ..diagnose.explain.logs import Place


def explanations_as_dict(causes: Sequence[Explanation], lines: int) -> dict[str, Any]:
    """The document of `holdfast explain --json`."""
    return {"known": bool(causes), "lines": lines, "causes": [explanation_as_dict(one) for one in causes]}


def explanation_as_dict(one: Explanation) -> dict[str, Any]:
    return {
        "name": one.name,
        "title": one.title,
        "errno": one.errno,
        "says": one.says,
        "here": list(one.here),
        "mistaken_for": one.mistaken_for,
        "advice": [*one.advice, *([] if one.cure is None else [str(one.cure)])],
        "chain": one.chain,
        "text": one.text,
        "count": one.count,
        "first": _place(one.first),
        "last": _place(one.last),
    }


def _place(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {"source": place.source or None, "line": place.line, "time": place.time}
