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
from .status import WorkerState
from .supervised_worker import SupervisedWorker

GRACE_S = 3.0  # what processes that a worker leaves behind get to end
_STACKS_S = 0.3  # faulthandler has written them by then
_PY_SPY_S = 3.0
_REAPER_S = 5.0
_STUCK_S = 30.0
_START_S = 60.0
_KILLS = 20
_MAX_STACK_LINES = 500


class WorkerEnder:
    def __init__(self, report: SupervisorReport, helpers: HelperRuns) -> None:
        self._report = report
        self._helpers = helpers
        self._stuck_logged_s = 0.0

    def escalate(self, worker: SupervisedWorker, plan: EscalationPlan, now_s: float) -> None:
        worker.escalate(plan, now_s)
        self._report.changed = True
        self.advance(worker, now_s)

    def advance(self, worker: SupervisedWorker, now_s: float) -> None:
        if not worker.is_running or worker.reaper_is_gone:
            return  # the pid of a reaper that is gone may be another process's
        if worker.ended_s != math.inf:
            self._hasten_reaper(worker, now_s)
        elif worker.process is None and now_s - worker.started_s > _START_S:
            text = f"{self._report.name_of(worker)} did not start within {span_words(_START_S)}"
            self._report.log("kill", text, worker, level="error")
            worker.started_s = now_s
            worker.kill_reaper()
        elif worker.escalation is not None:
            while (step := worker.escalation.next_step(now_s)) is not None:
                self.take(worker, step)
                if step is EndStep.KILL:
                    break

    def _hasten_reaper(self, worker: SupervisedWorker, now_s: float) -> None:
        """Helps a reaper that has not ended what its worker left: it may be stopped, or the processes unkillable."""
        over_s = now_s - worker.ended_s - GRACE_S - _REAPER_S
        if over_s > 0:
            worker.kill()
            if over_s > _REAPER_S:
                worker.kill_reaper()
        if over_s > _STUCK_S and now_s - self._stuck_logged_s > _STUCK_S:
            self._stuck_logged_s = now_s
            text = f"{self._report.name_of(worker)} left processes that SIGKILL does not end"
            self._report.log("kill", text, worker, level="error")

    def take(self, worker: SupervisedWorker, step: EndStep) -> None:
        """Takes one step; each is one line of the log."""
        escalation = worker.escalation
        assert escalation is not None
        plan, now_s = escalation.plan, time.monotonic()
        why = f"because {plan.sentence}"
        level = "info" if plan.is_planned else "warning"
        who, given = self._report.name_of(worker), span_words(escalation.given_s)

        def log(text: str) -> None:
            self._report.log(str(step), f"{who}: {text}", worker, plan.reason, level)

        match step:
            case EndStep.STACKS:
                places = worker.dump_stacks()
                if places:
                    escalation.wait(now_s, _STACKS_S)
                    log(f"{'; '.join(places)}, {why}")
                else:
                    problem = self._run_py_spy(worker, lambda: escalation.done(step, time.monotonic()))
                    log(f"no stacks ({problem}), {why}" if problem else f"py-spy reads its stacks, {why}")
                    if problem:
                        escalation.done(step, now_s)
            case EndStep.DRAIN:
                if worker.drain():
                    log(f"SIGUSR1: it drains for at most {given}, {why}")
                else:
                    log(f"it cannot drain, {why}")
                    escalation.done(step, now_s)
            case EndStep.ASK:
                log(f"SIGTERM to {worker.ask()}, which gets {given} to end, {why}")
            case EndStep.TERM:
                worker.set_state(WorkerState.STOPPING, plan.sentence)
                sent = counted(worker.terminate(), "process")
                log(f"SIGTERM to its {sent}, SIGKILL in {given}, {why}")
            case EndStep.KILL:
                worker.set_state(WorkerState.STOPPING, plan.sentence)
                killed = counted(worker.kill(), "process")
                if escalation.kills == _KILLS:
                    worker.kill_reaper()  # it does not report that its worker has ended
                if escalation.kills == 1:
                    log(f"SIGKILL to its {killed}, {why}")
        self._report.changed = True

    def _run_py_spy(self, worker: SupervisedWorker, done: Callable[[], None]) -> str:
        """Starts py-spy. Returns why not, if so; otherwise `done` is called at its end."""
        watch = worker.watch
        if watch is None:
            return "it has not started"
        pid = watch.python_process()
        if pid is None:
            return "it is not a Python program"
        program = find_spy()
        if program is None:
            return "it has no Guard, and py-spy is not installed"
        of = self._report.name_of(worker)

        def show(output: str) -> None:
            lines = [line for line in output.splitlines() if line.strip()][:_MAX_STACK_LINES]
            lines = lines or ["py-spy did not end in time"]
            for line in lines:
                self._report.log("stacks", f"{of}: {line.rstrip()}", worker, keep=False)
            done()

        command = [program, "dump", "--pid", str(pid), "--nonblocking"]
        return "" if self._helpers.start(run_program(command), _PY_SPY_S, show) else "py-spy cannot be started"

    def show_stacks(self, worker: SupervisedWorker) -> None:
        if worker.process is None or worker.watch is None:
            return
        worker.watch.refresh()
        places = worker.dump_stacks()
        problem = "" if places else self._run_py_spy(worker, lambda: None)
        if places or problem:
            text = "; ".join(places) or f"no stacks ({problem})"
            self._report.log("stacks", f"{self._report.name_of(worker)}: {text}", worker)
