"""The life of a supervised worker as a state machine, which docs/design.md draws. Pure: times are passed in.

`TRANSITIONS` has all states and events. An `EscalationPlan` is how a worker is ended, step by step; the `RestartPolicy`
is when it is started again; the `WorkerMachine` joins them.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ...._util.text import counted, span_words

RECYCLE_CODE = 75  # EX_TEMPFAIL: the worker asks for a new one
AT_ONCE_CODE = 70  # a Guard ended it in the middle of its work
SOON_S = 3.0  # what a worker that does not work gets to drain
_KILL_AGAIN_S = 0.5
_START_S = 10.0  # an end within this time of the start is a failed start
_CAP_START_S = 60.0  # a soft cap may be exceeded for half of it before that counts
_MAX_QUICK = 10
_MAX_OVER_CAP = 2
_QUICK_PAUSE_S = 1.0
_NEVER = "it is not restarted (--restart never)"


class WorkerState(StrEnum):
    STARTING = "starting"  # its reaper is forked, and the program not yet run
    RUNNING = "running"
    DRAINING = "draining"  # it finishes its job, by its own decision or as it was asked to
    ENDING = "ending"  # it is being ended, or has ended and its children have not
    BACKING_OFF = "backing-off"  # it has ended and is started again when that is due
    GIVEN_UP = "given-up"  # it is not started again
    DONE = "done"  # it ended with exit code 0, or with the supervisor, and is not started again

    @property
    def is_final(self) -> bool:
        return self in (WorkerState.GIVEN_UP, WorkerState.DONE)


class WorkerEvent(StrEnum):
    START = "start"
    STARTED = "started"
    DRAINS = "drains"
    WORKS = "works"  # it does not drain, or no longer
    ASK = "ask"  # it is to end when its job is done
    END = "end"  # it is to end now
    ENDED = "ended"
    RETRY = "retry"  # nothing of it is left: it is started again
    GIVE_UP = "give-up"
    FINISH = "finish"
    RECYCLE = "recycle"  # the operator wants a new one


_S, _E = WorkerState, WorkerEvent
_ENDS = {_E.ASK: _S.DRAINING, _E.END: _S.ENDING, _E.ENDED: _S.ENDING}
_GONE = {_E.RETRY: _S.BACKING_OFF, _E.GIVE_UP: _S.GIVEN_UP, _E.FINISH: _S.DONE}
_WORKS = {_E.DRAINS: _S.DRAINING, _E.WORKS: _S.RUNNING, **_ENDS, **_GONE}
TRANSITIONS: dict[WorkerState, dict[WorkerEvent, WorkerState]] = {
    _S.BACKING_OFF: {_E.START: _S.STARTING, _E.RECYCLE: _S.BACKING_OFF, **_GONE},
    _S.STARTING: {_E.STARTED: _S.RUNNING, **_ENDS, **_GONE},
    _S.RUNNING: _WORKS,
    _S.DRAINING: _WORKS,
    _S.ENDING: {**_ENDS, **_GONE},
    _S.GIVEN_UP: {_E.RECYCLE: _S.BACKING_OFF},
    _S.DONE: {_E.RECYCLE: _S.BACKING_OFF},
}


class RestartReason(StrEnum):
    """Why a worker was started again; the label of `holdfast_restarts_total`."""

    RECYCLE = "recycle"  # it ended with 75, or the operator asked for a restart
    EXIT = "exit"  # it ended with another exit code
    SIGNAL = "signal"  # a signal ended it that the supervisor had not sent
    STOPPED = "stopped"
    FROZEN = "frozen"
    HUNG = "hung"
    FAILING = "failing"
    FDS = "fds"
    RSS = "rss"
    THREADS = "threads"
    CHILDREN = "children"
    PROGRESS = "progress"


_NO_SUCCESS = (RestartReason.FAILING, RestartReason.PROGRESS)
_CAPS = (RestartReason.FDS, RestartReason.RSS, RestartReason.THREADS, RestartReason.CHILDREN)


class RestartMode(StrEnum):
    ON_FAILURE = "on-failure"
    ALWAYS = "always"
    NEVER = "never"


# ---- when a worker is started again


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRules:
    """How long to wait after a failure, and when to give up.

    The wait is `first_s` after the first failure, doubles with each further one up to `longest_s`, and begins anew
    after `window_s` of uptime. `failures` at the start within `window_s` are too many; 0: there are never too many.
    """

    first_s: float = 1.0
    longest_s: float = 300.0
    jitter: float = 0.1
    failures: int = 5
    window_s: float = 600.0


class RestartPolicy:
    """The restarts of one worker. `uniform` draws the jitter."""

    def __init__(self, rules: RestartRules, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._rules = rules
        self._uniform = uniform
        self._in_row = self.unsuccessful = 0
        self._quick = self._over_cap = 0
        self._failed_s: deque[float] = deque()

    @property
    def failed_starts(self) -> int:
        """How many workers failed at their start, within the last `window_s`."""
        return len(self._failed_s)

    def after_failure(self, now_s: float, uptime_s: float, *, at_start: bool = False) -> float | None:
        """Returns how long to wait before the next start; None: give up.

        Only a program that fails at its start is given up, which more starts do not mend: `at_start`, or an uptime of
        seconds. One that has worked may work again.
        """
        rules = self._rules
        self._quick = 0
        if uptime_s >= rules.window_s:
            self._in_row = 0
        self._in_row += 1
        if at_start or uptime_s < _START_S:
            self._failed_s.append(now_s)
            while self._failed_s[0] < now_s - rules.window_s:
                self._failed_s.popleft()
            if rules.failures and len(self._failed_s) >= rules.failures:
                return None
        return self._wait_s(self._in_row)

    def after_shortage(self) -> float:
        """Returns how long to wait after a start that failed because the machine is short of processes or memory."""
        self._in_row += 1
        return self._wait_s(self._in_row)

    def after_no_success(self, *, had_success: bool) -> float:
        """Returns how long to wait after a worker that ended because nothing succeeded any more. It is never given up:
        what it needs, such as an API, may be back at any time."""
        self.unsuccessful = 1 if had_success else self.unsuccessful + 1
        return self._wait_s(self.unsuccessful)

    def _wait_s(self, in_row: int) -> float:
        rules = self._rules
        exponent = min(in_row - 1, 62)  # a larger one could overflow, and all are over the longest wait
        return min(rules.first_s * 2.0**exponent, rules.longest_s) * self._uniform(1 - rules.jitter, 1 + rules.jitter)

    def is_cap_too_low(self, uptime_s: float) -> bool:
        """Takes the age at which a worker was over a cap. Returns whether the cap is the mistake: several in a row were
        over it right after their start, and so would be all that follow."""
        self._over_cap = self._over_cap + 1 if uptime_s < _CAP_START_S else 0
        return self._over_cap > _MAX_OVER_CAP

    def after_recycle(self, uptime_s: float) -> float:
        """Returns how long to wait: not at all, unless many workers in a row ended within seconds."""
        self._quick = self._quick + 1 if uptime_s < _START_S else 0
        return _QUICK_PAUSE_S if self._quick > _MAX_QUICK else 0.0

    def reset(self) -> None:
        """Forgets all failures: the operator asked for a restart."""
        self._in_row = self.unsuccessful = self._quick = self._over_cap = 0
        self._failed_s.clear()


# ---- how a worker is ended


class EndStep(StrEnum):
    STACKS = "stacks"  # the stacks of all threads are written down
    DRAIN = "drain"  # SIGUSR1 to the processes with a Guard: they finish their job and end
    ASK = "ask"  # SIGTERM to the processes with a Guard; without one, to the worker itself
    TERM = "term"  # SIGTERM to the entire process tree
    KILL = "kill"  # SIGKILL to the entire process tree, again and again until nothing is left


@dataclass(frozen=True, slots=True, kw_only=True)
class EscalationPlan:
    """The steps with the longest time that each is given.

    `reason` is None if the supervisor itself ends. `is_planned`: the worker did nothing wrong, so it is started again
    at once.
    """

    reason: RestartReason | None
    sentence: str
    steps: tuple[tuple[EndStep, float], ...]
    is_planned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """How long the steps of one worker may take. `drain_s` is None if it has no Guard."""

    stop_s: float
    drain_s: float | None = None
    stacks_s: float = 3.0


def plan_bad_health(reason: RestartReason, sentence: str, times: StepTimes) -> EscalationPlan:
    """A worker that does not work, or is over a hard cap. One that no longer runs Python code cannot drain either."""
    steps = []
    if reason is not RestartReason.STOPPED:
        steps.append((EndStep.STACKS, times.stacks_s))
    if times.drain_s is not None and reason is RestartReason.FAILING:
        steps.append((EndStep.DRAIN, times.drain_s))  # its threads may wait for answers
    elif times.drain_s is not None and reason in (RestartReason.HUNG, RestartReason.PROGRESS):
        steps.append((EndStep.DRAIN, min(SOON_S, times.drain_s)))
    steps += [(EndStep.TERM, times.stop_s), (EndStep.KILL, math.inf)]
    return EscalationPlan(reason=reason, sentence=sentence, steps=tuple(steps), is_planned=False)


def plan_recycle(reason: RestartReason, sentence: str, times: StepTimes) -> EscalationPlan:
    """A worker that works, but is over a soft cap, or that the operator wants to be started anew."""
    steps: tuple[tuple[EndStep, float], ...] = ((EndStep.ASK, times.stop_s),)
    if times.drain_s is not None:
        steps = (EndStep.DRAIN, times.drain_s), (EndStep.STACKS, times.stacks_s), (EndStep.TERM, times.stop_s)
    return EscalationPlan(reason=reason, sentence=sentence, steps=(*steps, (EndStep.KILL, math.inf)), is_planned=True)


def plan_stop(sentence: str, times: StepTimes) -> EscalationPlan:
    """A worker that is to end because the supervisor ends."""
    steps: tuple[tuple[EndStep, float], ...] = ((EndStep.ASK, times.stop_s),)
    if times.drain_s is not None:
        steps = (EndStep.ASK, times.drain_s), (EndStep.TERM, times.stop_s)
    return EscalationPlan(reason=None, sentence=sentence, steps=(*steps, (EndStep.KILL, math.inf)), is_planned=True)


class Escalation:
    """Goes through the steps of a plan. The caller does what `next_step` returns."""

    def __init__(self, plan: EscalationPlan, now_s: float) -> None:
        self.plan = plan
        self.began_s = now_s
        self.step: EndStep | None = None  # the one that was taken last
        self._left = list(plan.steps)
        self.due_s = now_s
        self.given_s = 0.0  # how long the step that was taken last may take; 0 if without end
        self.kills = 0

    def next_step(self, now_s: float) -> EndStep | None:
        """Returns the step that is due now; None if none is. SIGKILL is repeated."""
        if now_s < self.due_s:
            return None
        if self.step is not EndStep.KILL:
            self.step, self.given_s = self._left.pop(0)
            self.due_s = now_s + self.given_s
        if self.step is EndStep.KILL:
            self.kills += 1
            self.given_s, self.due_s = 0.0, now_s + _KILL_AGAIN_S
        return self.step

    def done(self, step: EndStep, now_s: float) -> None:
        """Makes the next step due now: this one is done, or could not be taken."""
        if self.step is step and step is not EndStep.KILL:
            self.due_s = now_s

    def wait(self, now_s: float, wait_s: float) -> None:
        """Shortens the time of the current step."""
        self.due_s = min(self.due_s, now_s + wait_s)

    def hurry(self, to: EndStep, now_s: float) -> None:
        """Leaves out the steps before `to`."""
        if any(step is to for step, _ in self._left):
            while self._left[0][0] is not to:
                self._left.pop(0)
            self.due_s = now_s


# ---- the machine


class WorkerEnd(NamedTuple):
    """How a worker ended. `code` is None if its reaper was killed; `drain_reason` and `asked_code` are its Guard's."""

    how: str
    code: int | None
    uptime_s: float
    run_errno: int = 0  # why its program could not be run
    drain_reason: str = ""
    asked_code: int = 0
    had_success: bool = False
    failed_at_start: bool = False  # it had a Guard, and no success yet
    drained_without_success: bool = False

    @property
    def asks_for_restart(self) -> bool:
        code = self.code or 0
        return code == RECYCLE_CODE or (code > 0 and code == self.asked_code != AT_ONCE_CODE)


class EndOutcome(NamedTuple):
    """What follows the end of a worker, for the log."""

    kind: str
    text: str
    reason: RestartReason | None = None
    level: str = "info"


class WorkerMachine:
    """The state of one worker over all its restarts."""

    def __init__(
        self, rules: RestartRules, mode: RestartMode, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._rules = rules
        self._mode = mode
        self.policy = RestartPolicy(rules, uniform)
        self.state = WorkerState.BACKING_OFF
        self.sentence = "it was not started yet"
        self.started_s = 0.0
        self.due_s = 0.0  # when it is started
        self.escalation: Escalation | None = None
        self.restart_reason: RestartReason | None = None  # of the next start
        self.restarts: Counter[RestartReason] = Counter()

    def move(self, event: WorkerEvent, sentence: str) -> None:
        """Takes the transition of this event. An event that has none in this state comes too late, and changes
        nothing."""
        state = TRANSITIONS[self.state].get(event)
        if state is not None:
            self.state, self.sentence = state, sentence

    def start(self, now_s: float) -> None:
        self.escalation = None
        self.started_s = now_s
        self.move(WorkerEvent.START, "it is being started")
        if self.restart_reason is not None:
            self.restarts[self.restart_reason] += 1
            self.restart_reason = None

    def plan_end(self, plan: EscalationPlan, now_s: float) -> None:
        self.escalation = Escalation(plan, now_s)
        is_gentle = plan.steps[0][0] in (EndStep.DRAIN, EndStep.ASK)
        self.move(WorkerEvent.ASK if is_gentle else WorkerEvent.END, plan.sentence)

    def restart_now(self, why: str, now_s: float) -> None:
        """Starts a worker of which nothing is left: the operator asks for it."""
        self.restart_reason = self.restart_reason or RestartReason.RECYCLE
        self.due_s = now_s
        self.move(WorkerEvent.RECYCLE, why)

    def ended(self, end: WorkerEnd, now_s: float) -> EndOutcome:
        """Decides what follows an end of which nothing is left: nothing, a restart now or later, or giving up."""
        escalation = self.escalation
        if escalation is not None:
            plan = escalation.plan
            reason = plan.reason or RestartReason.RECYCLE
            found_s = escalation.began_s
            how = f"{end.how} ({reason}: {plan.sentence})"
            if reason in _NO_SUCCESS:
                return self._retry_without_success(end._replace(how=how), reason, now_s)
            age_s = max(0.0, found_s - self.started_s)
            if reason in _CAPS and self.policy.is_cap_too_low(min(end.uptime_s, age_s)):
                how = how.removesuffix(")") + f", again right after its start: raise --{reason})"
                return self._fail(end._replace(how=how, failed_at_start=True), reason, now_s, found_s)
            if plan.is_planned:
                is_asked = reason is RestartReason.RECYCLE
                return self._recycle(end._replace(how=how), reason, now_s, is_asked=is_asked)
            return self._fail(end._replace(how=how), reason, now_s, found_s)
        why = f" ({end.drain_reason})" if end.drain_reason else ""
        if end.code != 0 and end.drained_without_success:
            return self._retry_without_success(end._replace(how=f"{end.how}{why}"), RestartReason.FAILING, now_s)
        if end.asks_for_restart:
            how = f"{end.how}{why or ' (it asks for a restart)'}"
            return self._recycle(end._replace(how=how), RestartReason.RECYCLE, now_s)
        if end.code == 0 and self._mode is RestartMode.ALWAYS:
            return self._recycle(end, RestartReason.EXIT, now_s)
        if end.code == 0:
            self.move(WorkerEvent.FINISH, f"it {end.how}")
            return EndOutcome("done", f"{end.how}, and is done")
        is_signal = not end.run_errno and (end.code is None or end.code < 0)
        reason = RestartReason.SIGNAL if is_signal else RestartReason.EXIT
        return self._fail(end._replace(how=f"{end.how}{why}"), reason, now_s, now_s)

    def stopped(self, end: WorkerEnd) -> EndOutcome:
        """A worker has ended because the supervisor stops."""
        self.move(WorkerEvent.FINISH, f"it {end.how}")
        return EndOutcome("ended", f"{end.how} after {span_words(end.uptime_s)}")

    def not_started(self, why: str, now_s: float) -> EndOutcome:
        """A worker was not started, for lack of processes, memory or descriptors: that may change at any time."""
        wait_s = self.policy.after_shortage()
        end = WorkerEnd(f"cannot be started now: {why}", None, 0.0)
        return self._retry(end, RestartReason.EXIT, now_s + wait_s, f"it is tried again in {wait_s:.1f} s", "warning")

    def _recycle(self, end: WorkerEnd, reason: RestartReason, now_s: float, *, is_asked: bool = False) -> EndOutcome:
        if self._mode is RestartMode.NEVER and not is_asked:
            return self._leave(end, reason)
        wait_s = self.policy.after_recycle(end.uptime_s)
        if wait_s:
            when = f"starts again in {wait_s:g} s, as it ends too quickly"
            return self._retry(end, reason, now_s + wait_s, when, "warning")
        return self._retry(end, reason, now_s, "starts again at once", "info")

    def _retry_without_success(self, end: WorkerEnd, reason: RestartReason, now_s: float) -> EndOutcome:
        """Nothing succeeded, which a restart need not mend: it waits, and keeps trying."""
        if self._mode is RestartMode.NEVER:
            return self._leave(end, reason)
        wait_s = self.policy.after_no_success(had_success=end.had_success)
        when = f"starts again in {wait_s:.1f} s"
        if self.policy.unsuccessful > 1:
            when += f", and keeps trying: nothing succeeded in {self.policy.unsuccessful:,} workers in a row"
        return self._retry(end, reason, now_s + wait_s, when, "warning")

    def _fail(self, end: WorkerEnd, reason: RestartReason, now_s: float, found_s: float) -> EndOutcome:
        """`found_s` is when the end, or what made it necessary, was found: ending it may have taken some of the
        time."""
        if self._mode is RestartMode.NEVER:
            return self._leave(end, reason)
        age_s = min(end.uptime_s, max(0.0, found_s - self.started_s))
        wait_s = self.policy.after_failure(now_s, age_s, at_start=end.failed_at_start)
        if wait_s is None:
            times = f"{counted(self.policy.failed_starts, 'failure')} at its start"
            why = f"gives up on it after {times} in {span_words(self._rules.window_s)}"
            return self._leave(end, reason, "gave-up", why)
        due_s = max(now_s, found_s + wait_s)
        return self._retry(end, reason, due_s, f"starts again in {due_s - now_s:.1f} s", "warning")

    def _retry(self, end: WorkerEnd, reason: RestartReason, due_s: float, when: str, level: str) -> EndOutcome:
        self.due_s, self.restart_reason = due_s, reason
        self.move(WorkerEvent.RETRY, f"it {end.how}; {when}")
        return EndOutcome("ended", f"{end.how} after {span_words(end.uptime_s)}; {when}", reason, level)

    def _leave(self, end: WorkerEnd, reason: RestartReason, kind: str = "ended", why: str = _NEVER) -> EndOutcome:
        self.move(WorkerEvent.GIVE_UP, f"it {end.how}; {why}")
        return EndOutcome(kind, f"{end.how} after {span_words(end.uptime_s)}; {why}", reason, "error")
