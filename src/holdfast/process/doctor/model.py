"""Data classes that verdicts are made from and returned in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ...procfs.descriptors import Kind
from ...procfs.limits import Limit
from .remedies import Remedy

# A count that does not rise in this time is that of a cache, or of a leak too slow for this watch.
FLAT_S = 60.0

# ---- inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One process at one moment. `at_s` is in seconds since an origin that all samples of a series share."""

    at_s: float
    fds: int
    rss_bytes: int | None = None
    threads: int | None = None
    children: int | None = None  # those that ended and were not waited for included
    zombies: int | None = None
    private_bytes: int | None = None
    shared_bytes: int | None = None
    shm_files: int | None = None  # files in /dev/shm that this process made
    watches: int | None = None  # of inotify


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSample:
    """The descriptor count right after a job ended: better evidence than a sample by the clock."""

    job: int
    fds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PathCount:
    path: str
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FdProfile:
    """Counts of a process's descriptors by kind and state. Pipes count once per end, except in `self_pairs`.

    self_pairs     pipes with both ends in this process and none elsewhere: two descriptors each
    hup, err       read ends without a writer, write ends without a reader, in any process: dead
    live           pipe ends whose other end is open in another process
    unknown        pipe ends whose other end may be open in a process that could not be inspected
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
    established_to: PathCount | None = None  # the most frequent remote address
    unix_sockets: int = 0
    torch_shm: int = 0  # /dev/shm/torch_… (deleted)
    shm: int = 0
    deleted: int = 0  # regular files that were unlinked
    most_opened: PathCount | None = None
    nvidia: int = 0
    ptys: int = 0  # terminals: /dev/ptmx, /dev/pts/…
    children: int = 0
    zombies: int = 0
    threads: int = 0

    @property
    def dead_pipes(self) -> int:
        return self.hup + self.err


# ---- results


class Verdict(StrEnum):
    OK = "OK"
    UNCLEAR = "UNCLEAR"
    SETTLING = "SETTLING"
    GROWING = "GROWING"
    LEAK = "LEAK"
    EXHAUSTED = "EXHAUSTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The trend of a count's baseline. `low` and `high` bound the 95 % interval of `per_hour`.

    `low` is above zero exactly where the baseline `grows`: growth that slows down, or that was watched too briefly, may
    have ended by now.
    """

    per_hour: float
    low: float
    high: float
    rise: float  # from the first bin's baseline to the last one's
    span_s: float
    bins: int
    grows: bool  # significant, large enough, and in every third of the time
    settles: bool  # it rose, but more and more slowly
    unclear: bool = False  # it rose, in too short a watch to rule out a job or a cycle
    steady: bool = False  # it grew for a day or more without a pause


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTrend:
    """Descriptors that each job leaves open. `low` and `high` bound the 95 % interval of `per_job`."""

    per_job: float
    low: float
    high: float
    rise: float
    jobs: int
    grows: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When a limit will be reached at the current rate. `eta_s` is (earliest, latest); inf: never."""

    line: str  # "soft limit", "guard cap", "pipe shrink"
    at: int  # descriptors (for "pipe shrink": pipes of this user)
    eta_s: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A matching signature. It explains `count` descriptors (or children, threads), of which `dead` are unusable."""

    name: str
    cause: str
    advice: tuple[str, ...]
    count: int
    dead: int
    share: float  # of all descriptors, or of the new ones
    remedy: Remedy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictInput:
    """All facts that a verdict is based on; None is unknown.

    `profile` is of the last snapshot, `first` of an earlier one; `match` explains the growth between them.
    """

    fds: int | None
    soft: float | None
    hard: float | None
    trend: Trend | None = None
    jobs: JobTrend | None = None
    profile: FdProfile | None = None
    first: FdProfile | None = None
    match: Match | None = None
    uptime_s: float | None = None
    pid: int | None = None

    @property
    def growing(self) -> Trend | None:
        """The trend, if it grows."""
        return self.trend if self.trend is not None and self.trend.grows else None

    @property
    def flat(self) -> bool:
        """Whether it was watched for a minute and did not rise: a cache of a fixed size."""
        return self.trend is not None and self.trend.span_s >= FLAT_S and self.trend.rise <= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """A resource other than descriptors that grows or is used up, and the verdict on it alone.

    `limit` is the one that will be reached first, None if there is none; `eta_s` as in Forecast. `sentence` is the
    evidence.
    """

    name: str
    noun: str
    in_bytes: bool
    used: int
    limit: Limit | None
    trend: Trend | None
    eta_s: tuple[float, float]
    verdict: Verdict
    match: Match
    next_step: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The verdict on one process, with its evidence.

    next_step   ends with the command that leads on from here
    resources   what else grows or is used up, the worst first
    decisive    the one of them that the verdict is about; None: it is about descriptors
    """

    verdict: Verdict
    evidence: tuple[str, ...]  # sentences, the decisive one first
    advice: tuple[str, ...]
    fds: int | None
    soft: float | None
    hard: float | None
    profile: FdProfile | None
    trend: Trend | None
    forecasts: tuple[Forecast, ...]
    match: Match | None
    next_step: str = ""
    resources: tuple[ResourceUse, ...] = ()
    decisive: ResourceUse | None = None
