"""One target of a watch: what is known of it, and how that is put into the document."""

from __future__ import annotations

import errno
import math
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from ..._util.text import one_line
from ...procfs.descriptors import Kind
from ...procfs.limits import finite
from ...procfs.processes import Identity
from ..doctor.diagnose import advice_of, eta_of
from ..doctor.model import Diagnosis, FdProfile, PathCount, Sample, Trend, Verdict
from ..doctor.verdict import confidence_of
from ..guard.health import HealthFinding
from ..guard.heartbeat import Heartbeat
from .alerts import Announcer, RestartWindow, VerdictHold
from .names import TargetKey
from .state import GuardFacts, Point
from .tree import TreeModel, cause_of, clip, kinds_in

RECYCLE = 75


@dataclass(slots=True, kw_only=True, eq=False)
class Target:
    """One target. `process` counts its processes; `current` is whether it was seen since watch started.

    `seen` is when its process was last there; `is_given_up`: its supervisor does not start it again.
    """

    id: int
    label: str
    key: TargetKey
    boot: str
    root: Identity
    process: int = 1
    current: bool = False
    alive: bool = False
    named: bool = False  # by --label or by its Guard, not by its command
    command: str = ""
    uid: int | None = None
    started: float | None = None
    ended: float = 0.0
    seen: float = 0.0
    is_given_up: bool = False
    tree: TreeModel | None = None
    about: Identity | None = None
    kinds: dict[str, int] | None = None
    kinds_at_s: float = -math.inf
    first: tuple[FdProfile, dict[str, Any]] | None = None
    page: Heartbeat | None = None
    guard: GuardFacts | None = None
    guard_at_s: float = -math.inf
    restarts: dict[str, int] = field(default_factory=dict)
    held_by: list[str] = field(default_factory=list)
    held_at_s: float = -math.inf
    verdict: Verdict = Verdict.OK
    hold: VerdictHold = field(default_factory=VerdictHold)
    window: RestartWindow = field(default_factory=lambda: RestartWindow({}))
    announcer: Announcer = field(default_factory=Announcer)
    is_judged: bool = False
    limit: float | None = None
    nearly_full: bool = False
    written_at_s: float = -math.inf
    sampled_at_s: float = -math.inf
    facts: dict[str, Any] = field(default_factory=dict)


def facts_of(target: Target, latest: Sample | None, now: float) -> dict[str, Any]:
    """Returns the target as the document has it, without history; names with an underscore are for the next start.

    `latest` is the last sample of the process that it is about.
    """
    tree = target.tree
    subject = None if tree is None else tree.subject
    if tree is None or subject is None:
        return _bare_facts(target, now)
    diagnosis = subject.diagnosis
    cause, signature = cause_of(diagnosis)
    trend = diagnosis.trend
    is_known = diagnosis.profile is not None
    words = {
        "verdict": diagnosis.verdict.value,
        "sentence": _sentence(target, subject.identity, diagnosis),
        "evidence": list(diagnosis.evidence),
        "advice": advice_of(diagnosis),
        "confidence": confidence_of(diagnosis).sentence,
        "cause": cause,
        "signature": signature,
    }
    if target.is_judged and diagnosis.verdict != target.verdict and target.facts.get("verdict") == target.verdict:
        words = {name: target.facts.get(name) for name in words}  # what led to the verdict that is still held
    return (
        _bare_facts(target, now)
        | words
        | {
            "about": subject.identity.pid,
            "held_by": target.held_by,
            "fds": diagnosis.fds if latest is None else latest.fds,
            "limit": finite(diagnosis.soft),
            "hard_limit": finite(diagnosis.hard),
            "kinds": target.kinds if target.kinds_at_s > tree.scanned_at_s else kinds_in(subject) or target.kinds,
            "dead_pipes": {"read": subject.profile.hup, "write": subject.profile.err} if is_known else None,
            "self_pairs": subject.profile.self_pairs if is_known else None,
            "close_wait": subject.profile.close_wait if is_known else None,
            "growth_per_hour": None if trend is None else _slope(trend),
            "eta_s": eta_of(diagnosis),
            "headroom": tree.headroom(),
            "tree": tree.rows(),
            "dead": list(subject.dead),
            "_trend": _trend_facts(trend),
            "_about": list(subject.identity),
        }
    )


def _bare_facts(target: Target, now: float) -> dict[str, Any]:
    """Returns what is known without a snapshot."""
    return {
        "target": target.label,
        "source": target.key.source,
        "pid": target.root.pid,
        "about": target.root.pid,
        "command": target.command,
        "started": target.started,
        "uptime_s": None if target.started is None else round(now - target.started, 1),
        "alive": target.alive,
        "verdict": target.verdict.value if target.is_judged else Verdict.OK.value,
        "sentence": "it was not inspected yet",
        "guard": target.guard,
        "_named": target.named,
        **alert_facts(target),
    }


def alert_facts(target: Target) -> dict[str, Any]:
    return {
        "restarts": dict(target.restarts),
        "restart_loop": target.window.sentence or None,
        "_alerts": target.announcer.as_facts(),
    }


def ended_facts(target: Target) -> dict[str, Any]:
    """Returns what changes in the facts of a process that has ended: no command can reach it any more."""
    pids = {str(target.root.pid), str(target.facts.get("about"))}
    advice = [line for line in target.facts.get("advice", ()) if not pids & set(re.findall(r"\d+", line))]
    if target.verdict in (Verdict.LEAK, Verdict.EXHAUSTED):
        advice.append(
            "find the line that leaks in the process that takes its place: holdfast trace --attach PID --for 60s"
        )
    return {
        "alive": False,
        "verdict": target.verdict.value,
        "sentence": f"it has ended{last_words(target)}; this is its last state",
        "advice": advice,
    }


def guard_facts(page: Heartbeat, found: HealthFinding) -> GuardFacts:
    """Returns the part of the document on a heartbeat page."""
    return GuardFacts(
        pid=page.pid,
        name=clip(one_line(page.name)),
        health=found.health.value,
        sentence=clip(one_line(found.sentence)),
        state=page.state.name.lower(),
        jobs_done=page.jobs_done,
        jobs_failed=page.jobs_failed,
        fails_in_row=page.fails_in_row,
        last_success=page.ok_wall_ns / 1e9 if page.ok_wall_ns else None,
        job=clip(one_line(page.job)),
        reason=clip(one_line(page.reason)),
        error=clip(one_line(page.error)),
        soft_cap=page.fd_soft_cap or None,
        hard_cap=page.fd_hard_cap or None,
        jobs=[list(job) for job in page.jobs],
    )


def is_guard_reserve(one: float | None, other: float | None, hard: float | None) -> bool:
    """Whether the soft limit changed between the hard one and a little less, as a Guard does to keep a reserve."""
    if one is None or other is None or hard is None:
        return False
    return max(one, other) == hard and min(one, other) >= hard - hard // 8


def point_of(sample: Sample, offset: float) -> Point:
    return Point(sample.at_s + offset, sample.fds, sample.fds, sample.rss_bytes, sample.threads, sample.children)


def end_reason(target: Target) -> str:
    """Returns why a process that was replaced has ended, as far as its Guard reported it."""
    page = target.page
    return "recycle" if page is not None and page.exit_code == RECYCLE else "unknown"


def died_of_exhaustion(target: Target) -> bool:
    """Whether a process that has ended was out of descriptors, or nearly, when it was last seen."""
    page = target.page
    is_failing = page is not None and page.fails_in_row > 0 and page.errno in (errno.EMFILE, errno.ENFILE)
    is_growing = target.verdict in (Verdict.GROWING, Verdict.LEAK)
    return target.verdict == Verdict.EXHAUSTED or (target.nearly_full and is_growing) or is_failing


def last_words(target: Target) -> str:
    if died_of_exhaustion(target):
        fds, limit = (target.facts.get(name) or 0 for name in ("fds", "limit"))
        return f" out of descriptors: it held {fds:,} of {limit:,.0f}"
    page = target.page
    return f" while it drained: {one_line(page.reason)}" if page is not None and page.drain_ns and page.reason else ""


def _sentence(target: Target, about: Identity, diagnosis: Diagnosis) -> str:
    guard = target.guard
    if guard is not None and guard["health"] in ("stopped", "frozen", "hung", "failing"):
        return guard["sentence"]
    evidence = diagnosis.evidence[0] if diagnosis.evidence else ""
    return evidence if about == target.root else f"process {about.pid} below it: {evidence}"


def _rounded(value: float) -> float:
    return round(value, 3) if math.isfinite(value) else 0.0


def _slope(trend: Trend) -> list[float]:
    return [_rounded(value) for value in (trend.per_hour, trend.low, trend.high)]


def _trend_facts(trend: Trend | None) -> list[float] | None:
    if trend is None or not (trend.grows or trend.settles or trend.unclear):
        return None
    return [*_slope(trend), _rounded(trend.span_s)]


def first_profile_facts(target: Target) -> dict[str, Any]:
    """Returns what is needed to go on after a restart of watch, and is too dear to make every round."""
    profile = None if target.tree is None else target.tree.first.get(target.tree.about)
    if profile is None:
        return {}
    if target.first is None or target.first[0] is not profile:
        target.first = profile, _profile_facts(profile)
    return {"_first": target.first[1]}


def _profile_facts(profile: FdProfile) -> dict[str, Any]:
    return asdict(profile) | {"kinds": {kind.value: times for kind, times in profile.kinds.items()}}


def parse_profile(facts: dict[str, Any]) -> FdProfile:
    kinds = {Kind(name): times for name, times in facts["kinds"].items()}
    paths = {
        name: None if facts[name] is None else PathCount(**facts[name]) for name in ("established_to", "most_opened")
    }
    return FdProfile(**(facts | {"kinds": kinds} | paths))
