"""Decides what is reported of a target, and when: no I/O, no clock.

A verdict rises at once and falls only after it was lower for a while, so that it does not flap. A message is sent for
each state that a target enters, once until the target has been well again for a while; a worker that is recycled as
designed causes none, unless it does so again and again: a restart loop is a state of its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..._util.text import counted, span_words
from ..doctor.diagnose import SEVERITY
from ..doctor.model import Verdict
from ..guard.health import Health

# How long a lower verdict must last before it is shown. That descriptors are free again is a fact, not an estimate.
HOLD_S = {Verdict.GROWING: 300.0, Verdict.LEAK: 300.0, Verdict.EXHAUSTED: 60.0}

LOOP_WITHIN_S = 600.0
LOOP_UNPLANNED = 3
LOOP_PLANNED = 10
# What a worker or its supervisor does on purpose: it has drained, or has reached a cap.
PLANNED = frozenset({"recycle", "fds", "rss", "threads", "children"})

WELL = "ok"
LOOP = "restart loop"
ENDED = "ended"
# A state that is not worse than one that was reported in the same episode is no news.
_RANKS: dict[str, int] = {
    WELL: 0,
    Verdict.GROWING.value: 1,
    Verdict.LEAK.value: 2,
    **{health.value: 3 for health in Health if health.is_bad},
    Verdict.EXHAUSTED.value: 4,
    ENDED: 5,
    LOOP: 6,
}
_KINDS = {health.value: "health" for health in Health} | {LOOP: "loop", ENDED: "end", WELL: "recovered"}
CLEAR_S = 900.0  # an episode ends when the target was well for so long
REPEAT_S = 6 * 3600.0
_REPEATED = frozenset({Verdict.GROWING.value, Verdict.LEAK.value})  # by every process of a worker that leaks
SUCCESSOR_S = 120.0  # where another process may take the place of one that has ended, it has so long


# ---- the verdict that is shown


class VerdictHold:
    """The verdict on one process, which rises at once and falls after `HOLD_S`."""

    def __init__(self, shown: Verdict = Verdict.OK) -> None:
        self.shown = shown
        self._lower_since: float | None = None
        self._highest = shown

    def step(self, now: float, found: Verdict) -> Verdict:
        """Returns what is shown after `found` was seen."""
        if SEVERITY[found] >= SEVERITY[self.shown] or self.shown not in HOLD_S:
            self.shown, self._lower_since = found, None
            return found
        if self._lower_since is None:
            self._lower_since, self._highest = now, found
        self._highest = max(self._highest, found, key=SEVERITY.__getitem__)
        if now - self._lower_since >= HOLD_S[self.shown]:
            self.shown, self._lower_since = self._highest, None
        return self.shown


# ---- restarts


class RestartWindow:
    """Counts the restarts of a target within ten minutes. `sentence` describes its restart loop, "" if none."""

    def __init__(self, known: Mapping[str, int]) -> None:
        self.sentence = ""
        self._known = dict(known)
        self._restarts: deque[tuple[float, str]] = deque(maxlen=1000)

    def step(self, now: float, restarts: Mapping[str, int]) -> str:
        """Takes the counts by reason of all restarts so far. A loop ends when few are left of those that made it."""
        for reason, times in restarts.items():
            self._restarts.extend([(now, reason)] * min(times - self._known.get(reason, 0), 100))
        self._known = dict(restarts)
        while self._restarts and self._restarts[0][0] <= now - LOOP_WITHIN_S:
            self._restarts.popleft()
        reasons = [reason for _, reason in self._restarts]
        unplanned = [reason for reason in reasons if reason not in PLANNED]
        if len(unplanned) >= LOOP_UNPLANNED or (self.sentence and len(unplanned) > LOOP_UNPLANNED // 2):
            self.sentence = _loop_words("unplanned restart", unplanned)
        elif len(reasons) >= LOOP_PLANNED or (self.sentence and len(reasons) > LOOP_PLANNED // 2):
            self.sentence = _loop_words("restart", reasons)
        else:
            self.sentence = ""
        return self.sentence


def _loop_words(what: str, reasons: list[str]) -> str:
    by_reason = ", ".join(f"{reasons.count(one)} {one}" for one in dict.fromkeys(reasons))
    return f"it is in a restart loop: {counted(len(reasons), what)} within {span_words(LOOP_WITHIN_S)} ({by_reason})"


# ---- messages


class Condition(NamedTuple):
    """The worst that is known of a target at one moment. `state` None: it is between two processes."""

    state: str | None
    text: str = ""


def condition_of(
    *, loop: str, is_alive: bool, is_gone: bool, verdict: Verdict, health: str | None, text: str
) -> Condition:
    """Returns the state of a target. `is_gone`: its process has ended, and no other is expected to take its place."""
    if loop:
        return Condition(LOOP, loop)
    if not is_alive:
        return Condition(ENDED if is_gone else None, text)
    bad_health = health if health is not None and Health(health).is_bad else WELL
    bad_verdict = verdict.value if verdict.value in _RANKS else WELL
    return Condition(max(bad_health, bad_verdict, key=_RANKS.__getitem__), text)


class Alert(NamedTuple):
    """What is sent: the kind of event, and its text."""

    kind: str
    text: str


@dataclass(slots=True)
class Announcer:
    """Chooses what is reported of one target, over all its processes. `as_facts` and `restore` outlive the watch.

    reported  the states of this episode, and when each was reported; GROWING and LEAK also of the time before
    worst    the worst state of the episode
    """

    reported: dict[str, float] = field(default_factory=dict)
    worst: str = WELL
    has_reported: bool = False
    bad_at: float = -math.inf

    def step(self, now: float, found: Condition) -> Alert | None:
        if found.state is None:
            return None
        self.bad_at = min(self.bad_at, now)  # the clock may have been set back
        if found.state == WELL:
            return self._clear(now) if now - self.bad_at >= CLEAR_S else None
        self.bad_at = now
        is_news = _RANKS[found.state] >= _RANKS[self.worst] and found.state not in self.reported
        before = self.worst
        if _RANKS[found.state] > _RANKS[before]:
            self.worst = found.state
        if not is_news:
            return None
        self.reported[found.state] = now
        self.has_reported = True
        return Alert(_KINDS.get(found.state, "verdict"), f"{before} → {found.state}: {found.text}")

    def _clear(self, now: float) -> Alert | None:
        self.reported = {state: t for state, t in self.reported.items() if state in _REPEATED and now - t < REPEAT_S}
        worst, has_reported = self.worst, self.has_reported
        self.worst, self.has_reported = WELL, False
        if worst == WELL or not has_reported:
            return None
        return Alert(_KINDS[WELL], f"{worst} → {WELL}: it has been well for {span_words(CLEAR_S)}")

    def as_facts(self) -> dict[str, Any]:
        return {
            "reported": self.reported,
            "worst": self.worst,
            "has_reported": self.has_reported,
            "bad_at": self.bad_at if math.isfinite(self.bad_at) else None,
        }

    @classmethod
    def restore(cls, facts: Mapping[str, Any] | None) -> Announcer:
        if not facts:
            return cls()
        reported = {str(state): float(t) for state, t in facts["reported"].items() if state in _RANKS}
        worst = facts["worst"] if facts["worst"] in _RANKS else WELL
        bad_at = -math.inf if facts["bad_at"] is None else float(facts["bad_at"])
        return cls(reported, worst, bool(facts["has_reported"]), bad_at)
