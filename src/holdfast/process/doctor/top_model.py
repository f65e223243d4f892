"""The data behind `holdfast top`: counts at every refresh, snapshots and verdicts as often as their cost allows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import InputError
from ...procfs.limits import Limit, shared_limits
from ...procfs.processes import MANY_FDS, Identity, find_busy, roots_of
from ...procfs.procfs import REAL, ProcFS
from ...procfs.snapshot import ProcessSnapshot, Snapshot, take_snapshot
from .diagnose import classify_process
from .fd_profile import profiles_of
from .model import Diagnosis, FdProfile
from .sampler import Series, Watch

_SCAN_EVERY_S = 15.0
_CLASSIFY_EVERY_S = 5.0
# A snapshot or a verdict that took a second is repeated after 50 s at the earliest.
_REST = 50
_MOVED = 32
_HOST = ("file_max", "pipe_user_pages", "dev_shm_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRow:
    """One process. `history` has its counts, oldest first."""

    snapshot: ProcessSnapshot
    diagnosis: Diagnosis
    fds: int | None
    rss_bytes: int | None
    threads: int | None
    history: tuple[int, ...]

    @property
    def pid(self) -> int:
        return self.snapshot.process.pid


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSnapshot:
    """All rows, each after its parent; `host` has the limits of the machine that these processes share."""

    rows: tuple[TopRow, ...]
    host: tuple[Limit, ...]


class TopModel:
    """Call `refresh()` repeatedly. Without pids it shows this user's processes with children or many descriptors."""

    def __init__(
        self,
        pids: Sequence[int] | None,
        procfs: ProcFS = REAL,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = 2.0,
    ) -> None:
        self._pids = None if pids is None else tuple(pids)
        self._procfs = procfs
        self._clock = clock
        self._watch = Watch((), procfs, clock, every_s=every_s)
        self._snapshots: dict[Identity, tuple[ProcessSnapshot, FdProfile]] = {}
        self._before: dict[Identity, FdProfile] = {}
        self._shared: tuple[Limit, ...] = ()
        self._first: dict[Identity, FdProfile] = {}
        self._verdicts: dict[Identity, Diagnosis] = {}
        self._pipe_pages: int | None = None
        self._scan_again_at_s = self._scan_soonest_s = self._classify_again_at_s = -math.inf

    @property
    def chosen(self) -> bool:
        """Whether pids were given."""
        return self._pids is not None

    def refresh(self) -> TopSnapshot:
        now = self._clock()
        scanned = now >= self._scan_again_at_s or (now >= self._scan_soonest_s and self._has_moved())
        if scanned:
            self._scan()
        self._watch.sample()
        if scanned or self._clock() >= self._classify_again_at_s:
            self._classify_all()
        rows = [row for identity in self._snapshots if (row := self._row(identity)) is not None]
        return TopSnapshot(rows=tuple(rows), host=tuple(self._host()))

    def _scan(self) -> None:
        began = self._clock()
        pids = self._pids
        roots = roots_of(list(find_busy(self._procfs) if pids is None else pids), self._procfs)
        self._watch.roots = tuple(roots)
        self._before = {identity: profile for identity, (_, profile) in self._snapshots.items()}
        self._snapshots = {}
        pages = 0
        for root in roots:
            try:
                snapshot = take_snapshot(root, True, self._procfs)
            except InputError:
                continue  # it has ended meanwhile
            self._keep(snapshot)
            self._shared = snapshot.shared
            pages += next((limit.used or 0 for limit in snapshot.shared if limit.name == "pipe_user_pages"), 0)
        self._pipe_pages = pages
        now = self._clock()
        self._scan_soonest_s = now + _REST * (now - began)
        self._scan_again_at_s = max(self._scan_soonest_s, now + _SCAN_EVERY_S)

    def _has_moved(self) -> bool:
        """Whether a count differs so much from the last snapshot that its kinds are stale."""
        for identity, (proc, _) in self._snapshots.items():
            seen = proc.fd_count or 0
            if abs((_latest(self._watch.series.get(identity), seen) or 0) - seen) > max(_MOVED, seen / 4):
                return True
        return False

    def _keep(self, snapshot: Snapshot) -> None:
        profiles = profiles_of(snapshot)
        for proc in snapshot.processes:
            profile = profiles[proc.process.pid]
            if self._pids is not None or profile.children or (proc.fd_count or 0) > MANY_FDS:
                identity = proc.process.identity
                self._snapshots[identity] = proc, profile
                if proc.descriptors is not None:
                    self._first.setdefault(identity, profile)

    def _classify_all(self) -> None:
        began = self._clock()
        self._verdicts = {identity: self._classify(identity) for identity in self._snapshots}
        self._first = {identity: first for identity, first in self._first.items() if identity in self._snapshots}
        now = self._clock()
        self._classify_again_at_s = now + max(_CLASSIFY_EVERY_S, _REST * (now - began))

    def _classify(self, identity: Identity) -> Diagnosis:
        proc, profile = self._snapshots[identity]
        series = self._watch.series.get(identity)
        first = self._first.get(identity)
        earlier = None if first is profile else first
        before = self._before.get(identity)
        return classify_process(
            proc,
            profile,
            earlier,
            series,
            fds=_latest(series, proc.fd_count),
            recent=[] if before is None else [before],
            shared=self._shared,
        )

    def _row(self, identity: Identity) -> TopRow | None:
        """Returns None if the process has ended."""
        proc, _ = self._snapshots[identity]
        series = self._watch.series.get(identity)
        if series is not None and series.ended_at_s is not None:
            return None
        latest = None if series is None else series.latest
        return TopRow(
            snapshot=proc,
            diagnosis=self._verdicts[identity],
            fds=_latest(series, proc.fd_count),
            rss_bytes=latest.rss_bytes if latest else proc.process.rss_bytes,
            threads=latest.threads if latest else proc.process.threads,
            history=tuple(sample.fds for sample in series.samples) if series is not None else (),
        )

    def _host(self) -> list[Limit]:
        found = []
        for limit in shared_limits(self._procfs, self._procfs.own_pid() or 0):
            if limit.name == "pipe_user_pages":
                # The kernel does not enforce it for root.
                soft = limit.soft if os.geteuid() else math.inf
                found.append(Limit(name=limit.name, used=self._pipe_pages, soft=soft, hard=limit.hard))
            elif limit.name in _HOST:
                found.append(limit)
        return found


def _latest(series: Series | None, otherwise: int | None) -> int | None:
    return otherwise if series is None or series.latest is None else series.latest.fds
