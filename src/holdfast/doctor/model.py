"""What goes into a judgement and what comes out of it. Nothing here decides anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ..procfs.descriptors import Kind
from .remedies import Remedy

# ---- in: what was seen -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One process at one moment. `at_s` counts from anywhere, but from the same moment in all samples of a series."""

    at_s: float
    fds: int
    rss_bytes: int | None = None
    threads: int | None = None
    children: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSample:
    """Right after a job ended: far better evidence than the clock."""

    job: int
    fds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PathCount:
    path: str
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FdProfile:
    """What a process's descriptors are like, as numbers. Descriptors are counted, not pipes, unless it says so.

    self_pairs     pipes with both ends in this process and none elsewhere: two descriptors each
    hup, err       read ends without a writer, write ends without a reader, in any process: dead
    live           pipe ends whose far end another process has
    unknown        pipe ends whose far end may be with a process that could not be looked into
    """

    fds: int
    kinds: dict[Kind, int] = field(default_factory=dict)
    self_pairs: int = 0
    hup: int = 0
    err: int = 0
    live: int = 0
    unknown: int = 0
    close_wait: int = 0
    established: int = 0
    established_to: PathCount | None = None  # the far address most of them have
    unix_sockets: int = 0
    torch_shm: int = 0  # /dev/shm/torch_… (deleted)
    shm: int = 0
    deleted: int = 0  # regular files that have no name any more
    most_opened: PathCount | None = None
    nvidia: int = 0
    children: int = 0
    zombies: int = 0
    threads: int = 0

    @property
    def dead_pipes(self) -> int:
        return self.hup + self.err


# ---- out: what it means ------------------------------------------------------------------------------------


class Verdict(StrEnum):
    OK = "OK"
    UNCLEAR = "UNCLEAR"
    SETTLING = "SETTLING"
    GROWING = "GROWING"
    LEAK = "LEAK"
    EXHAUSTED = "EXHAUSTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How the floor of a count moves. `low` and `high` are the ends of the 95 % interval of `per_hour`.

    `low` is above zero exactly where the floor `grows`: what settles, or rose in too short a watch, may have come to
    its end by now.
    """

    per_hour: float
    low: float
    high: float
    rise: float  # from the first bin's floor to the last one's
    span_s: float
    bins: int
    grows: bool  # by the rule: certain, large enough, and in every third of the time
    settles: bool  # it rose, but ever less
    unclear: bool = False  # it rose, and was watched for too short a time to tell that from a job or a rhythm
    steady: bool = False  # it grows, for a day or more, and did so all the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When a line will be crossed, if it goes on like this. `eta_s` is (earliest, latest); inf: never at that pace."""

    line: str  # "soft limit", "guard cap", "pipe shrink"
    at: int  # descriptors (for "pipe shrink": pipes of this user)
    eta_s: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A signature that fits. It explains `count` descriptors, or what else it counts; nobody can use `dead` of them."""

    name: str
    cause: str
    advice: tuple[str, ...]
    count: int
    dead: int
    share: float  # of all descriptors, or of those that grew
    remedy: Remedy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The judgement of one process."""

    verdict: Verdict
    evidence: tuple[str, ...]  # whole sentences, the one that decided first
    advice: tuple[str, ...]
    fds: int | None
    soft: float | None
    hard: float | None
    profile: FdProfile | None
    trend: Trend | None
    forecasts: tuple[Forecast, ...]
    match: Match | None
