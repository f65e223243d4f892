"""Classifies a worker by its heartbeat: stopped, frozen, hung or failing.

stopped   a signal (SIGSTOP, a debugger) keeps the process from running
frozen    its guard's thread does not run: C code holds the GIL, or the kernel keeps the process waiting
hung      the interpreter runs, but the current job, or the loop that calls step(), does not go on
failing   the loop goes on, but nothing has succeeded for the progress timeout

Failures in a row alone do not make a worker failing: a restart does not end the outage of a server.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import StrEnum

from ..._util.text import counted, span_words
from .heartbeat import GuardState, Heartbeat


class Health(StrEnum):
    STARTING = "starting"
    OK = "ok"
    DRAINING = "draining"
    STOPPED = "stopped"
    FROZEN = "frozen"
    HUNG = "hung"
    FAILING = "failing"

    @property
    def is_bad(self) -> bool:
        return self in _BAD


_BAD = frozenset({Health.STOPPED, Health.FROZEN, Health.HUNG, Health.FAILING})
_STOPPED = frozenset("Tt")
_DISK = "D"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """When a clock is overdue.

    alive_s     the guard's thread reports once a second; importing a large library may stop it for some seconds
    progress_s  None: what the Guard itself was given
    """

    alive_s: float = 60.0
    progress_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    health: Health
    sentence: str
    since_s: float = 0.0  # how long the overdue clock has been silent


def classify_health(
    page: Heartbeat, now_ns: int, limits: HealthLimits | None = None, process_state: str = "S"
) -> HealthFinding:
    """Returns the state of a worker. `process_state` is the letter of `/proc/PID/stat`."""
    limits = limits or HealthLimits()
    alive_s = _since(page.alive_ns, now_ns)
    if process_state in _STOPPED:
        return HealthFinding(
            health=Health.STOPPED,
            since_s=alive_s,
            sentence="it is stopped by a signal or a debugger (SIGCONT resumes it)",
        )
    if alive_s > limits.alive_s:
        return HealthFinding(health=Health.FROZEN, since_s=alive_s, sentence=_frozen(alive_s, process_state))
    if page.state is GuardState.DRAINING:
        why = f": {page.reason}" if page.reason else ""
        return HealthFinding(health=Health.DRAINING, since_s=_since(page.drain_ns, now_ns), sentence=f"it drains{why}")
    return _classify_progress(page, now_ns, limits)


def _classify_progress(page: Heartbeat, now_ns: int, limits: HealthLimits) -> HealthFinding:
    timeout_s = limits.progress_s
    if timeout_s is None:
        timeout_s = page.progress_timeout_ns / 1e9 or float("inf")
    ok_s = _since(_success_ns(page), now_ns)
    if page.jobs_active:
        quiet_s = _since(page.job_step_ns or max(page.step_ns, page.job_started_ns), now_ns)
        if quiet_s > timeout_s:
            what = f"job {page.job}" if page.job else "its job"
            return _hung(quiet_s, f"{what} made no step for {span_words(quiet_s)}")
        return HealthFinding(health=Health.OK, sentence=_fine(page, ok_s))
    heard_s = _since(max(page.step_ns, page.ok_ns, page.fail_ns), now_ns)
    if page.step_ns and heard_s > timeout_s:
        return _hung(heard_s, f"its loop made no step for {span_words(heard_s)}")
    # A worker that reports jobs alone has none just now; after a failure it is idle, too, unless it goes on to fail.
    is_failing = page.fails_in_row > 0 and _since(page.fail_ns, now_ns) <= timeout_s
    if (page.ok_calls or is_failing) and ok_s > timeout_s:
        return _failing(ok_s, f"nothing has succeeded for {span_words(ok_s)}{_failures(page)}")
    if page.state is GuardState.STARTING:
        return HealthFinding(health=Health.STARTING, sentence="it has reported no success yet")
    return HealthFinding(health=Health.OK, sentence=_fine(page, ok_s))


def _since(then_ns: int, now_ns: int) -> float:
    return max(0, now_ns - then_ns) / 1e9


def _hung(since_s: float, what: str) -> HealthFinding:
    return HealthFinding(health=Health.HUNG, since_s=since_s, sentence=f"it is hung: {what}")


def _failing(since_s: float, what: str) -> HealthFinding:
    return HealthFinding(health=Health.FAILING, since_s=since_s, sentence=f"it is failing: it runs, but {what}")


def _frozen(alive_s: float, process_state: str) -> str:
    why = (
        "the kernel keeps it waiting for a disk or a network mount"
        if process_state == _DISK
        else "C code holds the GIL"
    )
    return f"it is frozen: no Python thread ran for {span_words(alive_s)}; {why}"


def _success_ns(page: Heartbeat) -> int:
    """Returns when something succeeded last, or when it could have for the first time."""
    return page.ok_ns or page.begun_ns or page.started_ns


def _failures(page: Heartbeat) -> str:
    if not page.fails_in_row:
        return ""
    name = errno.errorcode.get(page.errno, "")
    last = f"{name}: {page.error}" if name and page.error and name not in page.error else page.error or name
    return f" ({counted(page.fails_in_row, 'failure')}{f', last: {last}' if last else ''})"


def _fine(page: Heartbeat, ok_s: float) -> str:
    jobs = f"{counted(page.jobs_done, 'job')} done" if page.jobs_done else "it works"
    return f"{jobs}, last success {span_words(ok_s)} ago" if page.ok_ns else jobs


# ---- outages: a server that a worker polls does not answer

OUTAGE_FAILS = 20
OUTAGE_S = 30.0


class OutageWatch:
    """Reports once that failures in a row resemble an outage, and once that it has ended."""

    def __init__(self) -> None:
        self._began_ns = 0  # 0: there is none
        self._fails_before = 0

    def check(self, page: Heartbeat, now_ns: int) -> str:
        """Returns a sentence for the log; empty if there is nothing new."""
        row = page.fails_in_row
        success_ns = _success_ns(page)
        if self._began_ns and page.ok_ns > self._began_ns:
            fails, took_s = page.fails - row - self._fails_before, _since(self._began_ns, page.ok_ns)
            self._began_ns = 0
            return f"succeeds again after {counted(fails, 'failure')} in {span_words(took_s)}"
        if self._began_ns or row < OUTAGE_FAILS or _since(success_ns, now_ns) < OUTAGE_S:
            return ""
        self._began_ns, self._fails_before = success_ns, page.fails - row
        timeout_s = page.progress_timeout_ns / 1e9
        then = f"; it drains if nothing succeeds for {span_words(timeout_s)}" if timeout_s else ""
        what = f"nothing has succeeded for {span_words(_since(success_ns, now_ns))}{_failures(page)}"
        return f"{what}: this may be an outage, which a restart does not end, so it keeps trying{then}"
