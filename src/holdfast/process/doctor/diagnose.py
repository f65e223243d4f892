"""Watches process trees and returns a diagnosis of each process: `hold.diagnose` and `holdfast doctor`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from ..._util.text import time_argument
from ...errors import HoldfastError, InputError
from ...procfs.descriptors import Kind
from ...procfs.limits import PIPE_PAGES, Limit, finite, machine_memory, without_cache
from ...procfs.processes import Identity
from ...procfs.procfs import REAL, ProcFS
from ...procfs.snapshot import ProcessSnapshot, Snapshot, take_snapshot
from ..fd_owners.agent import ask_owners
from .fd_profile import baseline, grown, profiles_of, suspect_fds
from .model import Diagnosis, FdProfile, Forecast, JobSample, Match, Verdict
from .remedies import Remedy
from .resources import find_full, find_uses, with_uses
from .sampler import ENDED, EVERY_S, Series, Watch
from .signatures import is_certain, match
from .verdict import LEAST_S, classify, confidence_of

SEVERITY = {verdict: rank for rank, verdict in enumerate(Verdict)}


class HasDiagnosis(Protocol):
    """A process snapshot with its diagnosis."""

    @property
    def snapshot(self) -> ProcessSnapshot: ...
    @property
    def diagnosis(self) -> Diagnosis: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTarget:
    """`judged` is never empty: the process asked for first, then its descendants, each after its parent.

    role        how the process is called at the top of its page
    shared      the limits that all of them share
    confidence  how sure the verdict is, and how long a watch would settle it; empty without a watch
    held_by     the referrer chains that keep descriptors open, if the process answers (see `hold.listen`)
    """

    processes: tuple[HasDiagnosis, ...]
    role: str = "process"
    shared: tuple[Limit, ...] = ()
    whole_tree: bool = True
    watched_s: float = 0.0
    confidence: str = ""
    held_by: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        return self.processes[0].snapshot.process.pid

    @property
    def worst(self) -> HasDiagnosis:
        """The process with the worst verdict; the first of several."""
        return max(self.processes, key=lambda one: SEVERITY[one.diagnosis.verdict])

    @property
    def verdict(self) -> Verdict:
        return self.worst.diagnosis.verdict


# ---- what the pages show of a diagnosis

SOFT_LIMIT = "soft limit"


def command_of(one: HasDiagnosis) -> str:
    """Returns the command line; a kernel thread or an ended process has only a name."""
    return one.snapshot.process.cmdline or one.snapshot.process.comm


def blamed(diagnosis: Diagnosis) -> Match | None:
    """Returns the match if something is wrong: a healthy process may have many files and sockets, too."""
    match = diagnosis.match
    if match is None or is_certain(match) or SEVERITY[diagnosis.verdict] >= SEVERITY[Verdict.GROWING]:
        return match
    return None


def remedy_of(diagnosis: Diagnosis) -> Remedy | None:
    """Returns the remedy if something is wrong."""
    bad = SEVERITY[diagnosis.verdict] >= SEVERITY[Verdict.GROWING]
    return diagnosis.match.remedy if bad and diagnosis.match is not None else None


def advice_of(diagnosis: Diagnosis) -> list[str]:
    """Returns all advice as sentences: what to do, holdfast's own code for it, and the next command."""
    remedy = remedy_of(diagnosis)
    rest = [*([] if remedy is None else [str(remedy)]), diagnosis.next_step]
    return [*diagnosis.advice, *filter(None, rest)]


def kinds_of(one: HasDiagnosis) -> dict[str, int] | None:
    """Returns the counts by kind, the most frequent first; None where they cannot be listed."""
    if one.snapshot.descriptors is None:
        return None
    return {kind.value: times for kind, times in one.snapshot.kinds.items()}


def forecast_of(diagnosis: Diagnosis, line: str = SOFT_LIMIT) -> Forecast | None:
    return next((one for one in diagnosis.forecasts if one.line == line), None)


def eta_of(diagnosis: Diagnosis) -> list[float | int | None] | None:
    """Returns the earliest and the latest time to the soft limit, null for never."""
    forecast = forecast_of(diagnosis)
    if forecast is None or finite(forecast.eta_s[0]) is None:
        return None
    return [finite(round(end, 1) if end < 1e18 else None) for end in forecast.eta_s]


# ---- referrer chains

_SHOWN = 3
_WITHIN_S = 8.0


def with_holders(target: WatchTarget) -> WatchTarget:
    """Returns the target with the referrer chains of its worst process, if that has suspicious descriptors."""
    fds = suspects(target.worst)
    groups = ask_owners(target.worst.snapshot.process.pid, fds, within_s=_WITHIN_S) if fds else None
    return replace(target, held_by=tuple(str(group) for group in groups[:_SHOWN])) if groups else target


def suspects(one: HasDiagnosis) -> list[int]:
    """Returns the descriptors to blame, if something is wrong."""
    is_fine = SEVERITY[one.diagnosis.verdict] < SEVERITY[Verdict.GROWING] or one.diagnosis.decisive is not None
    if one.snapshot.descriptors is None or is_fine:
        return []
    return suspect_fds(one.snapshot)


# ---- several process trees

_PROGRESS_EVERY_S = 0.2


class _StoppedError(Exception):
    """The watch was stopped."""


class Examination:
    """Watches several process trees at the same time. `errors` has a sentence on each that could not be inspected.

    After an interrupted `watch`, `conclude` uses the samples so far.
    """

    def __init__(self, pids: Sequence[int], *, tree: bool = True, role: str = "process", procfs: ProcFS = REAL) -> None:
        self.errors: list[str] = []
        self._role = role
        self._watched_s = 0.0
        self._was_watched = False
        self._stop = threading.Event()
        self._seen: list[Observation] = []
        for pid in dict.fromkeys(pids):
            try:
                self._seen.append(Observation(pid, tree=tree, procfs=procfs, wait=self._wait))
            except HoldfastError as error:
                self.errors.append(str(error))

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _StoppedError

    def watch(self, for_s: float | None, progress: Callable[[float], None] = lambda passed_s: None) -> None:
        """Samples all of them for that long; None: each until its verdict is conclusive, 15 minutes at most.

        Calls `progress(seconds passed)` from time to time.
        """
        if not self._seen:
            return
        self._was_watched = True
        passed = [0.0] * len(self._seen)

        def report(at: int, seconds: float) -> None:
            passed[at] = seconds

        with ThreadPoolExecutor(len(self._seen), "holdfast-watch") as pool:
            try:
                running = [pool.submit(self._watch_one, at, for_s, report) for at in range(len(self._seen))]
                while wait(running, _PROGRESS_EVERY_S).not_done:
                    progress(min(passed))
            finally:
                # Before leaving the pool, which joins its threads.
                self._stop.set()
                self._watched_s = max(passed)
        for one in running:
            one.result()

    def _watch_one(self, at: int, for_s: float | None, report: Callable[[int, float], None]) -> None:
        try:
            if for_s is None:
                self._seen[at].watch_until_conclusive(lambda seconds: report(at, seconds))
            else:
                self._seen[at].watch(for_s, lambda seconds: report(at, seconds))
        except _StoppedError:
            pass

    def conclude(self) -> list[WatchTarget]:
        found = []
        for seen in self._seen:
            target = WatchTarget(
                processes=tuple(seen.conclude()),
                role=self._role,
                shared=seen.first.shared,
                whole_tree=seen.first.whole_tree,
                watched_s=self._watched_s,
            )
            if self._was_watched:
                target = replace(target, confidence=confidence_of(target.worst.diagnosis).sentence)
            if target.worst.diagnosis.fds is None:
                self.errors.append(
                    f"process {target.pid}: permission denied to list its descriptors; run as its user or as root"
                )
            else:
                found.append(with_holders(target))
        return found


# ---- one process tree: a snapshot, samples for a while, a second snapshot, and a verdict on each process

# The longest watch that ends by itself.
MAX_S = 900.0
_ROUNDS = 60
_SOONEST_S = 0.1
_BETWEEN_S = 20.0
_BETWEEN_REST = 50
_KEPT = 2
_ENDED = "it ended while it was watched: this is its last state"
_NOT_WAITED_FOR = "it has ended and holds nothing; its parent has not waited for it yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """A process as `hold.diagnose` saw it, and the verdict on it."""

    __module__ = "holdfast"

    snapshot: ProcessSnapshot
    diagnosis: Diagnosis

    def __repr__(self) -> str:
        return f"<Diagnosed {self.snapshot.process.pid} {self.snapshot.process.comm}: {self.diagnosis.verdict}>"


def diagnose(pid: int | None = None, duration: str | float = 0, *, tree: bool = True) -> list[Diagnosed]:
    """Returns a verdict on a process and on each of its descendants; the process comes first.

    Args:
        pid: The process; by default this one.
        duration: How long it is watched, in seconds or as a text such as "10min": growth shows only then. 0 takes one
            snapshot.
        tree: False: without its descendants.

    Raises:
        InputError: There is no such process.
    """
    for_s = time_argument(duration, "duration")
    seen = Observation(pid, tree=tree)
    if for_s > 0:
        seen.watch(for_s)
    return seen.conclude()


class Observation:
    """The steps of `diagnose`, for callers that interrupt the watch or continue it after a verdict."""

    def __init__(
        self,
        pid: int | None = None,
        *,
        tree: bool = True,
        procfs: ProcFS = REAL,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.first = take_snapshot(pid, tree, procfs)
        self._pid = self.first.root.process.pid
        self._tree = tree
        self._procfs = procfs
        self._clock = clock
        self._wait = wait
        self._watch: Watch | None = None
        self._between: list[dict[Identity, FdProfile]] = []
        self._scan_at_s = 0.0

    def watch(self, for_s: float, progress: Callable[[float], object] | None = None) -> None:
        """Samples for that long; calls `progress(seconds passed)` after each round, which ends the watch by True."""
        if not 0 < for_s < math.inf:
            raise ValueError(f"expected a duration above zero, got {for_s} s")
        if self._watch is None:
            every_s = min(EVERY_S, max(_SOONEST_S, for_s / _ROUNDS))
            self._watch = Watch(
                [self._pid],
                self._procfs,
                self._clock,
                self._wait,
                tree=self._tree,
                every_s=every_s,
                all_resources=True,
            )
            self._scan_at_s = min(_BETWEEN_S, for_s / 4)

        def report(passed_s: float) -> bool:
            if self._scan_at_s <= passed_s < for_s:
                self._scan_between(passed_s, for_s)
            return progress is not None and bool(progress(passed_s))

        self._watch.run(for_s, report)

    def _scan_between(self, passed_s: float, for_s: float) -> None:
        """Takes a snapshot while it is watched: what the last ones have in common is no job that runs just now."""
        began = self._clock()
        if (seen := self._scan_again()) is not None:
            self._between = [*self._between[1 - _KEPT :], _by_identity(seen)]
        self._scan_at_s = passed_s + max(min(_BETWEEN_S, for_s / 4), _BETWEEN_REST * (self._clock() - began))

    def watch_until_conclusive(self, progress: Callable[[float], object] | None = None, max_s: float = MAX_S) -> None:
        """Samples until the verdict on every process of the first snapshot is conclusive, `max_s` at most.

        Where the first snapshot proves a leak, nothing is sampled.
        """
        if self._is_conclusive():
            return

        def report(passed_s: float) -> bool:
            ended = progress is not None and bool(progress(passed_s))
            return ended or (passed_s >= LEAST_S and self._is_conclusive())

        self.watch(max_s, report)

    def _is_conclusive(self) -> bool:
        """Whether one process is proven bad, or the samples are conclusive for all that are alive."""
        if self.first.root.process.state in ENDED:
            return True
        found = self._classify_all(self.first, None, (), None)
        if any(one.diagnosis.verdict in (Verdict.LEAK, Verdict.EXHAUSTED) for one in found):
            return True
        if self._watch is None:
            return False
        living = [one for one in found if one.snapshot.process.pid in self._watch.alive]
        return all(confidence_of(one.diagnosis).conclusive for one in living)

    def conclude(self, *, jobs: Sequence[JobSample] = (), cap: int | None = None) -> list[Diagnosed]:
        """Takes a second snapshot if the process was watched, and returns the verdicts."""
        if self.first.root.process.state in ENDED:
            return _with_sentence(_NOT_WAITED_FOR, self._classify_all(self.first, None, jobs, cap))
        if self._watch is None:
            return self._classify_all(self.first, None, jobs, cap)
        last = self._scan_again()
        if last is not None:
            return self._classify_all(last, self.first, jobs, cap)
        return _with_sentence(_ENDED, self._classify_all(self.first, None, jobs, cap))

    def _scan_again(self) -> Snapshot | None:
        """Returns None if the process has ended, also if its pid was reused or it is a zombie."""
        try:
            last = take_snapshot(self._pid, self._tree, self._procfs)
        except InputError:
            return None
        root = last.root.process
        return last if root.identity == self.first.root.process.identity and root.state not in ENDED else None

    def _classify_all(
        self, last: Snapshot, first: Snapshot | None, jobs: Sequence[JobSample], cap: int | None
    ) -> list[Diagnosed]:
        profiles = profiles_of(last)
        before = {} if first is None else _by_identity(first)
        pipe_limit = find_pipe_limit(last.shared)
        shared = self._limits(last)
        commands = {proc.process.pid: proc.process.cmdline for proc in last.processes}
        found = []
        for proc in last.processes:
            root = proc is last.root
            identity = proc.process.identity
            series = self._watch.series.get(identity) if self._watch is not None else None
            # After its end the last sample is newer than the snapshot.
            newest = series.latest if last is self.first and series is not None else None
            diagnosis = classify_process(
                proc,
                profiles[proc.process.pid],
                before.get(identity),
                series,
                recent=[one[identity] for one in self._between if identity in one],
                shared=shared,
                forked=commands.get(proc.process.ppid or 0) == proc.process.cmdline,
                own=_used_by(last) if root else {},
                fds=proc.fd_count if newest is None else newest.fds,
                jobs=jobs if root else (),
                cap=cap if root else None,
                pipe_limit=None if proc.process.uid in (0, None) else pipe_limit,
            )
            found.append(Diagnosed(snapshot=proc, diagnosis=diagnosis))
        return found

    def _limits(self, last: Snapshot) -> list[Limit]:
        """Returns the shared limits, those of memory without the page cache, which is given back when needed."""
        shared = {limit.name: limit for limit in last.shared} | {"memory_available": machine_memory(self._procfs)}
        if "cgroup_memory" in shared:
            shared["cgroup_memory"] = without_cache(self._procfs, self._pid, shared["cgroup_memory"])
        return list(shared.values())


def _used_by(tree: Snapshot) -> dict[str, int]:
    """Returns how much of the shared limits these processes use; of inotify the limit itself counts only them."""
    processes = [proc.process for proc in tree.processes]
    tasks = sum(process.threads or 0 for process in processes)
    memory = sum(process.rss_bytes or 0 for process in processes)
    used = dict.fromkeys(("nproc", "cgroup_pids", "threads_max", "pid_max"), tasks)
    used |= {"cgroup_memory": memory, "memory_available": memory}
    counted = ["inotify_instances", "inotify_watches", *(["dev_shm_bytes"] if tree.kinds.get(Kind.SHM) else [])]
    return used | {limit.name: limit.used or 0 for limit in tree.shared if limit.name in counted}


def classify_process(
    proc: ProcessSnapshot,
    profile: FdProfile,
    first: FdProfile | None,
    series: Series | None,
    *,
    fds: int | None,
    recent: Sequence[FdProfile] = (),
    shared: Sequence[Limit] = (),
    forked: bool = False,
    own: Mapping[str, int] = MappingProxyType({}),
    jobs: Sequence[JobSample] = (),
    cap: int | None = None,
    pipe_limit: int | None = None,
) -> Diagnosis:
    """Returns the verdict on one process from its snapshot, its profile in the first snapshot, and its samples.

    `recent` are profiles shortly before this one, for the cause. With the `shared` limits, everything that runs out
    counts, else only descriptors: `forked` is whether it was forked from the same program, `own` how much of the shared
    limits its tree uses.
    """
    nofile = next((limit for limit in proc.limits if limit.name == "nofile"), Limit(name="nofile"))
    found = classify(
        fds=fds,
        soft=nofile.soft,
        hard=nofile.hard,
        samples=series.samples if series is not None else (),
        jobs=jobs,
        profile=None if proc.descriptors is None else profile,
        first_profile=first,
        match=find_cause(profile, first, recent),
        cap=cap,
        pipe_limit=pipe_limit,
        uptime_s=proc.process.uptime_s,
        pid=proc.process.pid,
    )
    if not shared:
        return found
    pid, uptime_s = proc.process.pid, proc.process.uptime_s
    # The kernel does not enforce the limit of a user's threads for root.
    limits = [limit for limit in (*proc.limits, *shared) if limit.name != "nproc" or proc.process.uid != 0]
    samples = series.samples if series is not None else ()
    uses = [*find_full(limits, own, pid), *find_uses(samples, limits, uptime_s=uptime_s, pid=pid, forked=forked)]
    return with_uses(found, uses, pid)


def find_cause(profile: FdProfile, first: FdProfile | None, recent: Sequence[FdProfile] = ()) -> Match | None:
    """Names the cause by what stayed open, if that is enough for a cause: a job that runs just now comes and goes."""
    stayed = baseline([*recent, profile])
    found = None if first is None or not recent else match(stayed, grown(first, stayed))
    return found or match(profile, None if first is None else grown(first, profile))


def _with_sentence(sentence: str, found: list[Diagnosed]) -> list[Diagnosed]:
    """Puts a sentence before the evidence on the process itself."""
    root = found[0]
    evidence = (sentence, *root.diagnosis.evidence)
    return [replace(root, diagnosis=replace(root.diagnosis, evidence=evidence)), *found[1:]]


def _by_identity(snapshot: Snapshot) -> dict[Identity, FdProfile]:
    """Leaves out processes whose descriptors could not be listed: all of them would count as growth."""
    profiles = profiles_of(snapshot)
    return {
        proc.process.identity: profiles[proc.process.pid] for proc in snapshot.processes if proc.descriptors is not None
    }


def find_pipe_limit(shared: Sequence[Limit]) -> int | None:
    """Returns the number of pipes above which the kernel shrinks new ones of this user."""
    pages = next((limit.soft for limit in shared if limit.name == "pipe_user_pages"), None)
    return None if pages is None or pages == math.inf else int(pages) // PIPE_PAGES
