"""The steps that end a worker, and when each is due. Pure: times are passed in.

stacks  the stacks of all threads are written down
drain   SIGUSR1 to the processes with a Guard: they finish their job and end
ask     SIGTERM to the processes with a Guard; without one, to the worker itself
term    SIGTERM to the entire process tree
kill    SIGKILL to the entire process tree, again and again until nothing is left
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from .policy import RestartReason

SOON_S = 3.0  # what a worker that does not work gets to drain
_KILL_AGAIN_S = 0.5


class EndStep(StrEnum):
    STACKS = "stacks"
    DRAIN = "drain"
    ASK = "ask"
    TERM = "term"
    KILL = "kill"


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
    steps: list[tuple[EndStep, float]] = []
    if times.drain_s is not None:
        steps += [
            (EndStep.DRAIN, times.drain_s),
            (EndStep.STACKS, times.stacks_s),
            (EndStep.TERM, times.stop_s),
        ]
    else:
        steps += [(EndStep.ASK, times.stop_s)]
    steps.append((EndStep.KILL, math.inf))
    return EscalationPlan(reason=reason, sentence=sentence, steps=tuple(steps), is_planned=True)


def plan_stop(sentence: str, times: StepTimes) -> EscalationPlan:
    """A worker that is to end because the supervisor ends."""
    steps: list[tuple[EndStep, float]] = []
    if times.drain_s is not None:
        steps += [(EndStep.ASK, times.drain_s), (EndStep.TERM, times.stop_s)]
    else:
        steps += [(EndStep.ASK, times.stop_s)]
    steps.append((EndStep.KILL, math.inf))
    return EscalationPlan(reason=None, sentence=sentence, steps=tuple(steps), is_planned=True)


class Escalation:
    """Goes through the steps of a plan. The caller does what `next_step` returns."""

    def __init__(self, plan: EscalationPlan, now_s: float) -> None:
        self.plan = plan
        self.began_s = now_s
        self.step: EndStep | None = None  # the one that was taken last
        self._left = list(plan.steps)
        self.due_s = now_s
        self.kills = 0

    def next_step(self, now_s: float) -> EndStep | None:
        """Returns the step that is due now; None if none is. SIGKILL is repeated."""
        if now_s < self.due_s:
            return None
        if self.step is not EndStep.KILL:
            self.step, given_s = self._left.pop(0)
            self.due_s = now_s + given_s
        if self.step is EndStep.KILL:
            self.kills += 1
            self.due_s = now_s + _KILL_AGAIN_S
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

    @property
    def given_s(self) -> float:
        """How long the step that was taken last is given; 0 if without end."""
        return next((given_s for step, given_s in self.plan.steps if step is self.step and given_s != math.inf), 0.0)
