"""What doctor found, for machines. The names of the keys are a promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..diagnose.cures import Cure
from ..diagnose.facts import Diagnosis, Forecast, Match, Verdict
from ..diagnose.signatures import is_certain
from ..look.target import SEVERITY, Judged, Target
from .limits import finite

SOFT_LIMIT = "soft limit"


def targets_as_dict(targets: Sequence[Target], errors: Sequence[str] = ()) -> dict[str, Any]:
    """One target is the document itself; several, or one that could not be looked at beside it, are a list."""
    if len(targets) == 1 and not errors:
        return target_as_dict(targets[0])
    if not targets:
        return {"error": "; ".join(errors)}
    worst = max((target.verdict for target in targets), key=SEVERITY.__getitem__)
    found: dict[str, Any] = {"verdict": worst.value, "targets": [target_as_dict(target) for target in targets]}
    return found | ({"errors": list(errors)} if errors else {})


def target_as_dict(target: Target) -> dict[str, Any]:
    """The facts are those of the worst process of its tree, which `about` names."""
    worst = target.worst
    diagnosis = worst.diagnosis
    return {
        "pid": target.pid,
        "about": worst.look.process.pid,
        "command": command_of(worst),
        "uptime_s": None if (up := worst.look.process.uptime_s) is None else round(up, 1),
        "watched_s": round(target.watched_s, 3),
        "verdict": diagnosis.verdict.value,
        "evidence": [*diagnosis.evidence, *([target.sureness] if target.sureness else [])],
        "advice": [*diagnosis.advice, *([] if (cure := cure_of(diagnosis)) is None else [str(cure)])],
        "fds": diagnosis.fds,
        "limit": finite(diagnosis.soft),
        "hard_limit": finite(diagnosis.hard),
        "kinds": kinds_of(worst),
        "dead_pipes": None if diagnosis.structure is None else diagnosis.structure.dead_pipes,
        "self_pairs": None if diagnosis.structure is None else diagnosis.structure.self_pairs,
        "growth_per_hour": None if diagnosis.trend is None else finite(round(diagnosis.trend.per_hour, 3)),
        "eta_s": eta_of(diagnosis),
        "signature": None if (match := blamed(diagnosis)) is None else match.name,
        "held_by": list(target.held_by),
        "tree": [_row(one) for one in target.judged],
    }


def _row(one: Judged) -> dict[str, Any]:
    process = one.look.process
    return {
        "pid": process.pid,
        "ppid": process.ppid,
        "command": command_of(one),
        "fds": one.diagnosis.fds,
        "limit": finite(one.diagnosis.soft),
        "kinds": kinds_of(one),
        "threads": process.threads,
        "rss_bytes": process.rss_bytes,
        "verdict": one.diagnosis.verdict.value,
    }


def command_of(one: Judged) -> str:
    """As it was called; a kernel thread and a process that ended have only a name."""
    return one.look.process.cmdline or one.look.process.comm


def blamed(diagnosis: Diagnosis) -> Match | None:
    """What fits, where something is wrong: a healthy process may have many files and sockets, and more of them now."""
    match = diagnosis.match
    if match is None or is_certain(match) or SEVERITY[diagnosis.verdict] >= SEVERITY[Verdict.GROWING]:
        return match
    return None


def cure_of(diagnosis: Diagnosis) -> Cure | None:
    """What to write, where there is something to mend."""
    bad = SEVERITY[diagnosis.verdict] >= SEVERITY[Verdict.GROWING]
    return diagnosis.match.cure if bad and diagnosis.match is not None else None


def kinds_of(one: Judged) -> dict[str, int] | None:
    """The most frequent first; None where they may not be seen."""
    if one.look.descriptors is None:
        return None
    return {kind.value: times for kind, times in one.look.kinds.items()}


def forecast_of(diagnosis: Diagnosis, line: str = SOFT_LIMIT) -> Forecast | None:
    return next((one for one in diagnosis.forecasts if one.line == line), None)


def eta_of(diagnosis: Diagnosis) -> list[float | int | None] | None:
    """To the soft limit: the earliest and the latest, null for never."""
    forecast = forecast_of(diagnosis)
    if forecast is None or finite(forecast.eta_s[0]) is None:
        return None
    return [finite(round(end, 1) if end < 1e18 else None) for end in forecast.eta_s]
