"""Assembles state documents from a store: of a running watch, and of a file that a watch has left or still writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ..doctor.model import Sample, Trend
from ..doctor.trend import find_baselines
from .database import (
    StoredPoint,
    open_recording,
    read_events,
    read_fact,
    read_kinds,
    read_points,
    read_targets,
)
from .state import (
    BaselineState,
    StateDocument,
    TargetState,
    kind_series,
    no_history,
    series_state,
    state_document,
    trend_lines,
)
from .store import MAX_EVENTS

# Facts that the document does not have: what the collector needs to go on after a restart begins with an underscore.
_PRIVATE = "_"
_DEFAULTS: dict[str, Any] = {
    "source": "pid",
    "command": "",
    "alive": False,
    "verdict": "OK",
    "sentence": "",
    "evidence": [],
    "advice": [],
    "confidence": "",
    "cause": "",
    "held_by": [],
    "headroom": [],
    "tree": [],
    "dead": [],
    "restarts": {},
}


def public_facts(facts: dict[str, Any]) -> TargetState:
    """Returns the target without its history; what is missing is unknown."""
    empty = dict.fromkeys(TargetState.__annotations__) | _DEFAULTS | no_history()
    known: Any = empty | {name: value for name, value in facts.items() if name in empty}
    return cast(TargetState, known)


def with_history(
    facts: dict[str, Any],
    points: Sequence[StoredPoint],
    process: int,
    kinds: Sequence[tuple[float, dict[str, int]]],
    now: float,
) -> TargetState:
    """Returns the target with its charts. The baseline is that of its present process, number `process`."""
    made = public_facts(facts)
    trend = trend_of(facts)
    own = [Sample(at_s=one.point.t, fds=one.point.low) for one in points if one.process == process]
    if trend is not None and own:
        own = [one for one in own if one.at_s >= own[-1].at_s - trend.span_s * 1.01]
    baselines = find_baselines(own)
    made["series"] = series_state([one.point for one in points])
    made["kind_series"] = kind_series(kinds)
    made["baseline"] = BaselineState(t=[round(one.at_s, 1) for one in baselines], fds=[one.fds for one in baselines])
    until = own[-1].at_s if own else now
    made["trend"] = trend_lines(made["baseline"], trend, until, made["limit"])
    return made


def trend_of(facts: dict[str, Any]) -> Trend | None:
    """Returns the trend that the verdict was based on, where it rose."""
    found = facts.get("_trend")
    if not found:
        return None
    per_hour, low, high, span_s = found
    return Trend(per_hour=per_hour, low=low, high=high, rise=0.0, span_s=span_s, bins=0, grows=low > 0, settles=False)


def load_state(path: Path) -> StateDocument:
    """Returns the document of a recording, as of the last sample in it. InputError: it cannot be read.

    The file may be in use by a running watch, or may have been left by one that was killed.
    """
    with open_recording(path) as db:
        targets, now = [], -math.inf
        for one in read_targets(db):
            points = read_points(db, one.id)
            at = max(one.seen, points[-1].point.t if points else -math.inf)
            facts = one.facts | {"target": one.label, "pid": one.identity.pid}
            if points and points[-1].point.t > one.seen and points[-1].process == one.process:
                facts["fds"] = points[-1].point.fds
            targets.append(with_history(facts, points, one.process, read_kinds(db, one.id), at))
            now = max(now, at)
        events = read_events(db, MAX_EVENTS)
        since = read_fact(db, "since")
        now = max(now, events[-1]["t"] if events else -math.inf)
        now = now if math.isfinite(now) else float(since or 0.0)
        return state_document(
            now=now,
            live=False,
            host=str(read_fact(db, "host") or ""),
            every_s=float(read_fact(db, "every_s") or 5.0),
            since=float(since if since is not None else now),
            targets=targets,
            events=events,
        )
