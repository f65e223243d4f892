"""Observes one worker from outside: its process tree, the heartbeats in it, what it uses and what it achieves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from ....procfs.descriptors import count
from ....procfs.limits import number_after, process_limits
from ....procfs.processes import Identity
from ....procfs.procfs import REAL, read_or_none, readlink_or_none
from ..caps import FDS, RSS, parse_amount
from ..health import Health, HealthLimits, classify_health
from ..heartbeat import GuardState, Heartbeat, OpenPage, read_heartbeat
from ..signals import handles_signal
from .config import SuperviseOptions
from .near_limit import LimitWatch
from .outside_caps import CapWatches, ProcessUse, TreeUse, find_breach
from .process_tree import Tree, read_tree, signal_all
from .progress import ProgressWatch
from .worker_machine import RestartReason

_BAD_SCANS = 2
_NEW_PAGE_SCANS = 5  # processes without a page are asked for one in every fifth scan
_FRESH_S = 10.0
_DEFAULT_DRAIN_S = 900.0
_REASONS = {
    Health.STOPPED: RestartReason.STOPPED,
    Health.FROZEN: RestartReason.FROZEN,
    Health.HUNG: RestartReason.HUNG,
    Health.FAILING: RestartReason.FAILING,
}


class WorkerFinding(NamedTuple):
    """Why a worker must be started anew. `is_bad`: it does not work, or is over a hard cap."""

    reason: RestartReason
    sentence: str
    is_bad: bool
    scans: int = _BAD_SCANS  # in how many scans in a row it must be found
    ask_s: float = 0.0  # what a worker without a Guard gets to end, if longer than --stop-timeout


class WorkerWatch:
    """What is known of one worker since it started."""

    def __init__(self, options: SuperviseOptions, reaper: int, root: int, number: int, now_s: float) -> None:
        self._options = options
        self._reaper = reaper
        self._root = root
        self.tree: Tree = {}
        self.pages: dict[int, Heartbeat] = {}
        self.sentence = ""  # of its health
        self.is_draining = False
        self.has_guard = False
        self.had_success = False  # as its guard, or the probe of its progress, has seen
        self.drained_without_success = False
        self.drain_reason = ""  # why it drained by its own decision, as its guard reported last
        self.asked_code = 0  # the exit code by which its guard asks for a restart
        self.wants_pss = False
        self._pss: tuple[int, float] | None = None
        self._scans = 0
        self._suspect: tuple[RestartReason, int] | None = None
        self._stopped_since_s: dict[int, float] = {}
        self._ignored_until_s = 0.0
        self._last_page = OpenPage()
        self.limits = LimitWatch()
        self._cap_watches: CapWatches = {}
        self.note = ""  # what is to be reported, and is no reason to end the worker
        self.progress = self._make_progress(number, now_s)

    def _make_progress(self, number: int, now_s: float) -> ProgressWatch | None:
        options = self._options
        what = options.progress_file or options.progress_http
        if what is None:
            return None
        what = what.replace("{worker}", str(number))
        return ProgressWatch(what, options.probe_s, now_s, is_page=options.progress_http is not None)

    @property
    def guarded(self) -> list[Heartbeat]:
        """The heartbeats of the processes with an active Guard."""
        return _active(self.pages.values())

    @property
    def drain_s(self) -> float | None:
        """How long a drain may take; None: there is no Guard."""
        return drain_time_s(self.guarded, self._options.drain_s)

    def python_process(self) -> int | None:
        """Returns the first process that runs Python; None if there is none."""
        for pid in self.tree:
            program = readlink_or_none(REAL, f"/proc/{pid}/exe") or ""
            if os.path.basename(program).startswith(("python", "pypy")):
                return pid
        return None

    def refresh(self) -> None:
        """Reads the tree and all heartbeats in it: before signals are sent."""
        self.tree = read_tree(self._reaper)
        self._read_pages(self.tree)

    def scan(self, now_s: float) -> WorkerFinding | None:
        """Returns why the worker must be started anew, or None. It is called about once a second."""
        self._scans += 1
        self.tree = read_tree(self._reaper)
        self._read_pages(
            pid
            for pid in self.tree
            if pid == self._root or pid in self.pages or (pid + self._scans) % _NEW_PAGE_SCANS == 0
        )
        found = self._health(now_s)
        if found is None or not found.is_bad:
            found = self._caps(now_s) or found
        if found is None or not found.is_bad:
            found = self._progress_finding(now_s) or found
        if found is None or now_s < self._ignored_until_s:
            self._suspect = None
            return None
        times = self._suspect[1] + 1 if self._suspect and self._suspect[0] is found.reason else 1
        self._suspect = found.reason, times
        return found if times >= found.scans else None

    def restart_clock(self, now_s: float, gap_s: float) -> None:
        """Gives the worker time: it and the supervisor were stopped together, as a paused container is."""
        progress_s = max([self._options.progress_s or 0.0, *(page.progress_timeout_ns / 1e9 for page in self.guarded)])
        self._ignored_until_s = now_s + min(gap_s, max(self._options.frozen_s, progress_s))
        self._stopped_since_s.clear()
        self.limits.restart_clock()
        if self.progress is not None:
            self.progress.restart_clock(now_s)

    def learned_pss(self, total_bytes: int | None, now_s: float) -> None:
        """Takes the memory in use without what the processes share; None: it could not be read."""
        self.wants_pss = False
        self._pss = (self._rss() if total_bytes is None else total_bytes), now_s

    # ---- heartbeats

    def _read_pages(self, pids: Iterable[int]) -> None:
        self.pages = {pid: page for pid in pids if (page := read_heartbeat(pid)) is not None}
        self.is_draining = False
        guarded = self.guarded
        if guarded:
            self._last_page.open(guarded[0].pid)
        for page in guarded:
            self._learn(page)
            self.is_draining |= page.state is GuardState.DRAINING

    def _learn(self, page: Heartbeat) -> None:
        self.has_guard = True
        self.had_success |= page.ok_ns > 0
        if page.drain_ns:
            self.drain_reason, self.asked_code = page.reason, page.exit_code
            self.drained_without_success = was_failing_at_drain(page)

    def ended(self) -> None:
        """Reads how its Guard has ended. The process is gone, and its page may be removed."""
        page = self._last_page.read()
        if page is not None:
            self._learn(page)
        self.close()

    def close(self) -> None:
        self._last_page.close()

    def _health(self, now_s: float) -> WorkerFinding | None:
        worst: WorkerFinding | None = None
        self.sentence = ""
        stopped = [pid for pid in {self._root, *self.pages} if pid in self.tree and self.tree[pid].state == "T"]
        self._stopped_since_s = {pid: self._stopped_since_s.get(pid, now_s) for pid in stopped}
        for pid in stopped:
            self.sentence = self._whose(pid) + "it is stopped by a signal (SIGCONT resumes it)"
            if now_s - self._stopped_since_s[pid] >= self._options.frozen_s:
                return WorkerFinding(RestartReason.STOPPED, self.sentence, is_bad=True)
        for page in self.guarded:
            found = self._classify(page)
            worst = worst or found
        return worst

    def _classify(self, page: Heartbeat) -> WorkerFinding | None:
        state = self.tree[page.pid].state
        if state in "Tt":  # a stopped one is handled above; one in a debugger is left to whoever debugs it
            return None
        limits = HealthLimits(alive_s=self._options.frozen_s, progress_s=self._options.progress_s)
        now_ns = time.monotonic_ns()
        found = classify_health(page, now_ns, limits, state)
        if found.health is Health.DRAINING:
            # A drain waits for the current job; one that makes no step will not end. Without a job, threads may still
            # wait for an answer: they get the time that its Guard gives them.
            anyway = classify_health(replace(page, state=GuardState.RUNNING), now_ns, limits, state)
            given_s = self.drain_s or 0.0
            if anyway.health is Health.HUNG or (anyway.health is Health.FAILING and found.since_s > given_s):
                found = anyway
        self.sentence = self._whose(page.pid) + found.sentence
        if not found.health.is_bad:
            return None
        return WorkerFinding(_REASONS[found.health], self.sentence, is_bad=True)

    def _whose(self, pid: int) -> str:
        return "" if pid == self._root else f"process {pid}: "

    # ---- caps and progress

    def _caps(self, now_s: float) -> WorkerFinding | None:
        caps = self._options.caps
        if RestartReason.FDS not in caps and self._options.watches_limit:
            near = self._near_limit(now_s)
            if near is not None:
                return near
        if not caps or not self.tree:
            return None
        with_fds = RestartReason.FDS in caps
        use = TreeUse(
            processes=tuple(
                ProcessUse(pid, count(REAL, pid) if with_fds else None, self._fd_limit(pid), stat.threads)
                for pid, stat in sorted(self.tree.items(), key=lambda one: one[0] != self._root)
            ),
            memory_bytes=self._memory(now_s),
        )
        found = find_breach(caps, use, self._cap_watches)
        return None if found is None else WorkerFinding(found.reason, found.sentence, found.is_hard, scans=1)

    def _near_limit(self, now_s: float) -> WorkerFinding | None:
        """Looks at the processes without a Guard, which has caps of its own."""
        found = self.limits.scan((pid for pid in self.tree if pid not in self.pages), now_s)
        if found is None:
            return None
        sentence = self._whose(found.pid) + found.sentence
        if found.must_end:
            ask_s = self._options.drain_s or _DEFAULT_DRAIN_S
            return WorkerFinding(RestartReason.FDS, sentence, is_bad=False, scans=1, ask_s=ask_s)
        self.note = sentence
        return None

    def _fd_limit(self, pid: int) -> int | None:
        cap = self._options.caps.get(RestartReason.FDS)
        amounts = () if cap is None else (parse_amount(one, FDS.name) for one in (cap.soft, cap.hard))
        if not any(isinstance(amount, float) for amount in amounts):
            return None
        soft = process_limits(REAL, pid, None, None)[0].soft
        return None if soft is None or soft == float("inf") else int(soft)

    def _rss(self) -> int:
        return sum(stat.rss_bytes for stat in self.tree.values())

    def _memory(self, now_s: float) -> int | None:
        """Returns the memory in use; None while it is being read. What processes share is in the RSS of each, so that
        their sum only decides when a closer scan is due."""
        cap = self._options.caps.get(RestartReason.RSS)
        if cap is None:
            return None
        total = self._rss()
        if len(self.tree) == 1 or not RSS.resolve(cap, None).exceeded(total):
            return total
        if self._pss is not None and now_s - self._pss[1] < _FRESH_S:
            return self._pss[0]
        self.wants_pss = True
        return None

    def _progress_finding(self, now_s: float) -> WorkerFinding | None:
        sentence = "" if self.progress is None else self.progress.overdue(now_s)
        self.had_success |= self.progress is not None and self.progress.has_changed
        return WorkerFinding(RestartReason.PROGRESS, sentence, is_bad=True, scans=1) if sentence else None


def was_failing_at_drain(page: Heartbeat) -> bool:
    """Returns whether a Guard began to drain at a time when nothing had succeeded for too long."""
    then = replace(page, state=GuardState.RUNNING)
    return classify_health(then, page.drain_ns).health is Health.FAILING


def _active(pages: Iterable[Heartbeat]) -> list[Heartbeat]:
    return [page for page in pages if page.state is not GuardState.ENDED]


def read_pages(pids: Iterable[int]) -> list[Heartbeat]:
    """Returns the heartbeats of those processes that have an active Guard."""
    return _active(page for pid in pids if (page := read_heartbeat(pid)) is not None)


def drain_time_s(pages: list[Heartbeat], given_s: float | None) -> float | None:
    """Returns how long a drain may take: `given_s`, or the longest time of the Guards; None: there is no Guard."""
    if not pages:
        return None
    return given_s or max(page.drain_timeout_ns for page in pages) / 1e9 or _DEFAULT_DRAIN_S


def ask_guards(pages: list[Heartbeat]) -> int:
    """Asks the guarded processes to finish their job and end, also those that are stopped. Returns how many."""
    asked = guards_that_catch(pages, signal.SIGTERM)
    sent = signal_all(asked, signal.SIGTERM)
    signal_all(asked, signal.SIGCONT)
    return sent


def guards_that_catch(pages: list[Heartbeat], number: int) -> list[Identity]:
    """Returns the guarded processes with a handler for this signal: any other would be ended by it."""
    return [page.identity for page in pages if handles_signal(page.pid, number)]


def pss_of(pids: list[int]) -> int:
    """Sums the proportional size of processes: shared memory counts once. It may block on a process that hangs."""
    texts = [read_or_none(REAL, f"/proc/{pid}/smaps_rollup") or "" for pid in pids]
    return 1024 * sum(number_after(text, "Pss:") or 0 for text in texts)
