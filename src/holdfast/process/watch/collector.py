"""Samples the watched processes in rounds: counts every round, kinds every minute, snapshots as their cost allows.

A target is what is watched under one label: a pid, a process that --name finds, or one worker of a supervisor. When its
process is replaced, by a supervisor, by systemd or by hand, the target goes on with the new one.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..._util.text import one_line
from ...procfs.limits import finite
from ...procfs.processes import Identity, read_stat, sample_kinds
from ...procfs.procfs import REAL, ProcFS
from ...procfs.snapshot import AllProcesses, read_all_processes
from ..doctor.diagnose import SEVERITY
from ..doctor.model import JobSample, Verdict
from ..doctor.sampler import EVERY_S, Watch
from ..fd_owners.agent import ask_owners
from ..guard.health import classify_health
from ..guard.heartbeat import Heartbeat, HeartbeatIndex, read_heartbeat
from .alerts import SUCCESSOR_S, VerdictHold, condition_of
from .database import StoredTarget
from .documents import public_facts, with_history
from .finder import RoundLog, Selection, TargetFinder, tiers_of
from .state import MAX_EVENTS, EventState, GuardFacts, StateDocument, TargetState, state_document
from .store import MAX_TARGETS, Batch, Store
from .target import (
    Target,
    alert_facts,
    died_of_exhaustion,
    ended_facts,
    facts_of,
    first_profile_facts,
    guard_facts,
    is_guard_reserve,
    last_words,
    point_of,
)
from .tree import clip

_KINDS_EVERY_S = 60.0
_FACTS_EVERY_S = 15.0
_GUARD_EVERY_S = 15.0
_MAX_GUARD_PIDS = 64
_HOLDERS_EVERY_S = 900.0
_HOLDERS_WITHIN_S = 3.0
_SHOWN_HOLDERS = 3
# Ended processes of a --name stay in the document for that long.
_SHOW_ENDED_S = 3600.0
_NEARLY_FULL, _NOT_FULL = 0.9, 0.8
CALM = frozenset({Verdict.OK, Verdict.UNCLEAR, Verdict.SETTLING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What requests read: replaced as a whole after each round."""

    number: int
    now: float
    targets: tuple[tuple[int, int, dict[str, Any]], ...] = ()  # id in the store, process, facts
    round_s: float = 0.0
    rounds: int = 0


class WatchCollector:
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
        self._watch = Watch((), procfs, clock, every_s=every_s, tiers=lambda is_root: tiers_of(every_s, is_root))
        self._number = 0
        self._log = RoundLog(now=clock(), wall=wall())
        self._finder = TargetFinder(
            selection, store, self._watch, self._log, every_s=every_s, procfs=procfs, clock=clock, cost_clock=cost_clock
        )
        self._asking: threading.Thread | None = None
        self._living = 1
        self._others: AllProcesses | None = None  # of this round, as the next
        self._pages = HeartbeatIndex()
        self.since = self._finder.since
        for name, value in (("since", self.since), ("every_s", every_s), ("host", self.host)):
            self._log.batch.set_fact(name, value)
        self.published = Published(number=0, now=self._log.wall)

    # ---- one round

    def round(self) -> list[EventState]:
        """Samples everything once and writes it. Returns the new events."""
        began = self._clock()
        self._log.now, self._log.wall = began, self._wall()
        self._log.events, self._log.messages = [], []
        self._others, self._pages = None, HeartbeatIndex()
        self._finder.discover()
        roots = tuple(one.root.pid for one in self._finder.targets if one.alive)
        self._living = max(1, len(roots))
        if roots != self._watch.roots:
            self._watch.roots = roots
            self._watch.find_soon()
        self._watch.sample()
        for target in self._finder.targets:
            if target.alive:
                self._update(target)
            if target.current:
                self._announce(target)
        self._forget_ended()
        for event in self._log.events:
            self._log.batch.add_event(event)
        batch, self._log.batch = self._log.batch, Batch()
        self.store.write(batch)
        self._publish(began)
        return self._log.events

    def _publish(self, began: float) -> None:
        self._number += 1
        shown = [
            (one.id, one.process, one.facts)
            for one in self._finder.targets
            if one.current and (one.alive or not self._is_past(one))
        ]
        self.published = Published(
            number=self._number,
            now=self._log.wall,
            targets=tuple(shown),
            round_s=self._clock() - began,
            rounds=self._number,
        )

    def _is_past(self, one: Target) -> bool:
        return one.key.source.startswith("name:") and self._log.wall - one.ended > _SHOW_ENDED_S

    @property
    def messages(self) -> list[EventState]:
        """What of the last round is worth a message to a person; `round` returns everything that happened."""
        return self._log.messages

    @property
    def all_problems(self) -> list[str]:
        """What watch cannot do at the moment."""
        found = [*self.problems, self.store.problem]
        if self._finder.is_full:
            found.append(f"only {MAX_TARGETS} processes are watched, more were found: use a longer --name")
        return [problem for problem in found if problem]

    def has_seen(self, name: str) -> bool:
        """Whether a process of this --name was found."""
        return any(one.current and one.key.source == f"name:{name}" for one in self._finder.targets) or bool(
            self._finder.supervisors
        )

    def target_facts(self, label: str) -> dict[str, Any]:
        return next((one.facts for one in self._finder.targets if one.label == label), {})

    @property
    def is_over(self) -> bool:
        """Whether everything that was asked for has ended, and nothing can come back."""
        if self.selection.names or self._finder.waiting or self._finder.supervisors:
            return False
        return not any(one.alive for one in self._finder.targets)

    # ---- one target

    def _update(self, target: Target) -> None:
        series = self._watch.alive.get(target.root.pid)
        if series is None or series.identity != target.root:
            self._end(target)
            return
        assert target.tree is not None
        target.seen = self._log.wall
        self._read_guard(target)
        page = target.page
        jobs = [] if page is None else [JobSample(job=job, fds=fds) for job, fds in page.jobs]
        cap = None if page is None else page.fd_soft_cap or page.fd_hard_cap or None
        guarded = None if page is None else page.identity
        judged = target.tree.refresh(jobs, cap, guarded, self._read_others, self._living)
        self._follow_subject(target)
        self._add_sample(target)
        self._add_kinds(target)
        if judged:
            self._judge(target)
        self._note_limit(target)
        self._renew_facts(target, judged)
        if self._log.now >= target.written_at_s + _FACTS_EVERY_S or any(
            one["target"] == target.label for one in self._log.events
        ):
            self._write_facts(target)

    def _read_others(self) -> AllProcesses:
        if self._others is None:
            self._others = read_all_processes(self._procfs)
        return self._others

    def _end(self, target: Target) -> None:
        target.alive = False
        target.ended = self._log.wall
        if died_of_exhaustion(target):
            target.verdict = Verdict.EXHAUSTED
        if not self._finder.is_followed(target):
            self._log.report(target.label, "end", f"pid {target.root.pid} ended{last_words(target)}")
        target.facts = target.facts or self._facts(target)
        target.facts = target.facts | ended_facts(target)
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
        before = self._watch.alive.get(target.about.pid) if target.about is not None else None
        if before is None or before.identity != target.about:
            target.hold = VerdictHold()  # a verdict ends with its process
        target.process += 1
        if about != target.root:
            series = self._watch.series.get(about)
            samples = [] if series is None else series.samples
            offset = self._log.wall - self._log.now
            if samples:
                self._log.batch.drop_samples(target.id, samples[0].at_s + offset)
            for sample in samples:
                self._log.batch.add_sample(target.id, target.process, point_of(sample, offset))
        target.about = about
        target.limit, target.nearly_full = None, False  # that of the other process has not changed
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
        point = point_of(series.latest, self._log.wall - self._log.now)
        self._log.batch.add_sample(target.id, target.process, point)

    def _add_kinds(self, target: Target) -> None:
        if self._log.now < target.kinds_at_s + _KINDS_EVERY_S:
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
        self._log.batch.add_kinds(target.id, self._log.wall, target.kinds)

    # ---- verdicts

    def _judge(self, target: Target) -> None:
        assert target.tree is not None
        subject = target.tree.subject
        if subject is None:
            return
        before = target.verdict
        target.verdict = verdict = target.hold.step(self._log.now, subject.diagnosis.verdict)
        is_first = not target.is_judged
        target.is_judged = True
        if verdict != before and not {before, verdict} <= CALM:
            why = subject.diagnosis.evidence[0] if subject.diagnosis.evidence else ""
            change = verdict.value if is_first else f"{before.value} → {verdict.value}"
            self._log.report(target.label, "verdict", f"{change}: {why}")
        if SEVERITY[verdict] < SEVERITY[Verdict.GROWING]:
            target.held_by = []
        elif self._log.now >= target.held_at_s + _HOLDERS_EVERY_S and subject.suspects:
            self._ask_holders(target, subject.identity, subject.suspects)

    def _announce(self, target: Target) -> None:
        """Notices a restart loop, and decides whether there is news for a person."""
        before = target.window.sentence
        if target.window.step(self._log.now, target.restarts) and not before:
            self._log.report(target.label, "loop", target.window.sentence)
        found = condition_of(
            loop=target.window.sentence,
            is_alive=target.alive,
            is_gone=self._is_gone(target),
            verdict=target.verdict,
            health=None if target.guard is None else target.guard["health"],
            text=target.facts.get("sentence", ""),
        )
        message = target.announcer.step(self._log.wall, found)
        if message is not None:
            self._log.messages.append(
                EventState(t=self._log.wall, target=target.label, kind=message.kind, text=clip(one_line(message.text)))
            )
        is_known = (target.restarts, target.window.sentence or None) == tuple(
            target.facts.get(name) for name in ("restarts", "restart_loop")
        )
        if not is_known or message is not None:
            target.facts = target.facts | alert_facts(target)
            self._write_facts(target)

    def _is_gone(self, target: Target) -> bool:
        """Whether its process has ended, and no other is expected to take its place."""
        if target.alive or self._finder.is_followed(target):
            return target.is_given_up and not target.alive
        can_follow = self.selection.names or self._finder.supervisors
        return not can_follow or died_of_exhaustion(target) or self._log.wall - target.ended >= SUCCESSOR_S

    def _ask_holders(self, target: Target, identity: Identity, fds: Sequence[int]) -> None:
        """Asks the process what holds its descriptors, in a thread: the answer may take seconds."""
        if self._asking is not None and self._asking.is_alive():
            return
        target.held_at_s = self._log.now

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
        is_reserve = target.page is not None and is_guard_reserve(limit, target.limit, finite(subject.diagnosis.hard))
        if limit is not None and target.limit is not None and limit != target.limit and not is_reserve:
            self._log.report(target.label, "limit", f"its soft limit is {limit:,} now; it was {target.limit:,}")
        target.limit = limit if limit is not None else target.limit
        if limit and fds is not None:
            ratio = fds / limit
            if not target.nearly_full and ratio >= _NEARLY_FULL:
                target.nearly_full = True
                self._log.report(target.label, "limit", f"it holds {fds:,} of {limit:,} descriptors")
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
        self._finder.rename(target, page.name)
        self._note_health(target, before)

    def _find_page(self, target: Target) -> Heartbeat | None:
        if target.page is not None:
            found = read_heartbeat(target.page.pid, self._procfs)
            if found is not None and found.identity == target.page.identity:
                return found
        elif self._log.now < target.guard_at_s + _GUARD_EVERY_S:
            has_page = self._pages.has(target.root, target.uid)
            return read_heartbeat(target.root.pid, self._procfs) if has_page else None
        target.guard_at_s = self._log.now
        users = {target.root: target.uid}
        for one in [] if target.tree is None else list(target.tree.processes.values())[:_MAX_GUARD_PIDS]:
            users.setdefault(one.identity, one.snapshot.process.uid)
        for identity, uid in users.items():
            found = read_heartbeat(identity.pid, self._procfs) if self._pages.has(identity, uid) else None
            if found is not None:
                return found
        return None

    def _note_health(self, target: Target, before: GuardFacts | None) -> None:
        guard = target.guard
        assert guard is not None
        was = "ok" if before is None else before["health"]
        now = guard["health"]
        if now == was or {was, now} <= {"starting", "ok"}:
            return
        if now == "draining":
            self._log.report(target.label, "drain", guard["sentence"])
        else:
            self._log.report(target.label, "health", f"{was} → {now}: {guard['sentence']}")

    # ---- what is written and served

    def _renew_facts(self, target: Target, judged: bool) -> None:
        """Makes the facts anew where something has changed; else it is only later."""
        series = self._watch.series.get(target.about or target.root)
        latest = None if series is None else series.latest
        is_same = bool(target.facts) and latest is not None and latest.fds == target.facts.get("fds")
        if judged or not is_same or target.guard != target.facts.get("guard"):
            target.facts = self._facts(target)
        elif target.started is not None:
            target.facts = target.facts | {"uptime_s": round(self._log.wall - target.started, 1)}

    def _facts(self, target: Target) -> dict[str, Any]:
        series = self._watch.series.get(target.tree.about) if target.tree is not None else None
        return facts_of(target, None if series is None else series.latest, self._log.wall)

    def _write_facts(self, target: Target) -> None:
        target.written_at_s = self._log.now
        self._log.batch.update_target(
            StoredTarget(
                id=target.id,
                label=target.label,
                key=target.key.as_text(),
                boot=target.boot,
                identity=target.root,
                process=target.process,
                seen=self._log.wall,
                facts=target.facts | first_profile_facts(target),
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
            events=self.store.events(MAX_EVENTS) if history else (),
            problems=self.all_problems,
        )

    def close(self) -> None:
        """Writes what is left, and closes the store."""
        for target in self._finder.targets:
            if target.alive and target.facts:
                self._write_facts(target)
        self.store.write(self._log.batch)
        if self._asking is not None:
            self._asking.join(_HOLDERS_WITHIN_S + 1)
        self.store.close()
