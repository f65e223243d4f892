"""Samples the watched processes in rounds: counts every round, kinds every minute, snapshots as their cost allows.

A target is what is watched under one label: a pid, a process that --name finds, or one copy of a supervisor. When its
process is replaced, by a supervisor, by systemd or by hand, the target goes on with the new one.
"""

from __future__ import annotations

import math
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._util.text import one_line
from ..doctor.diagnose import SEVERITY
from ..doctor.model import JobSample, Sample, Verdict
from ..doctor.sampler import EVERY_S, Series, Tier, Watch, tiers_for
from ..errors import InputError
from ..fd_owners.agent import ask_owners
from ..guard.health import classify_health
from ..guard.heartbeat import Heartbeat, read_heartbeat
from ..guard.supervisor.status import CopyState, SupervisorStatus, read_supervisor_status
from ..procfs.limits import finite
from ..procfs.processes import Identity, Process, find_by_name, is_same, read_process, read_stat, sample_kinds
from ..procfs.procfs import REAL, ProcFS, read_or_none
from .documents import public_facts, with_history
from .names import TargetKey, find_successor, parse_key, short_name, unique_label
from .state import MOST_EVENTS, EventState, GuardFacts, StateDocument, TargetState, state_document
from .store import MOST_TARGETS, Batch, Store, StoredTarget, boot_id
from .target import Target, end_reason, facts_of, guard_facts, last_words, parse_profile, point_of
from .tree import TreeModel, clip

_NAMES_EVERY_S = 5.0
_REST = 500
_NAMES_LATEST_S = 120.0
_KINDS_EVERY_S = 60.0
_FACTS_EVERY_S = 15.0
_GUARD_EVERY_S = 15.0
_MOST_GUARD_PIDS = 64
_HOLDERS_EVERY_S = 900.0
_HOLDERS_WITHIN_S = 3.0
_SHOWN_HOLDERS = 3
# A supervisor writes its status shortly after its start.
_YOUNG_S = 5.0
# Ended processes of a --name stay in the document for that long.
_SHOW_ENDED_S = 3600.0
_MOST_ANCESTORS = 64
_NEARLY_FULL, _NOT_FULL = 0.9, 0.8
_SUPERVISOR_EVENTS = {
    "ended": "restart",
    "done": "end",
    "gave-up": "end",
    "stacks": "health",
    "term": "health",
    "kill": "health",
}
# Commands of holdfast name the process that they look at: they are not meant by --name.
_LOOKS_ON = re.compile(r"\bholdfast (watch|doctor|top|rescue|report|trace --attach)\b")
CALM = frozenset({Verdict.OK, Verdict.UNCLEAR, Verdict.SETTLING})


def tiers_of(every_s: float, is_root: bool) -> Sequence[Tier]:
    """Returns how much of each process is kept in memory: descendants, of which there may be hundreds, keep a sixth."""
    if is_root:
        return tiers_for(every_s)
    return Tier(every_s / 2, 240 * every_s), Tier(60, 4 * 3600), Tier(900, 5 * 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to watch. `label` is the label of the first target."""

    pids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    label: str | None = None


@dataclass(slots=True, kw_only=True)
class Followed:
    """The targets of a supervisor, by the number of the copy, and the time of its last event that was told."""

    events_until: float
    copies: dict[int, Target] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What requests read: replaced as a whole after each round."""

    number: int
    now: float
    targets: tuple[tuple[int, int, dict[str, Any]], ...] = ()  # id in the store, process, facts
    round_s: float = 0.0
    rounds: int = 0


class Collector:
    """Call `round` every `every_s` seconds, from one thread. Any thread may call `document`."""

    def __init__(
        self,
        selection: Selection,
        store: Store,
        *,
        every_s: float = EVERY_S,
        procfs: ProcFS = REAL,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        cost_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.selection = selection
        self.store = store
        self.every_s = every_s
        self.problems: list[str] = []
        self.host = one_line(socket.gethostname())
        self._procfs = procfs
        self._clock = clock
        self._wall = wall
        self._cost = cost_clock
        self._boot = boot_id(procfs)
        self._watch = Watch((), procfs, clock, every_s=every_s, tiers=lambda is_root: tiers_of(every_s, is_root))
        self._targets: list[Target] = [self._restored(one) for one in store.targets()]
        self._supervisors: dict[Identity, Followed] = {}
        self._waiting = list(dict.fromkeys(selection.pids))
        self._names_at_s = -math.inf
        self._number = 0
        self._is_full = False
        self._batch = Batch()
        self._events: list[EventState] = []
        self._asking: threading.Thread | None = None
        self._now = self._clock()
        self._wall_now = self._wall()
        stored = store.fact("since")
        self.since = self._wall_now if stored is None else float(stored)
        for name, value in (("since", self.since), ("every_s", every_s), ("host", self.host)):
            self._batch.set_fact(name, value)
        self.published = Published(number=0, now=self._wall_now)

    # ---- one round

    def round(self) -> list[EventState]:
        """Samples everything once and writes it. Returns the new events."""
        began = self._clock()
        self._now, self._wall_now = began, self._wall()
        self._events = []
        self._discover()
        roots = tuple(one.root.pid for one in self._targets if one.alive)
        if roots != self._watch.roots:
            self._watch.roots = roots
            self._watch.find_soon()
        self._watch.sample()
        for target in self._targets:
            if target.alive:
                self._update(target)
        self._forget_ended()
        for event in self._events:
            self._batch.add_event(event)
        batch, self._batch = self._batch, Batch()
        self.store.write(batch)
        self._publish(began)
        return self._events

    def _publish(self, began: float) -> None:
        self._number += 1
        shown = [
            (one.id, one.process, one.facts)
            for one in self._targets
            if one.current and (one.alive or not self._is_past(one))
        ]
        self.published = Published(
            number=self._number,
            now=self._wall_now,
            targets=tuple(shown),
            round_s=self._clock() - began,
            rounds=self._number,
        )

    def _is_past(self, one: Target) -> bool:
        return one.key.source.startswith("name:") and self._wall_now - one.ended > _SHOW_ENDED_S

    @property
    def all_problems(self) -> list[str]:
        """What watch cannot do at the moment."""
        full = (
            f"only {MOST_TARGETS} processes are watched, more were found: use a longer --name" if self._is_full else ""
        )
        return [*self.problems, *(problem for problem in (self.store.problem, full) if problem)]

    def has_seen(self, name: str) -> bool:
        """Whether a process of this --name was found."""
        return any(one.current and one.key.source == f"name:{name}" for one in self._targets) or bool(self._supervisors)

    def target_facts(self, label: str) -> dict[str, Any]:
        return next((one.facts for one in self._targets if one.label == label), {})

    @property
    def is_over(self) -> bool:
        """Whether everything that was asked for has ended, and nothing can come back."""
        if self.selection.names or self._waiting or self._supervisors:
            return False
        return not any(one.alive for one in self._targets)

    def _event(self, target: str, kind: str, text: str) -> None:
        self._events.append(EventState(t=self._wall_now, target=target, kind=kind, text=clip(one_line(text))))

    # ---- finding processes

    def _discover(self) -> None:
        for pid in list(self._waiting):
            process = read_process(self._procfs, pid)
            if process is None or process.state in "ZX":
                if self._number == 0:
                    raise InputError(f"there is no process {pid}")
                self._waiting.remove(pid)
            elif self._attach(TargetKey("pid", clip(process.cmdline or process.comm), ""), process):
                self._waiting.remove(pid)
        if self.selection.names and self._now >= self._names_at_s:
            self._find_names()
        for identity in list(self._supervisors):
            self._follow(identity)

    def _find_names(self) -> None:
        began = self._cost()
        self._is_full = False
        for name in self.selection.names:
            for pid in find_by_name(name, self._procfs):
                process = read_process(self._procfs, pid)
                if process is not None and process.state not in "ZX" and not self._is_own(process):
                    self._attach(TargetKey(f"name:{name}", clip(process.cmdline or process.comm), ""), process)
        rest_s = max(_NAMES_EVERY_S, _REST * (self._cost() - began))
        self._names_at_s = self._now + min(rest_s, _NAMES_LATEST_S)

    def _is_own(self, process: Process) -> bool:
        """Whether it is another watch, or what this one has started for --notify."""
        if _LOOKS_ON.search(process.cmdline):
            return True
        own, parent = self._procfs.own_pid(), process.ppid
        for _ in range(_MOST_ANCESTORS):
            if parent is None or parent <= 1 or parent == own:
                break
            seen = read_stat(self._procfs, parent)
            parent = None if seen is None else seen.ppid
        environ = read_or_none(self._procfs, f"/proc/{process.pid}/environ") or ""
        return parent is not None and parent == own and "\0HOLDFAST_EVENT=" in f"\0{environ}"

    def _attach(self, key: TargetKey, process: Process) -> bool:
        """Begins to watch a process, unless it is watched. Returns False for one that may turn out a supervisor."""
        if process.identity in self._supervisors or any(
            one.alive and one.root == process.identity for one in self._targets
        ):
            return True
        if read_supervisor_status(process.pid, self._procfs) is not None:
            self._supervisors[process.identity] = Followed(events_until=self._wall_now)
            return True
        if " supervise " in process.cmdline and (process.uptime_s or 0.0) < _YOUNG_S:
            return False
        if self._has_room():
            self._begin(key, process)
        return True

    def _follow(self, identity: Identity) -> None:
        """Gives each copy of a supervisor a target."""
        status = read_supervisor_status(identity.pid, self._procfs)
        followed = self._supervisors[identity]
        if status is None or status.identity != identity:
            seen = read_stat(self._procfs, identity.pid)
            if is_same(self._procfs, identity) is False or (seen is not None and seen.state in "ZX"):
                del self._supervisors[identity]
            return
        command = clip(" ".join(status.command))
        # A supervisor without a name is called after its program, which may be an interpreter.
        program = status.command[0].rpartition("/")[2] if status.command else ""
        name = "" if status.name == program else one_line(status.name)
        for worker in status.workers:
            process = read_process(self._procfs, worker.pid) if worker.pid else None
            target = followed.copies.get(worker.copy)
            runs = process is not None and process.state not in "ZX"
            if process is not None and runs and (target.root != process.identity if target else self._has_room()):
                key = TargetKey(f"copy:{worker.copy}", command, name)
                target = followed.copies[worker.copy] = self._begin(key, process, continues=target)
            if target is not None:
                target.restarts = dict(worker.restarts)
        self._add_supervisor_events(followed, status)

    def _add_supervisor_events(self, followed: Followed, status: SupervisorStatus) -> None:
        """Tells what the supervisor said: it knows exit codes and reasons, which cannot be seen from here."""
        states = {worker.copy: worker.state for worker in status.workers}
        for event in status.events:
            target = followed.copies.get(event.copy)
            if event.t <= followed.events_until or target is None or event.kind not in _SUPERVISOR_EVENTS:
                continue
            kind = _SUPERVISOR_EVENTS[event.kind]
            if kind == "restart" and states.get(event.copy) in (CopyState.FAILED, CopyState.DONE):
                kind = "end"
            text = clip(one_line(event.text))
            self._events.append(EventState(t=event.t, target=target.label, kind=kind, text=text))
        followed.events_until = max((event.t for event in status.events), default=followed.events_until)

    def _is_followed(self, target: Target) -> bool:
        return any(target in one.copies.values() for one in self._supervisors.values())

    def _begin(self, key: TargetKey, process: Process, continues: Target | None = None) -> Target:
        """Watches a process as a new target, or as the next process of one whose process has ended."""
        short = key.short or short_name(process.cmdline, process.comm)
        key = key._replace(short=short)
        known = [one for one in self._targets if not one.alive]
        same = [one for one in known if one.root == process.identity and one.boot == self._boot]
        target = continues or (same[0] if same else None) or find_successor(key, known)
        if target is None:
            target = self._new_target(key, process)
            self._event(target.label, "start", f"pid {process.pid}: {process.cmdline or process.comm}")
        elif target.root == process.identity and target.boot == self._boot:
            self._resume(target)
            self._event(target.label, "start", f"pid {process.pid} is watched again")
        else:
            if target.alive:
                self._end(target)
            self._replace(target, process, is_copy=key.source.startswith("copy:"))
        target.key = key
        target.current = target.alive = True
        target.command = clip(one_line(process.cmdline or process.comm))
        target.started = None if process.uptime_s is None else self._wall_now - process.uptime_s
        target.tree = target.tree or TreeModel(target.root, self._watch, self._procfs, self._clock, self._cost)
        if target.about is not None and (first := target.facts.get("_first")):
            target.tree.first.setdefault(target.about, parse_profile(first))
            target.tree.about = target.about
        target.about = target.tree.about
        return target

    def _has_room(self) -> bool:
        self._is_full = len(self._targets) >= MOST_TARGETS and all(one.alive for one in self._targets)
        return not self._is_full

    def _new_target(self, key: TargetKey, process: Process) -> Target:
        if len(self._targets) >= MOST_TARGETS:
            self._drop_oldest()
        page = read_heartbeat(process.pid, self._procfs)
        given = self.selection.label if not any(one.current for one in self._targets) else None
        name = given or (page.name if page is not None else "") or key.short
        label = unique_label(name, {one.label for one in self._targets})
        target = Target(
            id=max((one.id for one in self._targets), default=0) + 1,
            label=label,
            key=key,
            boot=self._boot,
            root=process.identity,
            named=bool(given or (page is not None and page.name)),
        )
        self._targets.append(target)
        return target

    def _drop_oldest(self) -> None:
        ended = [one for one in self._targets if not one.alive]
        oldest = min(ended, key=lambda one: (one.current, one.ended))
        self._targets.remove(oldest)
        self._batch.drop_target(oldest.id)

    def _replace(self, target: Target, process: Process, *, is_copy: bool) -> None:
        old = target.root.pid
        reason = end_reason(target)
        if not is_copy:  # a supervisor counts them itself
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
        target.is_judged = False
        if not is_copy:
            self._event(target.label, "restart", f"{reason}: pid {process.pid} took the place of pid {old}")

    # ---- after watch itself was restarted

    def _restored(self, one: StoredTarget) -> Target:
        about = one.facts.get("_about")
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
            restarts=dict(one.facts.get("restarts", {})),
            verdict=Verdict(one.facts.get("verdict", "OK")),
            is_judged=True,
            facts=one.facts,
        )

    def _resume(self, target: Target) -> None:
        """Takes the samples of the process from the store, so that its trend goes on."""
        about = target.about or target.root
        series = Series(about, self.every_s, tiers_of(self.every_s, about == target.root))
        offset = self._wall_now - self._now
        for point, process in self.store.points(target.id):
            if process == target.process and point.t < self._wall_now:
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

    # ---- one target

    def _update(self, target: Target) -> None:
        series = self._watch.alive.get(target.root.pid)
        if series is None or series.identity != target.root:
            self._end(target)
            return
        assert target.tree is not None
        self._read_guard(target)
        page = target.page
        jobs = [] if page is None else [JobSample(job=job, fds=fds) for job, fds in page.jobs]
        cap = None if page is None else page.fd_soft_cap or page.fd_hard_cap or None
        judged = target.tree.refresh(jobs, cap, None if page is None else page.identity)
        self._follow_subject(target)
        self._add_sample(target)
        self._add_kinds(target)
        if judged:
            self._judge(target)
        self._note_limit(target)
        target.facts = self._facts(target)
        if self._now >= target.written_at_s + _FACTS_EVERY_S or any(
            one["target"] == target.label for one in self._events
        ):
            self._write_facts(target)

    def _end(self, target: Target) -> None:
        target.alive = False
        target.ended = self._wall_now
        if not self._is_followed(target):
            self._event(target.label, "end", f"pid {target.root.pid} ended{last_words(target)}")
        target.facts = target.facts or self._facts(target)
        target.facts = target.facts | {
            "alive": False,
            "sentence": f"it has ended{last_words(target)}; this is its last state",
        }
        self._write_facts(target)

    def _forget_ended(self) -> None:
        """Frees the samples of processes that have ended: their targets have them in the store."""
        for identity in [key for key, series in self._watch.series.items() if series.ended_at_s is not None]:
            del self._watch.series[identity]

    def _follow_subject(self, target: Target) -> None:
        """Writes the samples of the process that the target is about from now on."""
        assert target.tree is not None
        about = target.tree.about
        if self._ended(about):
            target.tree.about = about = target.root
        if about == target.about:
            return
        target.process += 1
        if about != target.root:
            series = self._watch.series.get(about)
            samples = [] if series is None else series.samples
            offset = self._wall_now - self._now
            if samples:
                self._batch.drop_samples(target.id, samples[0].at_s + offset)
            for sample in samples:
                self._batch.add_sample(target.id, target.process, point_of(sample, offset))
        target.about = about
        target.kinds_at_s = target.held_at_s = -math.inf
        target.held_by = []

    def _ended(self, identity: Identity) -> bool:
        series = self._watch.series.get(identity)
        return series is not None and series.ended_at_s is not None

    def _add_sample(self, target: Target) -> None:
        series = self._watch.series.get(target.about or target.root)
        if series is None or series.latest is None or series.latest.at_s <= target.sampled_at_s:
            return
        target.sampled_at_s = series.latest.at_s
        point = point_of(series.latest, self._wall_now - self._now)
        self._batch.add_sample(target.id, target.process, point)

    def _add_kinds(self, target: Target) -> None:
        if self._now < target.kinds_at_s + _KINDS_EVERY_S:
            return
        target.kinds_at_s = self._clock()
        about = target.about or target.root
        found = sample_kinds(self._procfs, about.pid)
        # Checked after reading: the pid may be another process's by now.
        seen = read_stat(self._procfs, about.pid)
        if found is None or seen is None or about.start_ticks not in (None, seen.start_ticks):
            return
        estimate = found.estimate
        ordered = sorted(estimate, key=lambda kind: -estimate[kind])
        target.kinds = {kind.value: estimate[kind] for kind in ordered if estimate[kind]}
        self._batch.add_kinds(target.id, self._wall_now, target.kinds)

    # ---- verdicts

    def _judge(self, target: Target) -> None:
        assert target.tree is not None
        subject = target.tree.subject
        if subject is None:
            return
        before, verdict = target.verdict, subject.diagnosis.verdict
        target.verdict = verdict
        is_first = not target.is_judged
        target.is_judged = True
        if verdict != before and not {before, verdict} <= CALM:
            why = subject.diagnosis.evidence[0] if subject.diagnosis.evidence else ""
            said = verdict.value if is_first else f"{before.value} → {verdict.value}"
            self._event(target.label, "verdict", f"{said}: {why}")
        if SEVERITY[verdict] < SEVERITY[Verdict.GROWING]:
            target.held_by = []
        elif self._now >= target.held_at_s + _HOLDERS_EVERY_S and subject.suspects:
            self._ask_holders(target, subject.identity, subject.suspects)

    def _ask_holders(self, target: Target, identity: Identity, fds: Sequence[int]) -> None:
        """Asks the process what holds its descriptors, in a thread: the answer may take seconds."""
        if self._asking is not None and self._asking.is_alive():
            return
        target.held_at_s = self._now

        def ask() -> None:
            groups = ask_owners(identity.pid, fds, within_s=_HOLDERS_WITHIN_S)
            if groups and target.about == identity:
                target.held_by = [clip(str(group)) for group in groups[:_SHOWN_HOLDERS]]

        self._asking = threading.Thread(target=ask, name="holdfast-watch-holders", daemon=True)
        self._asking.start()

    def _note_limit(self, target: Target) -> None:
        subject = None if target.tree is None else target.tree.subject
        if subject is None:
            return
        limit, fds = finite(subject.diagnosis.soft), subject.diagnosis.fds
        if limit is not None and target.limit is not None and limit != target.limit:
            self._event(target.label, "limit", f"its soft limit is {limit:,} now; it was {target.limit:,}")
        target.limit = limit if limit is not None else target.limit
        if limit and fds is not None:
            ratio = fds / limit
            if not target.nearly_full and ratio >= _NEARLY_FULL:
                target.nearly_full = True
                self._event(target.label, "limit", f"it holds {fds:,} of {limit:,} descriptors")
            elif ratio < _NOT_FULL:
                target.nearly_full = False

    # ---- Guards

    def _read_guard(self, target: Target) -> None:
        page = self._find_page(target)
        before = target.guard
        target.page = page
        if page is None:
            target.guard = None
            return
        seen = read_stat(self._procfs, page.pid)
        found = classify_health(page, time.monotonic_ns(), process_state="S" if seen is None else seen.state)
        target.guard = guard_facts(page, found)
        self._rename(target, page.name)
        self._note_health(target, before)

    def _find_page(self, target: Target) -> Heartbeat | None:
        if target.page is not None:
            found = read_heartbeat(target.page.pid, self._procfs)
            if found is not None and found.identity == target.page.identity:
                return found
        elif self._now < target.guard_at_s + _GUARD_EVERY_S:
            return read_heartbeat(target.root.pid, self._procfs)
        target.guard_at_s = self._now
        below = [] if target.tree is None else [one.pid for one in target.tree.processes]
        for pid in dict.fromkeys([target.root.pid, *below[:_MOST_GUARD_PIDS]]):
            found = read_heartbeat(pid, self._procfs)
            if found is not None:
                return found
        return None

    def _rename(self, target: Target, name: str) -> None:
        """Gives the target its Guard's name, which is known only some time after the process has started."""
        if target.named or not one_line(name):
            return
        target.named = True
        old = target.label
        target.label = unique_label(name, {one.label for one in self._targets if one is not target})
        if target.label != old:
            self._batch.rename(old, target.label)
            for event in self._events:
                if event["target"] == old:
                    event["target"] = target.label

    def _note_health(self, target: Target, before: GuardFacts | None) -> None:
        guard = target.guard
        assert guard is not None
        was = "ok" if before is None else before["health"]
        now = guard["health"]
        if now == was or {was, now} <= {"starting", "ok"}:
            return
        if now == "draining":
            self._event(target.label, "drain", guard["sentence"])
        else:
            self._event(target.label, "health", f"{was} → {now}: {guard['sentence']}")

    # ---- what is written and served

    def _facts(self, target: Target) -> dict[str, Any]:
        series = self._watch.series.get(target.tree.about) if target.tree is not None else None
        return facts_of(target, None if series is None else series.latest, self._wall_now)

    def _write_facts(self, target: Target) -> None:
        target.written_at_s = self._now
        self._batch.update_target(
            StoredTarget(
                id=target.id,
                label=target.label,
                key=target.key.as_text(),
                boot=target.boot,
                identity=target.root,
                process=target.process,
                seen=self._wall_now,
                facts=target.facts,
            )
        )

    def document(self, *, history: bool = True, only: str | None = None) -> StateDocument:
        """Returns the state after the last round; without `history` the charts are empty."""
        published = self.published
        targets: list[TargetState] = []
        for number, process, facts in published.targets:
            if only is not None and facts["target"] != only:
                continue
            if history:
                points, kinds = self.store.points(number), self.store.kinds(number)
                targets.append(with_history(facts, points, process, kinds, published.now))
            else:
                targets.append(public_facts(facts))
        return state_document(
            now=published.now,
            live=True,
            host=self.host,
            every_s=self.every_s,
            since=self.since,
            targets=targets,
            events=self.store.events(MOST_EVENTS) if history else (),
            problems=self.all_problems,
        )

    def close(self) -> None:
        """Writes what is left, and closes the store."""
        for target in self._targets:
            if target.alive and target.facts:
                self._write_facts(target)
        self.store.write(self._batch)
        if self._asking is not None:
            self._asking.join(_HOLDERS_WITHIN_S + 1)
        self.store.close()
