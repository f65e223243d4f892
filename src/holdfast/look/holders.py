"""Where the Python objects are that keep a target's descriptors open, if the target answers."""

from __future__ import annotations

from dataclasses import replace

from ..diagnose.facts import Verdict
from ..proc.pipes import Fate
from ..trace.ask import ask_owners
from .target import SEVERITY, Judged, Target

_SHOWN = 3
_WITHIN_S = 8.0


def with_holders(target: Target) -> Target:
    """The target with the answer of its worst process, where there is anything to ask about."""
    fds = suspects(target.worst)
    groups = ask_owners(target.worst.look.process.pid, fds, within_s=_WITHIN_S) if fds else None
    return replace(target, held_by=tuple(str(group) for group in groups[:_SHOWN])) if groups else target


def suspects(one: Judged) -> list[int]:
    """The descriptors to ask about: those nobody can use any more, else those of the commonest kind."""
    if one.look.descriptors is None or SEVERITY[one.diagnosis.verdict] < SEVERITY[Verdict.GROWING]:
        return []
    dead = [end.fd for end in one.look.ends if end.fate in (Fate.DEAD, Fate.SELF)]
    commonest = next(iter(one.look.kinds), None)
    return dead or [fd.fd for fd in one.look.descriptors if fd.kind is commonest]
