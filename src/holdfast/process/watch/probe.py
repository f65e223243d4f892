"""Answers the probes of Kubernetes and load balancers: is every target well, and does it take work?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..._util.text import span_words
from ..doctor.model import Verdict
from ..guard.health import Health
from .state import StateDocument, TargetState, has_died_of_exhaustion

# A leak that fills the table within an hour leaves no time to wait for a person.
UNHEALTHY_ETA_S = 3600.0
_ROUNDS = 6
_LEAST_S = 60.0


class ProbeAnswer(NamedTuple):
    ok: bool
    reasons: tuple[str, ...]

    @property
    def status(self) -> int:
        return 200 if self.ok else 503


def check_health(
    document: StateDocument,
    *,
    now: float,
    names: Sequence[str] = (),
    target: str | None = None,
    eta_s: float = UNHEALTHY_ETA_S,
) -> ProbeAnswer:
    """Says whether a person is needed: out of descriptors, about to be, dead, restarted again and again, or not well.

    Of the processes of one --name, at least one must be there: others may have ended as they should.
    """
    reasons = [reason for one in _chosen(document, target) for reason in _illness(one, eta_s)]
    return _answer(document, now, [*reasons, *_missing(document, names, target)])


def check_readiness(
    document: StateDocument, *, now: float, names: Sequence[str] = (), target: str | None = None
) -> ProbeAnswer:
    """Says whether the targets take work: there, neither draining nor starting nor ill."""
    reasons = [reason for one in _chosen(document, target) for reason in _absence(one)]
    return _answer(document, now, [*reasons, *_missing(document, names, target)])


def _answer(document: StateDocument, now: float, reasons: Sequence[str]) -> ProbeAnswer:
    stale_s = now - document["now"]
    if stale_s > max(_LEAST_S, _ROUNDS * document["every_s"]):
        reasons = [f"watch has not sampled for {span_words(stale_s)}", *reasons]
    return ProbeAnswer(not reasons, tuple(reasons))


def _chosen(document: StateDocument, target: str | None) -> list[TargetState]:
    return [one for one in document["targets"] if target is None or one["target"] == target]


def _missing(document: StateDocument, names: Sequence[str], target: str | None) -> list[str]:
    if target is not None:
        return []
    there = {one["source"].removeprefix("name:") for one in document["targets"] if one["alive"]}
    workers = any(one["source"].startswith("worker:") and one["alive"] for one in document["targets"])
    return [f"no process has {name!r} in its command line" for name in names if name not in there and not workers]


def _illness(one: TargetState, eta_s: float) -> list[str]:
    name = one["target"]
    if one["restart_loop"]:
        return [f"{name}: {one['restart_loop']}"]
    if has_died_of_exhaustion(one):
        return [f"{name}: it has ended out of descriptors"]
    if not one["alive"]:
        return [] if one["source"].startswith("name:") else [f"{name}: it has ended"]
    reasons = []
    if one["verdict"] == Verdict.EXHAUSTED:
        reasons.append(f"{name}: it is out of descriptors")
    soonest = one["eta_s"][0] if one["eta_s"] else None
    if one["verdict"] == Verdict.LEAK and soonest is not None and soonest < eta_s:
        reasons.append(f"{name}: it leaks, and is out of descriptors in {span_words(soonest)} or more")
    guard = one["guard"]
    if guard is not None and Health(guard["health"]).is_bad:
        reasons.append(f"{name}: {guard['sentence']}")
    return reasons


def _absence(one: TargetState) -> list[str]:
    name, guard = one["target"], one["guard"]
    if one["restart_loop"]:
        return [f"{name}: {one['restart_loop']}"]
    if not one["alive"]:
        return [] if one["source"].startswith("name:") else [f"{name}: it has ended"]
    if guard is not None and guard["health"] != Health.OK:
        return [f"{name}: {guard['sentence']}"]
    return [f"{name}: it is out of descriptors"] if one["verdict"] == Verdict.EXHAUSTED else []
