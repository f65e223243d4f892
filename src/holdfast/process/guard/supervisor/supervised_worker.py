"""One worker of the program: its reaper and worker, what ends it, and when it is started again."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections import Counter

from ....procfs.processes import Identity, read_stat
from ....procfs.procfs import REAL
from .config import SuperviseOptions
from .escalation import EndStep, Escalation, EscalationPlan, StepTimes
from .policy import RestartPolicy, RestartReason
from .process_tree import kill_tree, read_tree, signal_all, signal_process
from .reaper import Reaper, WorkerEnded, WorkerNotRun, WorkerStarted
from .status import WorkerState, WorkerStatus
from .worker_watch import WorkerWatch, ask_guards, guards_that_catch


class SupervisedWorker:
    def __init__(self, number: int, options: SuperviseOptions) -> None:
        self.number = number
        self._options = options
        self.policy = RestartPolicy(options.rules)
        self.restarts: Counter[RestartReason] = Counter()
        self.state = WorkerState.BACKOFF
        self.since = time.time()
        self.sentence = "it was not started yet"
        self.due_s = 0.0  # when it is started
        self.restart_reason: RestartReason | None = None  # of the next start
        self.reaper: Reaper | None = None
        self.started_s = 0.0
        self._forget()

    def _forget(self) -> None:
        self.process: Identity | None = None
        self.last_pid = 0
        self._process_fd = -1
        self.watch: WorkerWatch | None = None
        self.escalation: Escalation | None = None
        self.ended_s = math.inf
        self.status: int | None = None  # as waitpid returned it
        self.run_errno = 0
        self.reaper_is_gone = False

    # ---- life

    def started(self, reaper: Reaper, now_s: float) -> None:
        self._forget()
        self.reaper = reaper
        self.started_s = now_s
        self.set_state(WorkerState.RUNNING, "it has been started")

    def set_state(self, state: WorkerState, sentence: str) -> None:
        if state is not self.state:
            self.since = time.time()
        self.state, self.sentence = state, sentence

    @property
    def is_running(self) -> bool:
        """Whether the worker, or what it left, is there."""
        return self.reaper is not None

    @property
    def is_over(self) -> bool:
        return self.state in (WorkerState.DONE, WorkerState.FAILED) and not self.is_running

    def receive(self, now_s: float) -> list[WorkerStarted | WorkerNotRun | WorkerEnded]:
        """Reads what the reaper reports."""
        found = []
        while self.reaper is not None and (message := self.reaper.receive()) is not None:
            match message:
                case WorkerStarted(pid, pidfd):
                    self._process_fd = pidfd
                    self.last_pid = pid
                    seen = read_stat(REAL, pid)
                    self.process = Identity(pid, None if seen is None else seen.start_ticks)
                    self.started_s = now_s
                    self.watch = WorkerWatch(self._options, self.reaper.pid, pid, self.number, now_s)
                case WorkerNotRun(number):
                    self.run_errno = number
                    self.ended_s = now_s
                case WorkerEnded(status):
                    self.status = status
                    self.ended_s = now_s
                    self.process = None
                    if self.watch is not None:
                        self.watch.ended()
            found.append(message)
        return found

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
        self.escalation = Escalation(plan, now_s)
        is_gentle = plan.steps[0][0] in (EndStep.DRAIN, EndStep.ASK)
        self.set_state(WorkerState.DRAINING if is_gentle else WorkerState.STOPPING, plan.sentence)

    def send(self, number: int) -> bool:
        """Signals the worker itself."""
        if self.process is None or self._process_fd < 0:
            return False
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._process_fd, number)
            return True
        return False

    def drain(self) -> int:
        """Asks the guarded processes to finish their job and to be replaced. Returns how many were asked."""
        watch = self.watch
        return 0 if watch is None else signal_all(guards_that_catch(watch.guarded, signal.SIGUSR1), signal.SIGUSR1)

    def ask(self) -> str:
        """Sends SIGTERM to the guarded processes, or to the worker itself. Returns to whom."""
        watch = self.watch
        if watch is not None and watch.guarded:
            asked = ask_guards(watch.guarded)
            if asked:
                return f"{asked} with a Guard" if asked > 1 else "its Guard"
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a stopped process gets SIGTERM only then
        return "it"

    def terminate(self) -> int:
        """Sends SIGTERM to the entire tree. Returns to how many processes."""
        if self.reaper is None:
            return 0
        processes = [Identity(pid, stat.start_ticks) for pid, stat in read_tree(self.reaper.pid).items()]
        sent = signal_all(processes, signal.SIGTERM)
        signal_all(processes, signal.SIGCONT)
        return sent

    def kill(self) -> int:
        """Sends SIGKILL to the entire tree. Returns to how many processes."""
        return 0 if self.reaper is None else kill_tree(self.reaper.pid)

    def resume_reaper(self) -> bool:
        """Wakes a reaper that somebody has stopped: it could not report its worker's end. Returns whether so."""
        seen = None if self.reaper is None else read_stat(REAL, self.reaper.pid)
        if self.reaper is None or seen is None or seen.state != "T":
            return False
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.reaper.pidfd, signal.SIGCONT)
        return True

    def kill_reaper(self) -> None:
        """Kills an unresponsive reaper; its children are reparented to the supervisor."""
        if self.reaper is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.reaper.pidfd, signal.SIGKILL)

    def dump_stacks(self) -> list[str]:
        """Asks the guarded processes for their stacks. Returns where each writes them."""
        places = []
        for page in self.watch.guarded if self.watch is not None else ():
            number = page.stacks_signal
            if number and guards_that_catch([page], number) and signal_process(page.identity, number):
                places.append(f"process {page.pid} writes its stacks to {page.log or 'its stderr'}")
        return places
