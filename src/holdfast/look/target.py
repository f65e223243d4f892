"""What was asked about: a process and its descendants, each with its judgement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..diagnose.facts import Diagnosis, Verdict
from ..proc.limit import Limit
from ..proc.snapshot import ProcessLook

SEVERITY = {verdict: rank for rank, verdict in enumerate(Verdict)}


class Judged(Protocol):
    """A process that was looked at, and what it means."""

    @property
    def look(self) -> ProcessLook: ...
    @property
    def diagnosis(self) -> Diagnosis: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`judged` is never empty: the process asked for first, then its descendants, each after its parent.

    role      what it is called at the top of its page
    shared    the limits that all of them draw on
    sureness  how sure the verdict is, and how long a watch would settle it; empty where it was not watched
    held_by   where the Python objects are that keep descriptors open, if the process answers
    """

    judged: tuple[Judged, ...]
    role: str = "process"
    shared: tuple[Limit, ...] = ()
    whole_tree: bool = True
    watched_s: float = 0.0
    sureness: str = ""
    held_by: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        return self.judged[0].look.process.pid

    @property
    def worst(self) -> Judged:
        """The one that is told of: the first where several are as bad."""
        return max(self.judged, key=lambda one: SEVERITY[one.diagnosis.verdict])

    @property
    def verdict(self) -> Verdict:
        return self.worst.diagnosis.verdict
