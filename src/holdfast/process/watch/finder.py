"""Finds the processes to watch: by pid, by --name, and as the workers of a supervisor; and gives each a target.

A process that takes the place of one that has ended continues its target, also if watch itself was restarted meanwhile.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..._util.text import one_line
from ...errors import InputError
from ...procfs.processes import Identity, Process, find_by_name, is_same, is_wrapper, read_process, read_stat
from ...procfs.procfs import REAL, ProcFS, read_or_none, readlink_or_none
from ..doctor.model import Sample, Verdict
from ..doctor.sampler import Series, Tier, Watch, tiers_for
from ..guard.heartbeat import read_heartbeat
from ..guard.supervisor.status import SupervisorStatus, read_supervisor_status
from .alerts import Announcer, RestartWindow, VerdictHold
from .database import DamagedDatabaseError, StoredTarget, reading_facts
from .names import TargetKey, find_successor, parse_key, short_name, unique_label
from .state import EventState
from .store import MAX_TARGETS, Batch, Store, boot_id
from .target import Target, end_reason, facts_of, parse_profile
from .tree import TreeModel, clip

# A process that --name has found is a target if it lives for so long.
_YOUNG_S = 3.0
# A supervisor writes its status shortly after its start.
_STATUS_WITHIN_S = 5.0
_LATE_S = 2.0  # start times are rounded
_MAX_ANCESTORS = 64
_NAMES_LATEST_S = 120.0
_REST = 500
_NAMES_EVERY_S = 5.0
_SUPERVISOR_EVENTS = {
    "ended": "restart",
    "done": "end",
    "gave-up": "end",
    "stacks": "health",
    "term": "health",
    "kill": "health",
}
# Commands of holdfast name the process that they observe: they are not meant by --name.
_OBSERVERS = re.compile(r"\bholdfast (watch|doctor|top|rescue|report|trace --attach)\b")


def tiers_of(every_s: float, is_root: bool) -> Sequence[Tier]:
    """Returns how much of each process is kept in memory: descendants, of which there may be hundreds, keep a sixth."""
    if is_root:
        return tiers_for(every_s)
    return Tier(every_s / 2, 240 * every_s), Tier(60, 4 * 3600), Tier(900, 5 * 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to watch. `label` names the targets, instead of their commands and Guards."""

    pids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    label: str | None = None


@dataclass(slots=True, kw_only=True)
class Followed:
    """The targets of a supervisor, by the number of the worker, and the time of its last event that was reported."""

    events_until: float
    workers: dict[int, Target] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class RoundLog:
    """The times of the present round, what it writes, and its events."""

    now: float
    wall: float
    batch: Batch = field(default_factory=Batch)
    events: list[EventState] = field(default_factory=list)
    messages: list[EventState] = field(default_factory=list)  # for --notify and --webhook

    def report(self, target: str, kind: str, text: str) -> None:
        self.events.append(EventState(t=self.wall, target=target, kind=kind, text=clip(one_line(text))))


class TargetFinder:
    """Call `discover` once a round. `targets` are those of this watch, and those that the store knows from before."""

    def __init__(
        self,
        selection: Selection,
        store: Store,
        watch: Watch,
        log: RoundLog,
        *,
        every_s: float,
        procfs: ProcFS = REAL,
        clock: Callable[[], float] = time.monotonic,
        cost_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.targets, self.since = _restored_all(store, log.wall)
        self.supervisors: dict[Identity, Followed] = {}
        self.waiting = list(dict.fromkeys(selection.pids))
        self.is_full = False
        self._selection = selection
        self._store = store
        self._watch = watch
        self._log = log
        self._every_s = every_s
        self._procfs = procfs
        self._clock = clock
        self._cost = cost_clock
        self._boot = boot_id(procfs)
        self._names_at_s = -math.inf
        self._young: dict[Identity, tuple[str, float]] = {}  # what a name has found, and when
        self._wrappers: set[Identity] = set()
        self._has_begun = False

    def discover(self) -> None:
        """Finds new processes. InputError: a pid that was asked for is not there at the start."""
        for pid in list(self.waiting):
            process = read_process(self._procfs, pid)
            if process is None or process.state in "ZX":
                if not self._has_begun:
                    raise InputError(f"there is no process {pid}")
                self.waiting.remove(pid)
            elif self._attach(TargetKey("pid", clip(process.cmdline or process.comm), ""), process):
                self.waiting.remove(pid)
        if self._selection.names and self._log.now >= self._names_at_s:
            self._find_names()
        self._take_named()
        for identity in list(self.supervisors):
            self._follow(identity)
        self._has_begun = True

    def _find_names(self) -> None:
        began = self._cost()
        known = {one.root for one in self.targets if one.alive} | self.supervisors.keys()
        for name in self._selection.names:
            for pid in find_by_name(name, self._procfs):
                process = read_process(self._procfs, pid)
                if process is None or process.state in "ZX" or process.identity in known or self._is_own(process):
                    continue
                self._young.setdefault(process.identity, (name, self._log.now))
        rest_s = max(_NAMES_EVERY_S, _REST * (self._cost() - began))
        self._names_at_s = self._log.now + min(rest_s, _NAMES_LATEST_S)

    def _take_named(self) -> None:
        """Watches what --name has found, unless it ends at once: a fork or a helper is no target of its own.

        What replaces a target is taken without delay: one that ends right after its start is a restart loop.
        """
        self.is_full = False
        for identity, (name, since_s) in list(self._young.items()):
            process = read_process(self._procfs, identity.pid)
            if process is None or process.identity != identity or process.state in "ZX":
                del self._young[identity]
                continue
            key = TargetKey(f"name:{name}", clip(process.cmdline or process.comm), "")
            is_next = any(one.current and not one.alive and one.key[:2] == key[:2] for one in self.targets)
            age_s = max(process.uptime_s or 0.0, self._log.now - since_s)
            if (age_s < _YOUNG_S and not is_next) or not self._has_room():
                continue
            del self._young[identity]
            if identity not in self._wrappers:
                self._note_wrappers(process)
                if not self._attach(key, process):
                    self._young[identity] = name, since_s

    def _note_wrappers(self, process: Process) -> None:
        """Remembers the `bash -c` above a target, which is no target either while it waits to run the next."""
        above = None if process.ppid is None else read_process(self._procfs, process.ppid)
        while above is not None and is_wrapper(above.cmdline):
            self._wrappers.add(above.identity)
            above = None if above.ppid is None else read_process(self._procfs, above.ppid)

    def _is_own(self, process: Process) -> bool:
        """Whether it is another watch, what reads the output of this one, or what it has started for --notify."""
        own, parent = self._procfs.own_pid(), process.ppid
        if _OBSERVERS.search(process.cmdline) or self._reads_output(process.pid, own):
            return True
        for _ in range(_MAX_ANCESTORS):
            if parent is None or parent <= 1 or parent == own:
                break
            seen = read_stat(self._procfs, parent)
            parent = None if seen is None else seen.ppid
        environ = read_or_none(self._procfs, f"/proc/{process.pid}/environ") or ""
        return parent is not None and parent == own and "\0HOLDFAST_EVENT=" in f"\0{environ}"

    def _reads_output(self, pid: int, own: int | None) -> bool:
        """Whether it is the `tee train.log` of `holdfast watch --name train | tee train.log`."""
        read = readlink_or_none(self._procfs, f"/proc/{pid}/fd/0") or ""
        return read.startswith("pipe:") and any(
            readlink_or_none(self._procfs, f"/proc/{own}/fd/{fd}") == read for fd in (1, 2)
        )

    def _attach(self, key: TargetKey, process: Process) -> bool:
        """Begins to watch a process, unless it is watched. Returns False for one that may turn out a supervisor."""
        if process.identity in self.supervisors or any(
            one.alive and one.root == process.identity for one in self.targets
        ):
            return True
        if read_supervisor_status(process.pid, self._procfs) is not None:
            self.supervisors[process.identity] = Followed(events_until=self._log.wall)
            return True
        if " supervise " in process.cmdline and (process.uptime_s or 0.0) < _STATUS_WITHIN_S:
            return False
        if self._has_room():
            self._begin(key, process)
        return True

    def _follow(self, identity: Identity) -> None:
        """Gives each worker of a supervisor a target."""
        status = read_supervisor_status(identity.pid, self._procfs)
        followed = self.supervisors[identity]
        if status is None or status.identity != identity:
            seen = read_stat(self._procfs, identity.pid)
            if is_same(self._procfs, identity) is False or (seen is not None and seen.state in "ZX"):
                del self.supervisors[identity]
            return
        command = clip(" ".join(status.command))
        # A supervisor without a name is called after its program, which may be an interpreter.
        program = status.command[0].rpartition("/")[2] if status.command else ""
        name = "" if status.name == program else one_line(status.name)
        for worker in status.workers:
            process = read_process(self._procfs, worker.pid) if worker.pid else None
            target = followed.workers.get(worker.worker)
            is_first = target is None
            key = TargetKey(f"worker:{worker.worker}", command, name)
            if process is not None and process.state not in "ZX":
                if target.root != process.identity if target else self._has_room():
                    target = followed.workers[worker.worker] = self._begin(key, process, continues=target)
            elif target is None and self._has_room():
                target = followed.workers[worker.worker] = self._expect(key, Process(pid=worker.pid, cmdline=command))
            if target is None:
                continue
            if is_first:
                target.window = RestartWindow(worker.restarts)  # those before may be of last week
            target.restarts = dict(worker.restarts)
            target.is_given_up = worker.state.is_final
        self._add_supervisor_events(followed, status)

    def _add_supervisor_events(self, followed: Followed, status: SupervisorStatus) -> None:
        """Reports the supervisor's events: it knows exit codes and reasons, which cannot be seen from here."""
        given_up = {worker.worker for worker in status.workers if worker.state.is_final}
        for event in status.events:
            target = followed.workers.get(event.worker)
            if event.t <= followed.events_until or target is None or event.kind not in _SUPERVISOR_EVENTS:
                continue
            kind = _SUPERVISOR_EVENTS[event.kind]
            if kind == "restart" and event.worker in given_up:
                kind = "end"
            text = clip(one_line(event.text))
            self._log.events.append(EventState(t=event.t, target=target.label, kind=kind, text=text))
        followed.events_until = max((event.t for event in status.events), default=followed.events_until)

    def is_followed(self, target: Target) -> bool:
        return any(target in one.workers.values() for one in self.supervisors.values())

    def _begin(self, key: TargetKey, process: Process, continues: Target | None = None) -> Target:
        """Watches a process as a new target, or as the next process of one whose process has ended."""
        short = key.short or short_name(process.cmdline, process.comm)
        key = key._replace(short=short)
        began = math.inf if process.uptime_s is None else self._log.wall - process.uptime_s
        # What was there beside the process that has ended, such as a child of it, does not take its place.
        is_left_over = process.identity in self._watch.series
        known = [one for one in self.targets if not one.alive and began >= one.seen - _LATE_S and not is_left_over]
        same = [
            one for one in self.targets if not one.alive and one.root == process.identity and one.boot == self._boot
        ]
        target = continues or (same[0] if same else None) or find_successor(key, known)
        if target is None:
            target = self._new_target(key, process)
            self._log.report(target.label, "start", f"pid {process.pid}: {process.cmdline or process.comm}")
        elif target.root == process.identity and target.boot == self._boot:
            self._resume(target)
            self._log.report(target.label, "start", f"pid {process.pid} is watched again")
        else:
            self._replace(target, process, is_supervised=key.source.startswith("worker:"))
        if self._selection.label and not target.named:
            self.rename(target, self._selection.label)
        target.key = key
        if not target.current:
            target.window = RestartWindow(target.restarts)  # those before this watch are no loop now
        target.current = target.alive = True
        target.command = clip(one_line(process.cmdline or process.comm))
        target.uid = process.uid
        target.started = None if process.uptime_s is None else self._log.wall - process.uptime_s
        target.tree = target.tree or TreeModel(target.root, self._watch, self._procfs, self._clock, self._cost)
        if target.about is not None and (first := target.facts.get("_first")):
            target.tree.first.setdefault(target.about, parse_profile(first))
            target.tree.about = target.about
        target.about = target.tree.about
        return target

    def _expect(self, key: TargetKey, process: Process) -> Target:
        """Makes a target of a worker that does not run now: one that ends right after its start may never be seen."""
        key = key._replace(short=key.short or short_name(process.cmdline))
        target = find_successor(key, [one for one in self.targets if not one.alive])
        if target is None:
            target = self._new_target(key, process)
        target.key, target.command = key, clip(one_line(process.cmdline))
        target.current, target.ended = True, self._log.wall
        target.facts = facts_of(target, None, self._log.wall) | {"sentence": "it does not run at the moment"}
        return target

    def _has_room(self) -> bool:
        self.is_full = len(self.targets) >= MAX_TARGETS and all(one.alive for one in self.targets)
        return not self.is_full

    def _new_target(self, key: TargetKey, process: Process) -> Target:
        if len(self.targets) >= MAX_TARGETS:
            self._drop_oldest()
        page = read_heartbeat(process.pid, self._procfs)
        given = self._selection.label
        name = given or (page.name if page is not None else "") or key.short
        label = unique_label(name, {one.label for one in self.targets})
        target = Target(
            id=max((one.id for one in self.targets), default=0) + 1,
            label=label,
            key=key,
            boot=self._boot,
            root=process.identity,
            named=bool(given or (page is not None and page.name)),
        )
        self.targets.append(target)
        return target

    def _drop_oldest(self) -> None:
        ended = [one for one in self.targets if not one.alive]
        oldest = min(ended, key=lambda one: (one.current, one.ended))
        self.targets.remove(oldest)
        self._log.batch.drop_target(oldest.id)

    def _replace(self, target: Target, process: Process, *, is_supervised: bool) -> None:
        old = target.root.pid
        reason = end_reason(target)
        if not is_supervised:  # a supervisor counts them itself
            target.restarts = dict(Counter(target.restarts) + Counter({reason: 1}))
        target.root, target.boot = process.identity, self._boot
        target.process += 1
        target.tree = None
        target.about = None
        target.kinds = None
        target.page = target.guard = None
        target.guard_at_s = target.kinds_at_s = target.held_at_s = -math.inf
        target.held_by = []
        target.facts = {}
        target.verdict, target.hold, target.is_judged = Verdict.OK, VerdictHold(), False
        target.limit, target.nearly_full = None, False
        if not is_supervised:
            self._log.report(target.label, "restart", f"{reason}: pid {process.pid} took the place of pid {old}")

    # ---- after watch itself was restarted

    def _resume(self, target: Target) -> None:
        """Takes the samples of the process from the store, so that its trend goes on."""
        about = target.about or target.root
        series = Series(about, self._every_s, tiers_of(self._every_s, about == target.root))
        offset = self._log.wall - self._log.now
        for point, process in self._store.points(target.id):
            if process == target.process and point.t < self._log.wall:
                series.add(
                    Sample(
                        at_s=point.t - offset,
                        fds=point.low,
                        rss_bytes=point.rss_bytes,
                        threads=point.threads,
                        children=point.children,
                    )
                )
        self._watch.series.setdefault(about, series)

    def rename(self, target: Target, name: str) -> None:
        """Gives a target a better name than its command: its Guard's is known only some time after its start."""
        if target.named or not one_line(name):
            return
        target.named = True
        old = target.label
        target.label = unique_label(name, {one.label for one in self.targets if one is not target})
        if target.label != old:
            self._log.batch.rename(old, target.label)
            for event in self._log.events:
                if event["target"] == old:
                    event["target"] = target.label


def _restored_all(store: Store, now: float) -> tuple[list[Target], float]:
    """Returns the targets of the store and since when it is written; a store whose facts are damaged begins anew."""
    try:
        with reading_facts(store.path):
            since = store.fact("since")
            return [_restored(one) for one in store.targets()], now if since is None else float(since)
    except DamagedDatabaseError as error:
        store.start_over(error)
        return [], now


def _restored(one: StoredTarget) -> Target:
    about = one.facts.get("_about")
    if first := one.facts.get("_first"):
        parse_profile(first)  # which is needed later
    return Target(
        id=one.id,
        label=one.label,
        key=parse_key(one.key),
        boot=one.boot,
        root=one.identity,
        process=one.process,
        named=bool(one.facts.get("_named")),
        about=None if about is None else Identity(*about),
        ended=one.seen,
        seen=one.seen,
        restarts=dict(one.facts.get("restarts", {})),
        verdict=Verdict(one.facts.get("verdict", "OK")),
        hold=VerdictHold(Verdict(one.facts.get("verdict", "OK"))),
        announcer=Announcer.restore(one.facts.get("_alerts")),
        is_judged=True,
        facts=one.facts,
    )
