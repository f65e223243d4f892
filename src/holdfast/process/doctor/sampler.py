"""Samples process trees at intervals and keeps a bounded history of each process, coarser the older it is."""

from __future__ import annotations

import math
import random
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...procfs.descriptors import Kind, scan
from ...procfs.limits import count_watches
from ...procfs.processes import Footprint, Identity, Stat, descendants, read_footprint, read_stat, read_vitals
from ...procfs.procfs import REAL, ProcFS, list_pids, read_or_none, stat_or_none
from .model import Sample


@dataclass(frozen=True, slots=True)
class Tier:
    """Samples at least `every_s` apart are kept for `keep_s`."""

    every_s: float
    keep_s: float


_FINE_SAMPLES = 720
_COARSE = (Tier(60, 2 * 86400), Tier(900, 30 * 86400))


def tiers_for(every_s: float) -> tuple[Tier, ...]:
    """Returns tiers for samples at this interval, the last 720 at full resolution: an hour for 5 s."""
    # Half of the interval: a sample that comes a little early must not replace the one before.
    return Tier(every_s / 2, _FINE_SAMPLES * every_s), *_COARSE


class _Ring:
    """One tier. It keeps the lowest sample of each period of `every_s`, so that thinning preserves the baseline."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._stretch: float | None = None
        self.kept: deque[Sample] = deque()

    def add(self, sample: Sample) -> list[Sample]:
        """Returns the samples that are too old for this tier."""
        stretch = sample.at_s // self._tier.every_s
        if self.kept and stretch == self._stretch:
            if sample.fds <= self.kept[-1].fds:
                self.kept[-1] = sample
            return []
        self._stretch = stretch
        self.kept.append(sample)
        old = []
        while self.kept[0].at_s < sample.at_s - self._tier.keep_s:
            old.append(self.kept.popleft())
        return old


class Series:
    """The samples of one process. `ended_at_s` is when it was found to have ended."""

    def __init__(self, identity: Identity, every_s: float, tiers: Sequence[Tier] | None = None) -> None:
        self.identity = identity
        self.ended_at_s: float | None = None
        self.latest: Sample | None = None
        self._rings = [_Ring(tier) for tier in tiers or tiers_for(every_s)]

    def add(self, sample: Sample) -> None:
        """Adds a sample; they come in time order."""
        self.latest = sample
        old = [sample]
        for ring in self._rings:
            old = [gone for one in old for gone in ring.add(one)]

    @property
    def samples(self) -> list[Sample]:
        """Oldest first; includes the latest."""
        found = [one for ring in reversed(self._rings) for one in ring.kept]
        if self.latest is not None and found and found[-1] is not self.latest:
            found.append(self.latest)
        return found


EVERY_S = 5.0
ENDED = frozenset("ZX")
# Reading the parent of every process costs more than the samples: on a machine with thousands it is done less often.
_FIND_EVERY_S = 15.0
_FIND_REST = 500
_FIND_LATEST_S = 120.0
_FOOTPRINTS_REST = 20  # for a trend, a short watch needs a dozen of them
_MAX_ENDED = 256
# Samples at exact intervals would alias with periodic jobs, which shows as a slope.
_JITTER = 0.25


_TORCH_FILE = re.compile(r"torch_(\d+)_")
_PYTHON_FILE = "psm_"
_TRACKER = "multiprocessing.resource_tracker"


class ShmFiles:
    """Counts the files in /dev/shm by the process that made them.

    torch puts the pid into the name. Python does not, but a process that makes shared memory has a resource tracker as
    a child: with a single one on this machine, its parent, or a fork of that, made them. Others are not counted.
    """

    def __init__(self, procfs: ProcFS) -> None:
        self._procfs = procfs
        self._is_tracker: dict[Identity, bool] = {}

    def count(self, stats: Mapping[int, Stat]) -> Counter[int]:
        try:
            names = self._procfs.listdir("/dev/shm")
        except OSError:
            return Counter()
        found = Counter(int(by[1]) for name in names if (by := _TORCH_FILE.match(name)))
        of_python = sum(name.startswith(_PYTHON_FILE) for name in names)
        if of_python and len(parents := self._tracked(stats)) == 1:
            found[parents[0]] += of_python
        return found

    def _tracked(self, stats: Mapping[int, Stat]) -> list[int]:
        known = {Identity(pid, one.start_ticks): one.ppid for pid, one in stats.items()}
        self._is_tracker = {
            identity: self._is_tracker[identity]
            if identity in self._is_tracker
            else _TRACKER in (read_or_none(self._procfs, f"/proc/{identity.pid}/cmdline") or "")
            for identity in known
        }
        return [parent for identity, parent in known.items() if self._is_tracker[identity]]


class Watch:
    """Samples processes, with their descendants if `tree`, each identified by pid and start time.

    Processes that ended keep their samples; the last 256 of them are kept. `tiers` are how many samples a process
    keeps, by whether it is one of the roots. `all_resources` reads children at every sample, zombies, private memory,
    inotify watches and files in /dev/shm too, as often as 0.2 % of a core allows, memory 5 %.
    """

    def __init__(
        self,
        pids: Iterable[int],
        procfs: ProcFS = REAL,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
        *,
        tree: bool = True,
        every_s: float = EVERY_S,
        tiers: Callable[[bool], Sequence[Tier]] | None = None,
        all_resources: bool = False,
    ) -> None:
        if every_s <= 0:
            raise ValueError(f"expected an interval above zero, got {every_s} s")
        self.roots = tuple(dict.fromkeys(pids))
        self.series: dict[Identity, Series] = {}
        self.every_s = every_s
        self._procfs = procfs
        self._clock = clock
        self._wait = wait
        self._tree = tree
        self._rng = random.Random()
        self._tiers = tiers
        self._find_again_at_s: float | None = None
        self._all_resources = all_resources
        self._shm = ShmFiles(procfs)
        self._watchers: dict[Identity, list[tuple[int, int]]] = {}
        self._footprints_at_s = -math.inf
        self._children: Counter[int] = Counter()
        self._zombies: Counter[int] = Counter()
        self._shm_files: Counter[int] = Counter()
        self._alive: dict[int, Series] = {}

    @property
    def alive(self) -> Mapping[int, Series]:
        """By pid, as of the last sample."""
        return self._alive

    def sample(self) -> None:
        """Samples all known processes, and finds new ones from time to time."""
        now = self._clock()
        if self._find_again_at_s is None or now >= self._find_again_at_s:
            self._find()
            rest_s = _FIND_REST * (self._clock() - now)
            every_s = self.every_s / 2 if self._all_resources else _FIND_EVERY_S
            self._find_again_at_s = now + min(max(every_s, rest_s), _FIND_LATEST_S)
        footprints = self._read_footprints() if self._all_resources else {}
        for pid in list(self._alive):
            self._sample_one(pid, footprints.get(pid))

    def _read_footprints(self) -> dict[int, Footprint]:
        now, began = self._clock(), time.thread_time()
        if now < self._footprints_at_s:
            return {}
        found = {pid: one for pid in self._alive if (one := read_footprint(self._procfs, pid)) is not None}
        self._footprints_at_s = now + _FOOTPRINTS_REST * (time.thread_time() - began)
        return found

    def find_soon(self) -> None:
        """Finds new processes at the next sample, because the roots have changed."""
        self._find_again_at_s = None

    def run(self, for_s: float, progress: Callable[[float], object] | None = None) -> None:
        """Samples for that long, including the start and the end; calls `progress(seconds passed)` after each sample.

        The watch ends early if `progress` returns true. An interrupt keeps the samples.
        """
        start = self._clock()
        rounds = 0
        while True:
            self.sample()
            passed = self._clock() - start
            if progress is not None and progress(passed):
                return
            if passed >= for_s:
                return
            # Counted from the start, so that the delays of slow rounds do not add up; missed rounds are skipped.
            rounds = max(rounds + 1, int(passed / self.every_s))
            due = rounds * self.every_s
            if due < for_s:
                due += self._rng.uniform(-_JITTER, _JITTER) * self.every_s
            self._wait(max(0.0, min(due, for_s) - passed))

    def _find(self) -> None:
        stats = {pid: one for pid in list_pids(self._procfs) if (one := read_stat(self._procfs, pid)) is not None}
        parents = {pid: one.ppid for pid, one in stats.items()}
        self._children = Counter(parents.values())
        self._zombies = Counter(one.ppid for one in stats.values() if one.state in ENDED)
        if self._all_resources:
            self._shm_files = self._shm.count(stats)
        wanted = dict.fromkeys(self.roots)
        if self._tree:
            for root in self.roots:
                wanted.update(dict.fromkeys(descendants(parents, root)))
        for pid in wanted:
            if pid not in self._alive and not self._is_gone(Identity(pid, None)):
                self._begin(pid)

    def _begin(self, pid: int) -> Series:
        seen = read_stat(self._procfs, pid)
        identity = Identity(pid, None if seen is None else seen.start_ticks)
        series = self.series.get(identity)
        if series is None:
            tiers = None if self._tiers is None else self._tiers(pid in self.roots)
            series = self.series[identity] = Series(identity, self.every_s, tiers)
        series.ended_at_s = None
        self._alive[pid] = series
        if self._all_resources:
            fds = scan(self._procfs, pid) or ()
            self._watchers[identity] = [(pid, one.fd) for one in fds if one.kind is Kind.INOTIFY]
        return series

    def _sample_one(self, pid: int, footprint: Footprint | None) -> None:
        series = self._alive[pid]
        now = self._clock()
        vitals = read_vitals(self._procfs, pid)
        # Checked after reading: a process that is the same before and after was the same in between.
        if self._is_gone(series.identity):
            self._end(pid, now)
            if pid in self.roots and not self._is_gone(Identity(pid, None)):
                self._begin(pid)
            return
        if vitals.fds is not None:
            series.add(
                Sample(
                    at_s=now,
                    fds=vitals.fds,
                    rss_bytes=vitals.rss_bytes,
                    threads=vitals.threads,
                    children=self._children[pid],
                    zombies=self._zombies[pid],
                    private_bytes=None if footprint is None else footprint.private_bytes,
                    shared_bytes=None if footprint is None else footprint.shared_bytes,
                    shm_files=self._shm_files[pid] if self._all_resources else None,
                    watches=count_watches(self._procfs, watchers)
                    if (watchers := self._watchers.get(series.identity))
                    else None,
                )
            )

    def _is_gone(self, identity: Identity) -> bool:
        """Whether its pid was reused, or it is a zombie, whose 0 descriptors are no sample."""
        seen = read_stat(self._procfs, identity.pid)
        if seen is None:
            return stat_or_none(self._procfs, f"/proc/{identity.pid}") is None
        return seen.state in ENDED or identity.start_ticks not in (None, seen.start_ticks)

    def _end(self, pid: int, now: float) -> None:
        ended_one = self._alive.pop(pid)
        ended_one.ended_at_s = now
        self._watchers.pop(ended_one.identity, None)
        ended = sorted((one.ended_at_s, key) for key, one in self.series.items() if one.ended_at_s is not None)
        for _, key in ended[:-_MAX_ENDED]:
            del self.series[key]
