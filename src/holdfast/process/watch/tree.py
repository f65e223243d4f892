"""The process tree of one target: its snapshots, the verdict on each process, and what of both is shown.

A snapshot reads every descriptor of the tree, a verdict compares all pairs of up to 200 bins. Both are repeated as
often as 0.2 % of a core allows, which all targets share, and a snapshot only every 30 s unless counts have moved.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..._util.text import one_line
from ...errors import InputError
from ...procfs.limits import Limit, finite, name_of
from ...procfs.peers import PeerState
from ...procfs.processes import Identity
from ...procfs.procfs import REAL, ProcFS
from ...procfs.snapshot import AllProcesses, ProcessSnapshot, Snapshot, take_snapshot
from ..doctor.diagnose import SEVERITY, blamed, classify_process, command_of, find_pipe_limit
from ..doctor.fd_profile import profiles_of, suspect_fds
from ..doctor.model import Diagnosis, FdProfile, JobSample, Verdict
from ..doctor.sampler import Series, Watch
from ..doctor.trend import LEAST_RISE
from .state import MAX_DEAD, DeadEnd, HeadroomState, TreeRow

_REST = 500  # what took a millisecond is repeated after half a second at the earliest: 0.2 %
_SCAN_EVERY_S = 30.0
_SCAN_SOONEST_S = 1.0
_LATEST_S = 900.0
_CLASSIFY_SOONEST_S = 1.0
_MOVED = 32
MAX_ROWS = 256
MAX_TEXT = 500


def clip(text: str, maximum: int = MAX_TEXT) -> str:
    """Shortens a text: the command line of a process may have 2 MB."""
    return text if len(text) <= maximum else text[: maximum - 1] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeProcess:
    """One process of the last snapshot, without its descriptors: there may be a million.

    `before` is its profile in the snapshot before: a job that runs in one of them only is no cause of growth.
    """

    snapshot: ProcessSnapshot
    profile: FdProfile
    before: FdProfile | None = None
    diagnosis: Diagnosis
    suspects: tuple[int, ...] = ()
    dead: tuple[DeadEnd, ...] = ()

    @property
    def identity(self) -> Identity:
        return self.snapshot.process.identity

    @property
    def severity(self) -> int:
        return SEVERITY[self.diagnosis.verdict]


class TreeModel:
    """Call `refresh` once a round. `processes` is empty until the first snapshot, and after the root has ended."""

    def __init__(
        self,
        root: Identity,
        watch: Watch,
        procfs: ProcFS = REAL,
        clock: Callable[[], float] = time.monotonic,
        cost_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.root = root
        self.first: dict[Identity, FdProfile] = {}
        self.processes: dict[Identity, TreeProcess] = {}
        self.shared: tuple[Limit, ...] = ()
        self.about = root
        self.is_whole = True
        self.scanned_at_s = -math.inf
        self._watch = watch
        self._procfs = procfs
        self._clock = clock
        self._cost = cost_clock
        self._scan_at_s = self._scan_soonest_s = self._classify_at_s = -math.inf
        self._jobs = 0

    @property
    def subject(self) -> TreeProcess | None:
        """The process that the counts of the target are of: the worst, if that grows or leaks, else the root."""
        return self.processes.get(self.about)

    def series(self, identity: Identity) -> Series | None:
        return self._watch.series.get(identity)

    def refresh(
        self,
        jobs: Sequence[JobSample],
        cap: int | None,
        guarded: Identity | None,
        others: Callable[[], AllProcesses],
        share: int = 1,
    ) -> bool:
        """Scans and classifies if it is time to. Returns whether there are new verdicts.

        `jobs` and `cap` are those of the process `guarded`. `others` reads all processes, once a round; `share` is the
        number of trees that share the time.
        """
        now = self._clock()
        has_moved = self._has_moved()
        scanned = now >= self._scan_at_s or (now >= self._scan_soonest_s and has_moved)
        if scanned:
            self._scan(others(), share)
        is_due = now >= self._classify_at_s or has_moved or len(jobs) != self._jobs
        if not self.processes or not (scanned or is_due):
            return False
        began = self._cost()
        self._jobs = len(jobs)
        self.processes = {
            identity: replace(
                one,
                diagnosis=self._classify(
                    one, jobs if identity == guarded else (), cap if identity == guarded else None
                ),
            )
            for identity, one in self.processes.items()
        }
        self._choose()
        rest_s = max(_CLASSIFY_SOONEST_S, share * _REST * (self._cost() - began))
        self._classify_at_s = self._clock() + min(rest_s, _LATEST_S)
        return True

    def _scan(self, others: AllProcesses, share: int) -> None:
        began = self._cost()
        try:
            snapshot = take_snapshot(self.root.pid, True, self._procfs, others=others)
        except InputError:
            snapshot = None  # it has ended meanwhile
        if snapshot is not None and snapshot.root.process.identity == self.root:
            self._keep(snapshot)
        rest_s = min(share * _REST * (self._cost() - began), _LATEST_S)
        self.scanned_at_s = now = self._clock()
        self._scan_soonest_s = now + max(rest_s, _SCAN_SOONEST_S)
        self._scan_at_s = now + max(rest_s, _SCAN_EVERY_S)

    def _keep(self, snapshot: Snapshot) -> None:
        profiles = profiles_of(snapshot)
        self.shared = snapshot.shared
        self.is_whole = snapshot.whole_tree
        kept = {}
        for proc in snapshot.processes:
            identity, profile = proc.process.identity, profiles[proc.process.pid]
            before = self.processes.get(identity)
            unknown = _unknown(proc) if before is None else before.diagnosis
            kept[identity] = TreeProcess(
                snapshot=_without_descriptors(proc),
                profile=profile,
                before=None if before is None else before.profile,
                diagnosis=unknown,
                dead=_dead_ends(proc),
                suspects=tuple(suspect_fds(proc)[:MAX_ROWS]),  # by the time of a verdict the descriptors are forgotten
            )
            if proc.descriptors is not None:
                self.first.setdefault(identity, profile)
        self.processes = kept
        self.first = {identity: first for identity, first in self.first.items() if identity in kept}

    def _has_moved(self) -> bool:
        """Whether a count differs so much from the last snapshot that its kinds are stale, or a child came or went."""
        for identity, one in self.processes.items():
            series = self.series(identity)
            if series is None or series.latest is None:
                continue
            if series.ended_at_s is not None:
                return True
            seen = one.snapshot.fd_count or 0
            if abs(series.latest.fds - seen) > max(_MOVED, seen / 4):
                return True
            if identity == self.root and (series.latest.children or 0) != (one.snapshot.children or 0):
                return True
        return False

    def _classify(self, one: TreeProcess, jobs: Sequence[JobSample], cap: int | None) -> Diagnosis:
        series = self.series(one.identity)
        latest = None if series is None else series.latest
        first = self.first.get(one.identity)
        # Every trend needs a rise: without one, a tree of hundreds of processes is classified by its snapshot alone.
        # The root's trend is shown, also where it does not rise.
        if series is not None and one.identity != self.root and not _rises(series):
            series = None
        return classify_process(
            one.snapshot,
            one.profile,
            None if first is one.profile else first,
            series,
            fds=one.snapshot.fd_count if latest is None else latest.fds,
            recent=() if one.before is None else (one.before,),
            jobs=jobs,
            cap=cap,
            pipe_limit=None if one.snapshot.process.uid in (0, None) else find_pipe_limit(self.shared),
        )

    def _choose(self) -> None:
        """Keeps the process that was chosen before while no other is worse, so that the charts do not jump."""
        root = self.processes.get(self.root)
        if root is None:
            return
        chosen = self.processes.get(self.about, root)
        worst = max(self.processes.values(), key=lambda one: one.severity)
        if worst.severity < SEVERITY[Verdict.GROWING]:
            chosen = root
        elif worst.severity > chosen.severity:
            chosen = worst
        self.about = chosen.identity

    # ---- what is shown

    def rows(self) -> list[TreeRow]:
        """Returns the processes, each after its parent; of very many the worst and largest."""
        chosen = list(self.processes.values())
        if len(chosen) > MAX_ROWS:
            largest = sorted(chosen, key=lambda one: (-one.severity, -(one.snapshot.fd_count or 0)))[:MAX_ROWS]
            kept = {one.identity for one in largest} | {self.root, self.about}
            chosen = [one for one in chosen if one.identity in kept]
        return [self._row(one) for one in chosen if self._is_alive(one)]

    def _is_alive(self, one: TreeProcess) -> bool:
        series = self.series(one.identity)
        return series is None or series.ended_at_s is None

    def _row(self, one: TreeProcess) -> TreeRow:
        process = one.snapshot.process
        series = self.series(one.identity)
        latest = None if series is None else series.latest
        return TreeRow(
            pid=process.pid,
            ppid=process.ppid,
            command=clip(one_line(command_of(one))),
            fds=one.snapshot.fd_count if latest is None else latest.fds,
            limit=finite(one.diagnosis.soft),
            kinds=kinds_in(one),
            dead_pipes=None if one.diagnosis.profile is None else one.profile.dead_pipes,
            threads=process.threads if latest is None else latest.threads,
            rss_bytes=process.rss_bytes if latest is None else latest.rss_bytes,
            verdict=one.diagnosis.verdict.value,
        )

    def headroom(self) -> list[HeadroomState]:
        """Returns the limits of the subject and the shared ones that have a limit, the tightest first."""
        one = self.subject
        own = one.snapshot.limits if one is not None else ()
        found = []
        for limit in (*own, *self.shared):
            if limit.soft is None or (limit.name == "nr_open") or (limit.used is None and limit.ratio is None):
                continue
            if limit.name == "pipe_user_pages" and not os.geteuid():
                continue  # the kernel does not enforce it for root
            used = limit.used
            if limit.name == "nofile" and one is not None:
                series = self.series(one.identity)
                used = one.diagnosis.fds if series is None or series.latest is None else series.latest.fds
            ratio = None if used is None else Limit(name=limit.name, used=used, soft=limit.soft).ratio
            found.append(
                HeadroomState(
                    name=limit.name,
                    label=name_of(limit),
                    used=used,
                    limit=finite(limit.soft if limit.soft < 1e15 else math.inf),
                    ratio=None if ratio is None else round(ratio, 6),
                )
            )
        return sorted(found, key=lambda limit: -(limit["ratio"] or 0.0))


def kinds_in(one: TreeProcess) -> dict[str, int] | None:
    """Returns the counts by kind of the last snapshot; None where they cannot be listed."""
    if one.diagnosis.profile is None:
        return None
    return {kind.value: times for kind, times in one.profile.kinds.items()}


def cause_of(diagnosis: Diagnosis) -> tuple[str, str | None]:
    """Returns the cause and the name of the signature."""
    match = blamed(diagnosis)
    return ("", None) if match is None else (match.cause, match.name)


def _rises(series: Series) -> bool:
    samples = series.samples
    return bool(samples) and samples[-1].fds - min(one.fds for one in samples) > LEAST_RISE


def _without_descriptors(proc: ProcessSnapshot) -> ProcessSnapshot:
    return replace(proc, descriptors=None if proc.descriptors is None else (), ends=(), socket_ends=())


def _dead_ends(proc: ProcessSnapshot) -> tuple[DeadEnd, ...]:
    ends = [end for end in proc.ends if end.peer_state in (PeerState.DEAD, PeerState.SELF)][:MAX_DEAD]
    return tuple(
        DeadEnd(pid=end.pid, fd=end.fd, inode=end.inode, access=end.access, state=str(end.peer_state)) for end in ends
    )


def _unknown(proc: ProcessSnapshot) -> Diagnosis:
    """Stands for the verdict until there is one."""
    nofile = next((limit for limit in proc.limits if limit.name == "nofile"), Limit(name="nofile"))
    return Diagnosis(
        verdict=Verdict.OK,
        evidence=(),
        advice=(),
        fds=proc.fd_count,
        soft=nofile.soft,
        hard=nofile.hard,
        profile=None,
        trend=None,
        forecasts=(),
        match=None,
    )
