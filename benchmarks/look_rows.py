"""The rows of the table: which look, against whom, and how much is wanted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

LSOF = ("lsof", "-nP", "-p")
LSOF_ENDS = ("lsof", "-nP", "+E", "-p")


class Peer(NamedTuple):
    """A work of a side, or a command that the pids are put behind. `wanted`: at least so many times its speed."""

    name: str
    work: str | tuple[str, ...]
    wanted: float | None = None


class Row(NamedTuple):
    """`tree` names the tree that is looked at. `limit_s` is the most CPU time that our work may take."""

    key: str
    what: str
    tree: str
    work: str
    peers: tuple[Peer, ...]
    limit_s: float | None = None
    one: bool = False  # the first process alone


ROWS = (
    Row(
        "look",
        "full look",
        "work",
        "doctor",
        (
            Peer("lsof -nP +E", LSOF_ENDS, 4),
            Peer("lsof -nP", LSOF),
            Peer("psutil open_files (files alone)", "open_files"),
        ),
    ),
    Row("count", "count", "large", "count", (Peer("psutil num_fds", "count", 1000),), one=True),
    Row("vitals", "count, RSS, threads", "large", "vitals", (Peer("psutil, the same", "vitals"),), 20e-6, one=True),
    Row("large", "full look", "large", "full", (Peer("lsof -nP +E", LSOF_ENDS), Peer("lsof -nP", LSOF)), 0.5),
    Row("leak", "full look", "leak", "full", (Peer("lsof -nP +E", LSOF_ENDS), Peer("lsof -nP", LSOF)), 0.5),
)
KEYS = tuple(row.key for row in ROWS)


@dataclass(slots=True)
class Cost:
    """Of the round that took the least CPU time."""

    cpu_s: float
    wall_s: float
    count: int
    rounds_cpu_s: list[float]


@dataclass(slots=True)
class Outcome:
    """One line of the table. `ratio` is their CPU time by ours."""

    key: str
    work: str
    peer: str
    wanted: float | None
    ours: Cost | None = None
    theirs: Cost | None = None
    ratio: float | None = None
    met: bool | None = None
    skipped: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}
