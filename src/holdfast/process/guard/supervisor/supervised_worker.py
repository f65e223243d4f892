"""The processes of one worker: its reaper and its program, the signals that end them, and what the log gets of it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable

from ...._util.process import describe_exit, exit_cause
from ...._util.text import counted, span_words
from ....procfs.processes import Identity, read_stat
from ....procfs.procfs import REAL
from ..stacks import find_spy
from .config import SuperviseOptions, run_hint
from .helper_run import HelperRuns, run_program
from .process_tree import identities, kill_tree, read_tree, signal_all, signal_process
from .reaper import Reaper, WorkerEnded, WorkerNotRun, WorkerStarted
from .reporting import SupervisorReport
from .status import WorkerStatus
from .worker_machine import (
    EndOutcome,
    EndStep,
    EscalationPlan,
    StepTimes,
    WorkerEnd,
    WorkerEvent,
    WorkerMachine,
    WorkerState,
)
from .worker_watch import WorkerWatch, ask_guards, guards_that_catch

GRACE_S = 3.0  # what processes that a worker leaves behind get to end
_STACKS_S = 0.3  # faulthandler has written them by then
_PY_SPY_S = 3.0
_REAPER_S = 5.0
_STUCK_S = 30.0
_START_S = 60.0
_KILLS = 20
_MAX_STACK_LINES = 500


class SupervisedWorker(WorkerMachine):
    """Does what the machine decides. `number` counts from 1."""

    def __init__(self, number: int, options: SuperviseOptions, report: SupervisorReport, helpers: HelperRuns) -> None:
        super().__init__(options.rules, options.restart)
        self.number = number
        self._options = options
        self._report = report
        self._helpers = helpers
        self._stuck_logged_s = 0.0
        self.since = time.time()
        self.ever_ran = False
        self.reaper: Reaper | None = None
        self._forget()

    def _forget(self) -> None:
        self.process: Identity | None = None
        self.last_pid = 0
        self._process_fd = -1
        self.watch: WorkerWatch | None = None
        self.ended_s = math.inf
        self.status: int | None = None  # as waitpid returned it
        self.run_errno = 0
        self.reaper_is_gone = False

    # ---- life

    def move(self, event: WorkerEvent, sentence: str) -> None:
        before = self.state
        super().move(event, sentence)
        if self.state is not before:
            self.since = time.time()
        self._report.changed = True

    def forked(self, reaper: Reaper, now_s: float) -> None:
        self._forget()
        self.reaper = reaper
        self.start(now_s)

    @property
    def is_running(self) -> bool:
        """Whether the worker, or what it left, is there."""
        return self.reaper is not None

    @property
    def is_over(self) -> bool:
        return self.state.is_final and not self.is_running

    @property
    def name(self) -> str:
        number = f" {self.number}" if self._options.workers > 1 else ""
        return f"worker{number}" + (f" (pid {self.last_pid})" if self.last_pid else "")

    def receive(self, now_s: float) -> None:
        """Reads what the reaper reports."""
        while self.reaper is not None and (message := self.reaper.receive()) is not None:
            match message:
                case WorkerStarted(pid, pidfd):
                    self._process_fd = pidfd
                    self.last_pid = pid
                    seen = read_stat(REAL, pid)
                    self.process = Identity(pid, None if seen is None else seen.start_ticks)
                    self.started_s = now_s
                    self.watch = WorkerWatch(self._options, self.reaper.pid, pid, self.number, now_s)
                    self.ever_ran = True
                    self.move(WorkerEvent.STARTED, "it runs")
                    self._report.log("start", f"{self.name} has started", self)
                    if self.escalation is not None and self.escalation.step is not None:
                        self._take(self.escalation.step)  # it was asked to end before it was there
                case WorkerNotRun(number):
                    self.run_errno, self.ended_s = number, now_s
                    command = self._options.command
                    self.sentence = f"cannot run {command[0]}: {os.strerror(number)}{run_hint(command, number)}"
                case WorkerEnded(status):
                    self.status, self.ended_s, self.process = status, now_s, None
                    if self.watch is not None:
                        self.watch.ended()
                    self.move(WorkerEvent.ENDED, describe_exit(os.waitstatus_to_exitcode(status)))

    def closed(self) -> None:
        """The reaper has been reaped: nothing of the worker is left."""
        if self.reaper is not None:
            self.reaper.close()
            self.reaper = None
        if self._process_fd >= 0:
            os.close(self._process_fd)
            self._process_fd = -1
        if self.watch is not None:
            self.watch.close()
        self.process = None

    def decide(self, now_s: float, *, is_stopping: bool) -> None:
        """Nothing of the worker is left: starts it again, or does not, and logs why."""
        code = None if self.status is None else os.waitstatus_to_exitcode(self.status)
        watch, uptime_s = self.watch, max(0.0, min(self.ended_s, now_s) - self.started_s)
        end = WorkerEnd(self._how(code), code, uptime_s, self.run_errno)
        if watch is not None:
            end = end._replace(
                drain_reason=watch.drain_reason,
                asked_code=watch.asked_code,
                had_success=watch.had_success,
                failed_at_start=watch.has_guard and not watch.had_success,
                drained_without_success=watch.drained_without_success,
            )
        outcome = self.stopped(end) if is_stopping else self.ended(end, now_s)
        if not (is_stopping and self.run_errno):
            self._log_outcome(outcome)

    def retry_start(self, number: int, now_s: float) -> None:
        self._log_outcome(self.not_started(os.strerror(number), now_s))

    def _log_outcome(self, outcome: EndOutcome) -> None:
        self._report.log(outcome.kind, f"{self.name} {outcome.text}", self, outcome.reason, outcome.level)

    def _how(self, code: int | None) -> str:
        if self.run_errno:
            return self.sentence
        if code is None:
            return "was lost: its reaper process was killed"
        if code < 0 and self.escalation is not None:
            return f"was ended by {exit_cause(code)}"
        return describe_exit(code)

    def status_row(self) -> WorkerStatus:
        sentence = self.sentence
        if self.state is WorkerState.RUNNING and self.watch is not None and self.watch.sentence:
            sentence = self.watch.sentence
        return WorkerStatus(
            worker=self.number,
            pid=self.process.pid if self.process else 0,
            state=self.state,
            since=self.since,
            restarts={str(reason): n for reason, n in self.restarts.items()},
            sentence=sentence,
        )

    # ---- the end of a worker

    def refresh(self) -> None:
        """Reads what processes and Guards there are now."""
        if self.watch is not None and not self.reaper_is_gone:
            self.watch.refresh()

    @property
    def times(self) -> StepTimes:
        drain_s = None if self.watch is None else self.watch.drain_s
        return StepTimes(stop_s=self._options.stop_s, drain_s=drain_s)

    def escalate(self, plan: EscalationPlan, now_s: float) -> None:
        self.plan_end(plan, now_s)
        self.advance(now_s)

    def advance(self, now_s: float) -> None:
        """Takes the steps that are due."""
        if not self.is_running or self.reaper_is_gone:
            return  # the pid of a reaper that is gone may be another process's
        if self.ended_s != math.inf:
            self._hasten_reaper(now_s)
        elif self.process is None and now_s - self.started_s > _START_S:
            text = f"{self.name} did not start within {span_words(_START_S)}"
            self._report.log("kill", text, self, level="error")
            self.started_s = now_s
            self._kill_reaper()
        elif self.escalation is not None:
            while (step := self.escalation.next_step(now_s)) is not None:
                self._take(step)
                if step is EndStep.KILL:
                    break

    def _hasten_reaper(self, now_s: float) -> None:
        """Helps a reaper that has not ended what its worker left: it may be stopped, or the processes unkillable."""
        over_s = now_s - self.ended_s - GRACE_S - _REAPER_S
        if over_s > 0:
            self._kill()
            if over_s > _REAPER_S:
                self._kill_reaper()
        if over_s > _STUCK_S and now_s - self._stuck_logged_s > _STUCK_S:
            self._stuck_logged_s = now_s
            self._report.log("kill", f"{self.name} left processes that SIGKILL does not end", self, level="error")

    def _take(self, step: EndStep) -> None:
        """Takes one step; each is one line of the log."""
        escalation = self.escalation
        assert escalation is not None
        plan, now_s = escalation.plan, time.monotonic()
        given = span_words(escalation.given_s)
        match step:
            case EndStep.STACKS:
                if places := self._dump_stacks():
                    escalation.wait(now_s, _STACKS_S)
                    text = "; ".join(places)
                elif problem := self._run_py_spy(lambda: escalation.done(step, time.monotonic())):
                    text = f"no stacks ({problem})"
                    escalation.done(step, now_s)
                else:
                    text = "py-spy reads its stacks"
            case EndStep.DRAIN if self._drain():
                text = f"SIGUSR1: it drains for at most {given}"
            case EndStep.DRAIN:
                text = "it cannot drain"
                escalation.done(step, now_s)
            case EndStep.ASK:
                text = f"SIGTERM to {self._ask()}, which gets {given} to end"
            case EndStep.TERM:
                self.move(WorkerEvent.END, plan.sentence)
                text = f"SIGTERM to its {counted(self._terminate(), 'process')}, SIGKILL in {given}"
            case EndStep.KILL:
                self.move(WorkerEvent.END, plan.sentence)
                text = f"SIGKILL to its {counted(self._kill(), 'process')}"
                if escalation.kills == _KILLS:
                    self._kill_reaper()  # it does not report that its worker has ended
        if escalation.kills <= 1:
            level = "info" if plan.is_planned else "warning"
            self._report.log(str(step), f"{self.name}: {text}, because {plan.sentence}", self, plan.reason, level)

    def _run_py_spy(self, done: Callable[[], None]) -> str:
        """Starts py-spy. Returns why not, if so; otherwise `done` is called at its end."""
        if self.watch is None:
            return "it has not started"
        if (pid := self.watch.python_process()) is None:
            return "it is not a Python program"
        if (program := find_spy()) is None:
            return "it has no Guard, and py-spy is not installed"

        def show(output: str) -> None:
            lines = [line for line in output.splitlines() if line.strip()][:_MAX_STACK_LINES]
            for line in lines or ["py-spy did not end in time"]:
                self._report.log("stacks", f"{self.name}: {line.rstrip()}", self, keep=False)
            done()

        command = [program, "dump", "--pid", str(pid), "--nonblocking"]
        return "" if self._helpers.start(run_program(command), _PY_SPY_S, show) else "py-spy cannot be started"

    def show_stacks(self) -> None:
        if self.process is None or self.watch is None:
            return
        self.watch.refresh()
        places = self._dump_stacks()
        problem = "" if places else self._run_py_spy(lambda: None)
        if places or problem:
            text = "; ".join(places) or f"no stacks ({problem})"
            self._report.log("stacks", f"{self.name}: {text}", self)

    # ---- signals

    def send(self, number: int) -> bool:
        """Signals the worker itself."""
        if self.process is None or self._process_fd < 0:
            return False
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._process_fd, number)
            return True
        return False

    def _drain(self) -> int:
        """Asks the guarded processes to finish their job and to be replaced. Returns how many were asked."""
        watch = self.watch
        return 0 if watch is None else signal_all(guards_that_catch(watch.guarded, signal.SIGUSR1), signal.SIGUSR1)

    def _ask(self) -> str:
        """Sends SIGTERM to the guarded processes, or to the worker itself. Returns to whom."""
        if self.watch is not None and (asked := ask_guards(self.watch.guarded)):
            return f"{asked} with a Guard" if asked > 1 else "its Guard"
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a stopped process gets SIGTERM only then
        return "it"

    def _terminate(self) -> int:
        """Sends SIGTERM to the entire tree. Returns to how many processes."""
        processes = identities(read_tree(self.reaper.pid)) if self.reaper is not None else []
        sent = signal_all(processes, signal.SIGTERM)
        signal_all(processes, signal.SIGCONT)
        return sent

    def _kill(self) -> int:
        """Sends SIGKILL to the entire tree. Returns to how many processes."""
        return 0 if self.reaper is None else kill_tree(self.reaper.pid)

    def resume_reaper(self) -> None:
        """Wakes a reaper that somebody has stopped: it could not report its worker's end."""
        seen = None if self.reaper is None else read_stat(REAL, self.reaper.pid)
        if self.reaper is None or seen is None or seen.state != "T":
            return
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.reaper.pidfd, signal.SIGCONT)
        text = f"the reaper of {self.name} was stopped by a signal, and goes on"
        self._report.log("health", text, self, level="warning")

    def _kill_reaper(self) -> None:
        """Kills an unresponsive reaper; its children are reparented to the supervisor."""
        if self.reaper is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.reaper.pidfd, signal.SIGKILL)

    def _dump_stacks(self) -> list[str]:
        """Asks the guarded processes for their stacks. Returns where each writes them."""
        return [
            f"process {page.pid} writes its stacks to {page.log or 'its stderr'}"
            for page in (self.watch.guarded if self.watch is not None else ())
            if (number := page.stacks_signal)
            if guards_that_catch([page], number) and signal_process(page.identity, number)
        ]
