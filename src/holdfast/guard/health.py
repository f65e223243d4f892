"""Classifies a worker by its heartbeat: frozen, hung and dark are told apart.

stopped   a signal (SIGSTOP, a debugger) keeps the process from running
frozen    its guard's thread does not run: C code holds the GIL, or the kernel keeps the process waiting
hung      the interpreter runs, but the current job, or the loop that calls step(), does not go on
dark      the loop goes on, but nothing succeeds: ok() is overdue, or too many failures came in a row
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import StrEnum

from .._util.text import counted, span_words
from .heartbeat import GuardState, Heartbeat


class Health(StrEnum):
    STARTING = "starting"
    OK = "ok"
    DRAINING = "draining"
    STOPPED = "stopped"
    FROZEN = "frozen"
    HUNG = "hung"
    DARK = "dark"

    @property
    def is_bad(self) -> bool:
        return self in _BAD


_BAD = frozenset({Health.STOPPED, Health.FROZEN, Health.HUNG, Health.DARK})
_STOPPED = frozenset("Tt")
_DISK = "D"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """When a clock is overdue.

    alive_s     the guard's thread beats once a second; importing a large library may stop it for some seconds
    progress_s  None: what the Guard itself was given
    fails       that many failures in a row, over at least `fails_s` (less where `progress_s` is shorter), are dark
    """

    alive_s: float = 60.0
    progress_s: float | None = None
    fails: int = 20
    fails_s: float = 30.0


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
    ok_s = _since(page.ok_ns or page.begun_ns or page.started_ns, now_ns)
    if page.jobs_active:
        quiet_s = _since(max(page.step_ns, page.job_started_ns), now_ns)
        if quiet_s > timeout_s:
            what = f"job {page.job}" if page.job else "its job"
            return _hung(quiet_s, f"{what} made no step for {span_words(quiet_s)}")
        return HealthFinding(health=Health.OK, sentence=_fine(page, ok_s))
    if page.fails_in_row >= limits.fails and ok_s >= min(limits.fails_s, timeout_s):
        return _dark(ok_s, f"{counted(page.fails_in_row, 'failure')} in a row{_last_error(page)}")
    heard_s = _since(max(page.step_ns, page.ok_ns, page.fail_ns), now_ns)
    if page.step_ns and heard_s > timeout_s:
        return _hung(heard_s, f"its loop made no step for {span_words(heard_s)}")
    if (page.ok_calls or page.fails) and ok_s > timeout_s:
        return _dark(ok_s, f"nothing succeeded for {span_words(ok_s)}{_last_error(page)}")
    if page.state is GuardState.STARTING:
        return HealthFinding(health=Health.STARTING, sentence="it has reported no success yet")
    return HealthFinding(health=Health.OK, sentence=_fine(page, ok_s))


def _since(then_ns: int, now_ns: int) -> float:
    return max(0, now_ns - then_ns) / 1e9


def _hung(since_s: float, what: str) -> HealthFinding:
    return HealthFinding(health=Health.HUNG, since_s=since_s, sentence=f"it is hung: {what}")


def _dark(since_s: float, what: str) -> HealthFinding:
    return HealthFinding(health=Health.DARK, since_s=since_s, sentence=f"it is dark: it runs, but {what}")


def _frozen(alive_s: float, process_state: str) -> str:
    why = (
        "the kernel keeps it waiting for a disk or a network mount"
        if process_state == _DISK
        else "C code holds the GIL"
    )
    return f"it is frozen: no Python thread ran for {span_words(alive_s)}; {why}"


def _last_error(page: Heartbeat) -> str:
    name = errno.errorcode.get(page.errno, "")
    if not page.error:
        return f" ({name})" if name else ""
    return f" ({name}: {page.error})" if name and name not in page.error else f" ({page.error})"


def _fine(page: Heartbeat, ok_s: float) -> str:
    jobs = f"{counted(page.jobs_done, 'job')} done" if page.jobs_done else "it works"
    return f"{jobs}, last success {span_words(ok_s)} ago" if page.ok_ns else jobs
