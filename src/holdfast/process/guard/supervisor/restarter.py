"""Decides what follows the end of a worker: nothing, a restart now or later, or giving up. It says so in the log."""

from __future__ import annotations

import os
from typing import NamedTuple

from ...._util.process import describe_exit, exit_cause
from ...._util.text import counted, span_words
from .config import SuperviseOptions
from .outside_caps import RESOURCES
from .policy import AT_ONCE_CODE, RECYCLE_CODE, RestartMode, RestartReason
from .reporting import SupervisorReport
from .status import CopyState
from .supervised_copy import SupervisedCopy

_NO_SUCCESS = (RestartReason.DARK, RestartReason.PROGRESS)


class _End(NamedTuple):
    """How a worker ended. `found_s` is when its end, or what made it necessary, was found."""

    copy: SupervisedCopy
    reason: RestartReason
    how: str
    uptime_s: float
    found_s: float
    cap_is_too_low: bool = False

    @property
    def at_start(self) -> bool:
        """Whether it failed at its start: it had a Guard and no success yet, or each one is above its cap at once."""
        watch = self.copy.watch
        return self.cap_is_too_low or (watch is not None and watch.has_guard and not watch.had_success)


class WorkerRestarter:
    def __init__(self, options: SuperviseOptions, report: SupervisorReport) -> None:
        self._options = options
        self._report = report

    def decide(self, copy: SupervisedCopy, now_s: float) -> None:
        """A worker has ended, and nothing of it is left."""
        code = None if copy.status is None else os.waitstatus_to_exitcode(copy.status)
        end = _End(copy, RestartReason.EXIT, _describe(copy, code), _uptime_s(copy, now_s), now_s)
        escalation = copy.escalation
        if escalation is not None:
            plan = escalation.plan
            reason = plan.reason or RestartReason.RECYCLE
            how = f"{end.how} ({reason}: {plan.sentence})"
            end = end._replace(reason=reason, how=how, found_s=escalation.began_s)
            if reason in _NO_SUCCESS:
                self._wait_for_success(end, now_s)
            elif reason in RESOURCES and copy.policy.is_cap_too_low(_uptime_s(copy, escalation.began_s)):
                how = how.removesuffix(")") + f", again right after its start: raise --{reason})"
                self._fail(end._replace(how=how, cap_is_too_low=True), now_s)
            elif plan.is_planned:
                self._recycle(end, now_s, is_asked=reason is RestartReason.RECYCLE)
            else:
                self._fail(end, now_s)
        elif code != 0 and copy.watch is not None and copy.watch.drained_without_success:
            end = end._replace(reason=RestartReason.DARK, how=f"{end.how} ({copy.watch.drain_reason})")
            self._wait_for_success(end, now_s)
        elif code is not None and _asks_for_restart(copy, code):
            why = copy.watch.drain_reason if copy.watch is not None else ""
            end = end._replace(reason=RestartReason.RECYCLE, how=f"{end.how} ({why or 'it asks for a restart'})")
            self._recycle(end, now_s, is_asked=False)
        elif code == 0 and self._options.restart is RestartMode.ALWAYS:
            self._recycle(end, now_s, is_asked=False)
        elif code == 0:
            copy.set_state(CopyState.DONE, f"it {end.how}")
            self._report.say("done", f"{self._report.name_of(copy)} {end.how}, and is done", copy)
        else:
            is_signal = not copy.run_errno and (code is None or code < 0)
            why = f" ({copy.watch.drain_reason})" if copy.watch is not None and copy.watch.drain_reason else ""
            reason = RestartReason.SIGNAL if is_signal else RestartReason.EXIT
            self._fail(end._replace(reason=reason, how=f"{end.how}{why}"), now_s)

    def stopped(self, copy: SupervisedCopy, now_s: float) -> None:
        """A worker has ended because the supervisor stops."""
        code = None if copy.status is None else os.waitstatus_to_exitcode(copy.status)
        how = _describe(copy, code)
        copy.set_state(CopyState.DONE, f"it {how}")
        if not copy.run_errno:
            text = f"{self._report.name_of(copy)} {how} after {span_words(_uptime_s(copy, now_s))}"
            self._report.say("ended", text, copy)

    def not_started(self, copy: SupervisedCopy, number: int, now_s: float) -> None:
        """A worker was not started, for lack of processes, memory or descriptors: that may change at any time."""
        end = _End(copy, RestartReason.EXIT, f"cannot be started now: {os.strerror(number)}", 0.0, now_s)
        wait_s = copy.policy.after_shortage()
        self._schedule(end, now_s + wait_s, f"it is tried again in {wait_s:.1f} s", "warning")

    def _recycle(self, end: _End, now_s: float, *, is_asked: bool) -> None:
        if self._options.restart is RestartMode.NEVER and not is_asked:
            self._leave(end, "ended", "it is not restarted (--restart never)")
            return
        wait_s = end.copy.policy.after_recycle(end.uptime_s)
        if wait_s:
            self._schedule(end, now_s + wait_s, f"starts again in {wait_s:g} s, as it ends too quickly", "warning")
        else:
            self._schedule(end, now_s, "starts again at once", "info")

    def _wait_for_success(self, end: _End, now_s: float) -> None:
        """A worker ended because nothing succeeded, which a restart need not mend: it waits, and keeps trying."""
        if self._options.restart is RestartMode.NEVER:
            self._leave(end, "ended", "it is not restarted (--restart never)")
            return
        policy = end.copy.policy
        wait_s = policy.after_no_success(had_success=end.copy.watch is not None and end.copy.watch.had_success)
        when = f"starts again in {wait_s:.1f} s"
        if policy.unsuccessful > 1:
            when += f", and keeps trying: nothing succeeded in {policy.unsuccessful:,} workers in a row"
        self._schedule(end, now_s + wait_s, when, "warning")

    def _fail(self, end: _End, now_s: float) -> None:
        if self._options.restart is RestartMode.NEVER:
            self._leave(end, "ended", "it is not restarted (--restart never)")
            return
        policy = end.copy.policy
        found_s = min(end.uptime_s, max(0.0, end.found_s - end.copy.started_s))
        wait_s = policy.after_failure(now_s, found_s, at_start=end.at_start)
        if wait_s is None:
            window = span_words(self._options.rules.window_s)
            times = f"{counted(policy.failed_starts, 'failure')} at its start in {window}"
            self._leave(end, "gave-up", f"gives up on it after {times}")
            return
        due_s = max(now_s, end.found_s + wait_s)  # ending the worker may have taken some of the time
        self._schedule(end, due_s, f"starts again in {due_s - now_s:.1f} s", "warning")

    def _schedule(self, end: _End, due_s: float, when: str, level: str) -> None:
        end.copy.due_s, end.copy.restart_reason = due_s, end.reason
        self._say_end(end, "ended", when, level)
        end.copy.set_state(CopyState.BACKOFF, f"it {end.how}; {when}")

    def _leave(self, end: _End, kind: str, why: str) -> None:
        self._say_end(end, kind, why, "error")
        end.copy.set_state(CopyState.FAILED, f"it {end.how}; {why}")

    def _say_end(self, end: _End, kind: str, then: str, level: str) -> None:
        text = f"{self._report.name_of(end.copy)} {end.how} after {span_words(end.uptime_s)}; {then}"
        self._report.say(kind, text, end.copy, end.reason, level)


def _describe(copy: SupervisedCopy, code: int | None) -> str:
    if copy.run_errno:
        return copy.sentence
    if code is None:
        return "was lost: its keeper process was killed"
    if code < 0 and copy.escalation is not None:
        return f"was ended by {exit_cause(code)}"
    return describe_exit(code)


def _uptime_s(copy: SupervisedCopy, now_s: float) -> float:
    return max(0.0, min(copy.ended_s, now_s) - copy.started_s)


def _asks_for_restart(copy: SupervisedCopy, code: int) -> bool:
    asked = copy.watch.asked_code if copy.watch is not None else 0
    return code == RECYCLE_CODE or (code > 0 and code == asked != AT_ONCE_CODE)
