"""Ends workers step by step, each step with one line in the log: stacks, drain, SIGTERM, SIGKILL."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from ...._util.text import counted, span_words
from ..stacks import find_spy
from .escalation import EndStep, EscalationPlan
from .helper_run import HelperRuns, run_program
from .reporting import SupervisorReport
from .status import CopyState
from .supervised_copy import SupervisedCopy

GRACE_S = 3.0  # what processes that a worker leaves behind get to end
_STACKS_S = 0.3  # faulthandler has written them by then
_PY_SPY_S = 3.0
_KEEPER_S = 5.0
_STUCK_S = 30.0
_START_S = 60.0
_KILLS = 20
_MOST_STACK_LINES = 500


class WorkerEnder:
    def __init__(self, report: SupervisorReport, helpers: HelperRuns) -> None:
        self._report = report
        self._helpers = helpers
        self._stuck_said_s = 0.0

    def escalate(self, copy: SupervisedCopy, plan: EscalationPlan, now_s: float) -> None:
        copy.escalate(plan, now_s)
        self._report.changed = True
        self.advance(copy, now_s)

    def advance(self, copy: SupervisedCopy, now_s: float) -> None:
        if not copy.is_running or copy.keeper_is_gone:
            return  # the pid of a keeper that is gone may be another process's
        if copy.ended_s != math.inf:
            self._hasten_keeper(copy, now_s)
        elif copy.worker is None and now_s - copy.started_s > _START_S:
            text = f"{self._report.name_of(copy)} did not start within {span_words(_START_S)}"
            self._report.say("kill", text, copy, level="error")
            copy.started_s = now_s
            copy.kill_keeper()
        elif copy.escalation is not None:
            while (step := copy.escalation.next_step(now_s)) is not None:
                self.take(copy, step)
                if step is EndStep.KILL:
                    break

    def _hasten_keeper(self, copy: SupervisedCopy, now_s: float) -> None:
        """Helps a keeper that has not ended what its worker left: it may be stopped, or the processes unkillable."""
        over_s = now_s - copy.ended_s - GRACE_S - _KEEPER_S
        if over_s > 0:
            copy.kill()
            if over_s > _KEEPER_S:
                copy.kill_keeper()
        if over_s > _STUCK_S and now_s - self._stuck_said_s > _STUCK_S:
            self._stuck_said_s = now_s
            text = f"{self._report.name_of(copy)} left processes that SIGKILL does not end"
            self._report.say("kill", text, copy, level="error")

    def take(self, copy: SupervisedCopy, step: EndStep) -> None:
        """Takes one step; each is one line of the log."""
        escalation = copy.escalation
        assert escalation is not None
        plan, now_s = escalation.plan, time.monotonic()
        why = f"because {plan.sentence}"
        level = "info" if plan.is_planned else "warning"
        who, given = self._report.name_of(copy), span_words(escalation.given_s)

        def say(text: str) -> None:
            self._report.say(str(step), f"{who}: {text}", copy, plan.reason, level)

        match step:
            case EndStep.STACKS:
                places = copy.dump_stacks()
                if places:
                    escalation.wait(now_s, _STACKS_S)
                    say(f"{'; '.join(places)}, {why}")
                else:
                    problem = self._run_py_spy(copy, lambda: escalation.done(step, time.monotonic()))
                    say(f"no stacks ({problem}), {why}" if problem else f"py-spy reads its stacks, {why}")
                    if problem:
                        escalation.done(step, now_s)
            case EndStep.DRAIN:
                if copy.drain():
                    say(f"SIGUSR1: it drains for at most {given}, {why}")
                else:
                    say(f"it cannot drain, {why}")
                    escalation.done(step, now_s)
            case EndStep.ASK:
                say(f"SIGTERM to {copy.ask()}, which gets {given} to end, {why}")
            case EndStep.TERM:
                copy.set_state(CopyState.STOPPING, plan.sentence)
                sent = counted(copy.terminate(), "process")
                say(f"SIGTERM to its {sent}, SIGKILL in {given}, {why}")
            case EndStep.KILL:
                copy.set_state(CopyState.STOPPING, plan.sentence)
                killed = counted(copy.kill(), "process")
                if escalation.kills == _KILLS:
                    copy.kill_keeper()  # it does not say that its worker has ended
                if escalation.kills == 1:
                    say(f"SIGKILL to its {killed}, {why}")
        self._report.changed = True

    def _run_py_spy(self, copy: SupervisedCopy, done: Callable[[], None]) -> str:
        """Starts py-spy. Returns why not, if so; otherwise `done` is called at its end."""
        watch = copy.watch
        if watch is None:
            return "it has not started"
        pid = watch.python_process()
        if pid is None:
            return "it is not a Python program"
        program = find_spy()
        if program is None:
            return "it has no Guard, and py-spy is not installed"
        of = self._report.name_of(copy)

        def show(output: str) -> None:
            lines = [line for line in output.splitlines() if line.strip()][:_MOST_STACK_LINES]
            lines = lines or ["py-spy did not end in time"]
            for line in lines:
                self._report.say("stacks", f"{of}: {line.rstrip()}", copy, keep=False)
            done()

        command = [program, "dump", "--pid", str(pid), "--nonblocking"]
        return "" if self._helpers.start(run_program(command), _PY_SPY_S, show) else "py-spy cannot be started"

    def show_stacks(self, copy: SupervisedCopy) -> None:
        if copy.worker is None or copy.watch is None:
            return
        copy.watch.refresh()
        places = copy.dump_stacks()
        problem = "" if places else self._run_py_spy(copy, lambda: None)
        if places or problem:
            text = "; ".join(places) or f"no stacks ({problem})"
            self._report.say("stacks", f"{self._report.name_of(copy)}: {text}", copy)
