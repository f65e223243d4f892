"""Decides what follows the end of a worker: nothing, a restart now or later, or giving up. It logs the decision."""

from __future__ import annotations

import os
from typing import NamedTuple

from ...._util.process import describe_exit, exit_cause
from ...._util.text import counted, span_words
from .config import SuperviseOptions
from .outside_caps import RESOURCES
from .policy import AT_ONCE_CODE, RECYCLE_CODE, RestartMode, RestartReason
from .reporting import SupervisorReport
from .status import WorkerState
from .supervised_worker import SupervisedWorker

_NO_SUCCESS = (RestartReason.FAILING, RestartReason.PROGRESS)


class _End(NamedTuple):
    """How a worker ended. `found_s` is when its end, or what made it necessary, was found."""

    worker: SupervisedWorker
    reason: RestartReason
    how: str
    uptime_s: float
    found_s: float
    cap_is_too_low: bool = False

    @property
    def at_start(self) -> bool:
        """Whether it failed at its start: it had a Guard and no success yet, or each one is above its cap at once."""
        watch = self.worker.watch
        return self.cap_is_too_low or (watch is not None and watch.has_guard and not watch.had_success)


class WorkerRestarter:
    def __init__(self, options: SuperviseOptions, report: SupervisorReport) -> None:
        self._options = options
        self._report = report

    def decide(self, worker: SupervisedWorker, now_s: float) -> None:
        """A worker has ended, and nothing of it is left."""
        code = None if worker.status is None else os.waitstatus_to_exitcode(worker.status)
        end = _End(worker, RestartReason.EXIT, _describe(worker, code), _uptime_s(worker, now_s), now_s)
        escalation = worker.escalation
        if escalation is not None:
            plan = escalation.plan
            reason = plan.reason or RestartReason.RECYCLE
            how = f"{end.how} ({reason}: {plan.sentence})"
            end = end._replace(reason=reason, how=how, found_s=escalation.began_s)
            if reason in _NO_SUCCESS:
                self._wait_for_success(end, now_s)
            elif reason in RESOURCES and worker.policy.is_cap_too_low(_uptime_s(worker, escalation.began_s)):
                how = how.removesuffix(")") + f", again right after its start: raise --{reason})"
                self._fail(end._replace(how=how, cap_is_too_low=True), now_s)
            elif plan.is_planned:
                self._recycle(end, now_s, is_asked=reason is RestartReason.RECYCLE)
            else:
                self._fail(end, now_s)
        elif code != 0 and worker.watch is not None and worker.watch.drained_without_success:
            end = end._replace(reason=RestartReason.FAILING, how=f"{end.how} ({worker.watch.drain_reason})")
            self._wait_for_success(end, now_s)
        elif code is not None and _asks_for_restart(worker, code):
            why = worker.watch.drain_reason if worker.watch is not None else ""
            end = end._replace(reason=RestartReason.RECYCLE, how=f"{end.how} ({why or 'it asks for a restart'})")
            self._recycle(end, now_s, is_asked=False)
        elif code == 0 and self._options.restart is RestartMode.ALWAYS:
            self._recycle(end, now_s, is_asked=False)
        elif code == 0:
            worker.set_state(WorkerState.DONE, f"it {end.how}")
            self._report.log("done", f"{self._report.name_of(worker)} {end.how}, and is done", worker)
        else:
            is_signal = not worker.run_errno and (code is None or code < 0)
            why = f" ({worker.watch.drain_reason})" if worker.watch is not None and worker.watch.drain_reason else ""
            reason = RestartReason.SIGNAL if is_signal else RestartReason.EXIT
            self._fail(end._replace(reason=reason, how=f"{end.how}{why}"), now_s)

    def stopped(self, worker: SupervisedWorker, now_s: float) -> None:
        """A worker has ended because the supervisor stops."""
        code = None if worker.status is None else os.waitstatus_to_exitcode(worker.status)
        how = _describe(worker, code)
        worker.set_state(WorkerState.DONE, f"it {how}")
        if not worker.run_errno:
            text = f"{self._report.name_of(worker)} {how} after {span_words(_uptime_s(worker, now_s))}"
            self._report.log("ended", text, worker)

    def not_started(self, worker: SupervisedWorker, number: int, now_s: float) -> None:
        """A worker was not started, for lack of processes, memory or descriptors: that may change at any time."""
        end = _End(worker, RestartReason.EXIT, f"cannot be started now: {os.strerror(number)}", 0.0, now_s)
        wait_s = worker.policy.after_shortage()
        self._schedule(end, now_s + wait_s, f"it is tried again in {wait_s:.1f} s", "warning")

    def _recycle(self, end: _End, now_s: float, *, is_asked: bool) -> None:
        if self._options.restart is RestartMode.NEVER and not is_asked:
            self._leave(end, "ended", "it is not restarted (--restart never)")
            return
        wait_s = end.worker.policy.after_recycle(end.uptime_s)
        if wait_s:
            self._schedule(end, now_s + wait_s, f"starts again in {wait_s:g} s, as it ends too quickly", "warning")
        else:
            self._schedule(end, now_s, "starts again at once", "info")

    def _wait_for_success(self, end: _End, now_s: float) -> None:
        """A worker ended because nothing succeeded, which a restart need not mend: it waits, and keeps trying."""
        if self._options.restart is RestartMode.NEVER:
            self._leave(end, "ended", "it is not restarted (--restart never)")
            return
        policy = end.worker.policy
        wait_s = policy.after_no_success(had_success=end.worker.watch is not None and end.worker.watch.had_success)
        when = f"starts again in {wait_s:.1f} s"
        if policy.unsuccessful > 1:
            when += f", and keeps trying: nothing succeeded in {policy.unsuccessful:,} workers in a row"
        self._schedule(end, now_s + wait_s, when, "warning")

    def _fail(self, end: _End, now_s: float) -> None:
        if self._options.restart is RestartMode.NEVER:
            self._leave(end, "ended", "it is not restarted (--restart never)")
            return
        policy = end.worker.policy
        found_s = min(end.uptime_s, max(0.0, end.found_s - end.worker.started_s))
        wait_s = policy.after_failure(now_s, found_s, at_start=end.at_start)
        if wait_s is None:
            window = span_words(self._options.rules.window_s)
            times = f"{counted(policy.failed_starts, 'failure')} at its start in {window}"
            self._leave(end, "gave-up", f"gives up on it after {times}")
            return
        due_s = max(now_s, end.found_s + wait_s)  # ending the worker may have taken some of the time
        self._schedule(end, due_s, f"starts again in {due_s - now_s:.1f} s", "warning")

    def _schedule(self, end: _End, due_s: float, when: str, level: str) -> None:
        end.worker.due_s, end.worker.restart_reason = due_s, end.reason
        self._log_end(end, "ended", when, level)
        end.worker.set_state(WorkerState.BACKOFF, f"it {end.how}; {when}")

    def _leave(self, end: _End, kind: str, why: str) -> None:
        self._log_end(end, kind, why, "error")
        end.worker.set_state(WorkerState.FAILED, f"it {end.how}; {why}")

    def _log_end(self, end: _End, kind: str, then: str, level: str) -> None:
        text = f"{self._report.name_of(end.worker)} {end.how} after {span_words(end.uptime_s)}; {then}"
        self._report.log(kind, text, end.worker, end.reason, level)


def _describe(worker: SupervisedWorker, code: int | None) -> str:
    if worker.run_errno:
        return worker.sentence
    if code is None:
        return "was lost: its reaper process was killed"
    if code < 0 and worker.escalation is not None:
        return f"was ended by {exit_cause(code)}"
    return describe_exit(code)


def _uptime_s(worker: SupervisedWorker, now_s: float) -> float:
    return max(0.0, min(worker.ended_s, now_s) - worker.started_s)


def _asks_for_restart(worker: SupervisedWorker, code: int) -> bool:
    asked = worker.watch.asked_code if worker.watch is not None else 0
    return code == RECYCLE_CODE or (code > 0 and code == asked != AT_ONCE_CODE)
