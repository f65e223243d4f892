"""The supervisor: one loop in one thread that starts copies of a program, looks at them, and ends and restarts them.

It waits for messages of its keepers, their ends (pidfd), signals, and the output of its helper processes. Whatever
could block it, such as a probe, runs in a process of its own. The number of its descriptors is bounded by
`most_descriptors`.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import shutil
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ..._util.fds import Reserve, raise_nofile
from ..._util.process import describe_exit, exit_cause
from ..._util.text import counted, one_line, printable, span_words
from ...errors import InputError
from ...procfs.processes import Identity, Stat, read_stat
from ...procfs.procfs import REAL, read_or_none
from .config import SuperviseOptions
from .escalation import EscalationPlan, Step, plan_bad_health, plan_recycle, plan_stop
from .helper_run import HelperRun, run_program
from .keeper import Launch, WorkerEnded, WorkerNotRun, WorkerStarted, adopt_orphans, start_keeper
from .log_lines import LogLines
from .policy import RECYCLE_CODE, RestartMode, RestartReason
from .process_tree import kill_tree, own_children, signal_process
from .progress import file_probe, http_probe
from .status import EVENTS, REWRITE_S, CopyState, StatusFile, SupervisorEvent, SupervisorStatus
from .supervised_copy import SupervisedCopy
from .systemd import SystemdNotifier
from .worker_watch import WorkerFinding, WorkerWatch, pss_of

FINE, GAVE_UP = 0, 1
_RESERVE = 6
_BASE_DESCRIPTORS = 24  # of Python, the log, systemd's socket, the wake-up pipe, the reserve
_DESCRIPTORS_PER_COPY = 6
_GRACE_S = 3.0  # what processes that a worker leaves behind get to end
_LOOK_SHARE = 50  # a look that took a millisecond is followed by 50 without one
_LATE_S = 5.0
_STACKS_S = 0.3  # faulthandler has written them by then
_KEEPER_S = 5.0
_STUCK_S = 30.0
_START_S = 60.0
_SETTLED_S = 1.0  # a rolling restart goes on when the new worker has run that long
_PSS_S = 5.0
_MOST_STACK_LINES = 500
_MOST_COMMAND = 200
_PID_1 = 1
_ORPHANS_S = 0.05

_ROUTINE = (signal.SIGCONT, signal.SIGWINCH)
_FORWARDED = (signal.SIGQUIT, signal.SIGCONT, signal.SIGWINCH, signal.SIGPWR, signal.SIGALRM)


def most_descriptors(copies: int) -> int:
    """Returns how many descriptors the supervisor needs at most."""
    return _BASE_DESCRIPTORS + _DESCRIPTORS_PER_COPY * copies


class Supervisor:
    def __init__(self, options: SuperviseOptions, log: LogLines) -> None:
        self._options = options
        self._log = log
        self._name = options.name or os.path.basename(options.command[0])
        self._copies = [SupervisedCopy(number, options) for number in range(1, options.copies + 1)]
        self._events: deque[SupervisorEvent] = deque(maxlen=EVENTS)
        self._pending: deque[int] = deque()
        self._runs: dict[int, tuple[HelperRun, Callable[[str], None]]] = {}
        self._ended_pids: set[int] = set()  # of helper processes
        self._stop_code: int | None = None  # what the supervisor exits with; None: it is not stopping
        self._interrupts = 0
        self._refused: InputError | None = None
        self._rolling: deque[SupervisedCopy] = deque()
        self._rolled: SupervisedCopy | None = None
        self._was_ready = False
        self._changed = True
        self._written_s = -math.inf
        self._look_s = 0.0
        self._watchdog_s = 0.0
        self._extended_s = -math.inf
        self._stuck_said_s = 0.0
        self._ever_ran = False

    # ---- the loop

    def run(self) -> int:
        """Runs until all copies have ended for good, or a signal asks to stop. Returns the exit code.

        Raises:
            InputError: the program cannot be run, or this machine does not allow to supervise it.
        """
        if REAL.own_pid() != os.getpid():
            raise InputError(
                "/proc does not belong to this pid namespace, so that the workers' processes cannot be seen; mount it "
                "(unshare --mount-proc)"
            )
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._nofile = self._raise_limit()
        adopt_orphans()
        self._strangers = set(own_children())  # of the program that became this one by exec
        self._environment = dict(os.environ)
        self._systemd = SystemdNotifier(self._environment)
        self._file = StatusFile()
        self._mark = f"HOLDFAST_SUPERVISOR={self._file.identity.pid}-{self._file.identity.start_ticks}"
        self._reserve = Reserve(_RESERVE)
        self._had_terminal = _has_terminal()
        try:
            with self._signals():
                return self._run()
        finally:
            for copy in self._copies:
                copy.closed()  # a keeper whose channel is closed ends its worker
            self._file.remove()
            self._systemd.close()
            self._reserve.close()

    def _raise_limit(self) -> tuple[int, int]:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        need = most_descriptors(self._options.copies)
        if 0 <= raise_nofile(need)[1] < need:
            raise InputError(
                f"expected a limit of at least {need:,} descriptors for {counted(self._options.copies, 'worker')}, got "
                f"{before[1]:,} (ulimit -Hn)"
            )
        return before

    def _run(self) -> int:
        command = one_line(" ".join(self._options.command))[:_MOST_COMMAND]
        self._say("begin", f"runs {counted(len(self._copies), 'worker')}: {command}", pid=os.getpid())
        if self._file.problem:
            self._say("status", f"holdfast watch cannot see the restarts: {self._file.problem}", level="warning")
        while not self._is_over():
            now_s = time.monotonic()
            self._start_due(now_s)
            self._wait(now_s)
            now_s = time.monotonic()
            self._handle_signals(now_s)
            self._reap()
            for copy in self._copies:
                self._receive(copy, now_s)
                self._close_ended(copy, now_s)
            self._finish_runs(now_s)
            if now_s >= self._look_s:
                self._look_at_all(now_s)
            for copy in self._copies:
                self._advance(copy, time.monotonic())
            self._roll(time.monotonic())
            self._tell_systemd(time.monotonic())
            self._publish(time.monotonic())
        return self._end()

    def _is_over(self) -> bool:
        if self._rolling or self._rolled:
            return False
        return all(copy.is_over for copy in self._copies)

    def _end(self) -> int:
        self._kill_orphans(wait=True)
        for run, _ in self._runs.values():
            run.kill()
            os.waitpid(run.pid, 0)
            run.close()
        if self._refused is not None:
            raise self._refused
        failed = [copy for copy in self._copies if copy.state is CopyState.FAILED]
        code = self._stop_code if self._stop_code is not None else GAVE_UP if failed else FINE
        restarts = self._restart_words()
        if failed and self._stop_code is None:
            text = f"gave up: {counted(len(failed), 'worker')} of {len(self._copies)} failed for good"
            self._say("gave-up", f"{text}; {restarts}; exits with {code}", level="error")
        else:
            self._say("end", f"all workers have ended; {restarts}; exits with {code}")
        return code

    def _wait(self, now_s: float) -> None:
        """Waits for an event, or until the next thing is due."""
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        for copy in self._copies:
            if copy.keeper is not None and not copy.keeper_is_gone:
                poll.register(copy.keeper.pidfd, select.POLLIN)
                poll.register(copy.keeper.channel, select.POLLIN)
        for run, _ in self._runs.values():
            if not run.at_end:
                poll.register(run.fd, select.POLLIN)
        wait_s = max(0.0, self._due_s() - now_s)
        events = poll.poll(math.ceil(wait_s * 1000))
        late_s = time.monotonic() - now_s - wait_s
        if late_s > max(_LATE_S, 3 * self._options.tick_s):
            for copy in self._copies:
                if copy.watch is not None:
                    copy.watch.pardon(time.monotonic(), late_s)
        ready = {fd for fd, _ in events}
        if self._wake_r in ready:
            with contextlib.suppress(OSError):
                os.read(self._wake_r, 4096)
        for run, _ in self._runs.values():
            if run.fd in ready:
                run.read()

    def _due_s(self) -> float:
        due = [self._look_s]
        for copy in self._copies:
            if copy.state is CopyState.BACKOFF and not copy.is_running:
                due.append(copy.due_s)
            if copy.escalation is not None and copy.is_running:
                due.append(copy.escalation.due_s)
            if copy.keeper_is_gone and copy.is_running:
                due.append(time.monotonic() + _ORPHANS_S)
        due += [run.until_s for run, _ in self._runs.values()]
        return min(due)

    # ---- starts and ends

    def _start_due(self, now_s: float) -> None:
        for copy in self._copies:
            if copy.state is CopyState.BACKOFF and not copy.is_running and now_s >= copy.due_s:
                if self._stop_code is not None:
                    copy.set_state(CopyState.DONE, "the supervisor stops")
                    continue
                self._start(copy, now_s)

    def _start(self, copy: SupervisedCopy, now_s: float) -> None:
        environment = self._environment | {
            "HOLDFAST_COPY": str(copy.number),
            "HOLDFAST_COPIES": str(len(self._copies)),
            "HOLDFAST_SUPERVISOR": self._mark.partition("=")[2],
        }
        launch = Launch(
            command=self._options.command,
            environment=environment,
            nofile=self._nofile,
            stop_s=self._options.stop_s,
            grace_s=min(_GRACE_S, self._options.stop_s),
        )
        try:
            with self._spending():
                keeper = start_keeper(launch)
        except OSError as error:
            self._say("start", f"cannot start {self._of(copy)}: {error.strerror}", copy, level="error")
            self._failed(copy, RestartReason.EXIT, f"it cannot be started: {error.strerror}", now_s, 0.0)
            return
        copy.started(keeper, now_s)
        if copy.restart_reason is not None:
            copy.restarts[copy.restart_reason] += 1
            copy.restart_reason = None
        self._changed = True

    def _receive(self, copy: SupervisedCopy, now_s: float) -> None:
        for message in copy.receive(now_s):
            match message:
                case WorkerStarted():
                    self._ever_ran = True
                    self._say("start", f"{self._of(copy)} has started", copy)
                    if copy.escalation is not None and copy.escalation.step is not None:
                        self._take(copy, copy.escalation.step)  # it was asked to end before it was there
                case WorkerNotRun(number):
                    why = os.strerror(number)
                    hint = " (does the script begin with #! ?)" if number == 8 else ""
                    copy.sentence = f"cannot run {self._options.command[0]}: {why}{hint}"
                case WorkerEnded(status):
                    copy.set_state(CopyState.STOPPING, describe_exit(os.waitstatus_to_exitcode(status)))

    def _reap(self) -> None:
        """Reaps all children that have ended, also those that were adopted: as PID 1 it gets everybody's."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self._runs:
                self._ended_pids.add(pid)
            for copy in self._copies:
                if copy.keeper is not None and copy.keeper.pid == pid:
                    copy.keeper_is_gone = True

    def _close_ended(self, copy: SupervisedCopy, now_s: float) -> None:
        if not copy.keeper_is_gone or copy.keeper is None:
            return
        if copy.status is None and not copy.run_errno and self._kill_orphans():
            return  # the keeper was killed: its processes are the supervisor's now, and end first
        copy.closed()
        self._changed = True
        self._decide(copy, now_s)

    def _decide(self, copy: SupervisedCopy, now_s: float) -> None:
        """Decides what follows the end of a worker."""
        plan = None if copy.escalation is None else copy.escalation.plan
        uptime_s = max(0.0, min(copy.ended_s, now_s) - copy.started_s)
        code = None if copy.status is None else os.waitstatus_to_exitcode(copy.status)
        how = describe_exit(code) if code is not None else "its keeper process was killed"
        if copy.run_errno:
            how = copy.sentence
            if not self._ever_ran and self._stop_code is None:
                self._refused = InputError(how)
                self._stop_all(FINE, how, now_s)
        if self._stop_code is not None:
            if code is not None and code < 0:
                how = f"was ended by {exit_cause(code)}"
            copy.set_state(CopyState.DONE, how)
            if not copy.run_errno:
                self._say("ended", f"{self._of(copy)} {how} after {span_words(uptime_s)}", copy)
            return
        if plan is not None:
            if code is not None and code < 0:
                how = f"was ended by {exit_cause(code)}"
            reason = plan.reason or RestartReason.RECYCLE
            how = f"{how} ({reason}: {plan.sentence})"
            if plan.is_planned:
                self._recycled(copy, reason, how, now_s, uptime_s)
            else:
                assert copy.escalation is not None
                self._failed(copy, reason, how, now_s, uptime_s, since_s=copy.escalation.began_s)
        elif code is not None and self._asks_for_restart(copy, code):
            why = f": {copy.watch.drain_reason}" if copy.watch is not None and copy.watch.drain_reason else ""
            self._recycled(copy, RestartReason.RECYCLE, f"{how} (recycle{why})", now_s, uptime_s)
        elif code == 0:
            if self._options.restart is RestartMode.ALWAYS:
                self._recycled(copy, RestartReason.EXIT, how, now_s, uptime_s)
            else:
                copy.set_state(CopyState.DONE, f"it {how}")
                self._say("done", f"{self._of(copy)} {how}, and is done", copy)
        else:
            reason = RestartReason.EXIT if copy.run_errno or (code or 0) > 0 else RestartReason.SIGNAL
            self._failed(copy, reason, how, now_s, uptime_s)

    def _asks_for_restart(self, copy: SupervisedCopy, code: int) -> bool:
        return code == RECYCLE_CODE or (code > 0 and copy.watch is not None and code == copy.watch.asked_code)

    def _recycled(self, copy: SupervisedCopy, reason: RestartReason, how: str, now_s: float, uptime_s: float) -> None:
        is_asked = copy.escalation is not None and reason is RestartReason.RECYCLE
        if self._options.restart is RestartMode.NEVER and not is_asked:
            copy.set_state(CopyState.FAILED, f"it {how}")
            self._say("ended", f"{self._of(copy)} {how}; it is not restarted (--restart never)", copy, reason)
            return
        wait_s = copy.policy.after_recycle(uptime_s)
        when = "starts again at once" if not wait_s else f"starts again in {wait_s:g} s: it ends too quickly"
        self._schedule(copy, reason, how, now_s + wait_s, when, uptime_s, "info" if not wait_s else "warning")

    def _failed(
        self,
        copy: SupervisedCopy,
        reason: RestartReason,
        how: str,
        now_s: float,
        uptime_s: float,
        since_s: float | None = None,
    ) -> None:
        """`since_s` is when the failure was found: the wait counts from there, as ending the worker took time."""
        if self._options.restart is RestartMode.NEVER:
            copy.set_state(CopyState.FAILED, f"it {how}")
            text = f"{self._of(copy)} {how} after {span_words(uptime_s)}; it is not restarted (--restart never)"
            self._say("ended", text, copy, reason, "error")
            return
        wait_s = copy.policy.after_failure(now_s, uptime_s)
        if wait_s is None:
            copy.set_state(CopyState.FAILED, f"it {how}")
            rules = self._options.rules
            times = f"{counted(copy.policy.recent_failures, 'failure')} in {span_words(rules.window_s)}"
            text = f"{self._of(copy)} {how} after {span_words(uptime_s)}; gives up on it after {times}"
            self._say("gave-up", text, copy, reason, "error")
            return
        due_s = max(now_s, (now_s if since_s is None else since_s) + wait_s)
        self._schedule(copy, reason, how, due_s, f"starts again in {due_s - now_s:.1f} s", uptime_s, "warning")

    def _schedule(
        self,
        copy: SupervisedCopy,
        reason: RestartReason,
        how: str,
        due_s: float,
        when: str,
        uptime_s: float,
        level: str,
    ) -> None:
        copy.due_s, copy.restart_reason = due_s, reason
        self._say("ended", f"{self._of(copy)} {how} after {span_words(uptime_s)}; {when}", copy, reason, level)
        copy.set_state(CopyState.BACKOFF, f"it {how}; {when}")

    # ---- looks

    def _look_at_all(self, now_s: float) -> None:
        with self._spending():
            for copy in self._copies:
                if copy.worker is not None and copy.watch is not None and not copy.keeper_is_gone:
                    self._look_at(copy, copy.watch, time.monotonic())
            self._kill_orphans()
        cost_s = time.monotonic() - now_s
        self._look_s = now_s + max(self._options.tick_s, _LOOK_SHARE * cost_s)

    def _look_at(self, copy: SupervisedCopy, watch: WorkerWatch, now_s: float) -> None:
        before = watch.sentence
        found = watch.look(now_s)
        self._changed |= before != watch.sentence
        if copy.escalation is None:
            state = CopyState.DRAINING if watch.is_draining else CopyState.RUNNING
            if state is not copy.state:
                if watch.is_draining:
                    self._say("drain", f"{self._of(copy)} drains: {watch.drain_reason}", copy)
                copy.set_state(state, watch.sentence or "it runs")
        if watch.progress is not None and now_s >= watch.progress.next_s:
            self._probe(watch, now_s)
        if watch.wants_pss:
            self._read_pss(watch, now_s)
        if found is not None:
            self._found(copy, found, now_s)

    def _found(self, copy: SupervisedCopy, found: WorkerFinding, now_s: float) -> None:
        times = copy.times
        if copy.escalation is None:
            make = plan_bad_health if found.is_bad else plan_recycle
            self._escalate(copy, make(found.reason, found.sentence, times), now_s)
        elif found.is_bad and copy.escalation.plan.is_planned and copy.escalation.step in (Step.DRAIN, Step.ASK):
            if copy.escalation.plan.reason is None:  # the supervisor stops
                copy.escalation.hurry(Step.TERM, now_s)
            else:
                self._escalate(copy, plan_bad_health(found.reason, found.sentence, times), now_s)

    def _probe(self, watch: WorkerWatch, now_s: float) -> None:
        progress = watch.progress
        assert progress is not None
        progress.next_s = math.inf  # until this one has ended
        is_file = self._options.progress_file is not None
        probe = file_probe(progress.what) if is_file else http_probe(progress.what, progress.probe_s)
        if not self._help(probe, progress.probe_s + 1, lambda output: progress.probed(output, time.monotonic())):
            progress.next_s = now_s + progress.every_s

    def _read_pss(self, watch: WorkerWatch, now_s: float) -> None:
        pids = list(watch.tree)

        def work(write: int) -> None:
            os.write(write, b"%d" % pss_of(pids))

        def done(output: str) -> None:
            watch.learned_pss(int(output) if output.isdigit() and int(output) else None, time.monotonic())

        watch.wants_pss = False
        if not self._help(work, _PSS_S, done):
            watch.learned_pss(None, now_s)

    # ---- helper processes

    def _help(self, work: Callable[[int], None], within_s: float, done: Callable[[str], None]) -> bool:
        """Runs a helper process, whose output `done` gets. Returns False if it cannot be started."""
        try:
            with self._spending():
                run = HelperRun(work, time.monotonic() + within_s)
        except OSError:
            return False
        self._runs[run.pid] = run, done
        return True

    def _finish_runs(self, now_s: float) -> None:
        for pid, (run, done) in list(self._runs.items()):
            if pid not in self._ended_pids:
                if now_s >= run.until_s and not run.is_late:
                    run.kill()
                continue
            while run.read():
                pass
            del self._runs[pid]
            self._ended_pids.discard(pid)
            run.close()
            done("" if run.is_late else run.output.decode("utf-8", "replace"))

    # ---- ending a worker

    def _escalate(self, copy: SupervisedCopy, plan: EscalationPlan, now_s: float) -> None:
        copy.escalate(plan, now_s)
        self._changed = True
        self._advance(copy, now_s)

    def _advance(self, copy: SupervisedCopy, now_s: float) -> None:
        if not copy.is_running or copy.keeper_is_gone:
            return  # the pid of a keeper that is gone may be another process's
        if copy.ended_s != math.inf:
            self._hasten_keeper(copy, now_s)
        elif copy.worker is None and now_s - copy.started_s > _START_S:
            self._say("kill", f"{self._of(copy)} did not start within {span_words(_START_S)}", copy, level="error")
            copy.started_s = now_s
            copy.kill_keeper()
        elif copy.escalation is not None:
            while (step := copy.escalation.next_step(now_s)) is not None:
                with self._spending():
                    self._take(copy, step)
                if step is Step.KILL:
                    break

    def _hasten_keeper(self, copy: SupervisedCopy, now_s: float) -> None:
        """Helps a keeper that has not ended what its worker left: it may be stopped, or the processes unkillable."""
        over_s = now_s - copy.ended_s - _GRACE_S - _KEEPER_S
        if over_s > 0:
            copy.resume_keeper()
            copy.kill()
            if over_s > _KEEPER_S:
                copy.kill_keeper()
        if over_s > _STUCK_S and now_s - self._stuck_said_s > _STUCK_S:
            self._stuck_said_s = now_s
            self._say("kill", f"{self._of(copy)} left processes that SIGKILL does not end", copy, level="error")

    def _take(self, copy: SupervisedCopy, step: Step) -> None:
        """Takes one step; each is one line of the log."""
        escalation = copy.escalation
        assert escalation is not None
        plan, now_s = escalation.plan, time.monotonic()
        why = f"because {plan.sentence}"
        level = "info" if plan.is_planned else "warning"
        who, given = self._of(copy), span_words(escalation.given_s()) if escalation.given_s() != math.inf else ""

        def say(text: str) -> None:
            self._say(str(step), f"{who}: {text}", copy, plan.reason, level)

        match step:
            case Step.STACKS:
                places = copy.dump_stacks()
                if places:
                    escalation.wait(now_s, _STACKS_S)
                    say(f"{'; '.join(places)}, {why}")
                else:
                    wait = self._run_py_spy(copy, escalation.skip)
                    say(f"py-spy reads its stacks, {why}" if not wait else f"no stacks ({wait}), {why}")
                    if wait:
                        escalation.skip(now_s)
            case Step.DRAIN:
                asked = copy.drain()
                if asked:
                    say(f"SIGUSR1: it drains for at most {given}, {why}")
                else:
                    say(f"it cannot drain, {why}")
                    escalation.skip(now_s)
            case Step.ASK:
                say(f"SIGTERM to {copy.ask()}, SIGKILL in {given}, {why}")
            case Step.TERM:
                copy.set_state(CopyState.STOPPING, plan.sentence)
                sent = counted(copy.terminate(), "process")
                say(f"SIGTERM to its {sent}, SIGKILL in {given}, {why}")
            case Step.KILL:
                copy.set_state(CopyState.STOPPING, plan.sentence)
                killed = counted(copy.kill(), "process")
                if escalation.kills == 1:
                    say(f"SIGKILL to its {killed}, {why}")
        self._changed = True

    def _run_py_spy(self, copy: SupervisedCopy, done: Callable[[float], None]) -> str:
        """Starts py-spy. Returns why not, if so; otherwise `done` is called at its end."""
        watch = copy.watch
        if watch is None:
            return "it has not started"
        pid = watch.python_process()
        if pid is None:
            return "it is not a Python program"
        beside = os.path.dirname(sys.executable)
        program = shutil.which("py-spy") or shutil.which("py-spy", path=beside)
        if program is None:
            return "it has no Guard, and py-spy is not installed"
        of = self._of(copy)

        def show(output: str) -> None:
            lines = output.splitlines()[:_MOST_STACK_LINES] or ["py-spy did not end in time"]
            for line in lines:
                self._say("stacks", f"{of}: {line.rstrip()}", copy, keep=False)
            done(time.monotonic())

        command = [program, "dump", "--pid", str(pid), "--nonblocking"]
        return "" if self._help(run_program(command), 3.0, show) else "py-spy cannot be started"

    # ---- processes of a keeper that was killed

    def _kill_orphans(self, *, wait: bool = False) -> int:
        """Kills the processes that the supervisor adopted from a keeper. Returns how many there still were."""
        while True:
            keepers = {copy.keeper.pid for copy in self._copies if copy.keeper is not None}
            found = [pid for pid in own_children() if pid not in keepers | self._runs.keys() | self._strangers]
            orphans = [Identity(pid, seen.start_ticks) for pid in found if (seen := self._is_orphan(pid)) is not None]
            for orphan in orphans:
                kill_tree(orphan.pid)
                signal_process(orphan, signal.SIGKILL)
            self._reap()
            if not wait or not orphans:
                return len(orphans)
            time.sleep(0.01)

    def _is_orphan(self, pid: int) -> Stat | None:
        """Returns the stat of a process that a worker has left; None if it has ended or is not from a worker.

        As PID 1 the supervisor also gets the orphans of processes that others start in its container.
        """
        seen = read_stat(REAL, pid)
        if seen is None or seen.state in "ZX":
            return None
        if os.getpid() != _PID_1:
            return seen
        watches = [copy.watch for copy in self._copies if copy.watch is not None]
        known = any(pid in watch.tree and watch.tree[pid].start_ticks == seen.start_ticks for watch in watches)
        environment = read_or_none(REAL, f"/proc/{pid}/environ") or ""
        return seen if known or self._mark in environment.split("\0") else None

    # ---- signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Handles signals in the loop. What the starter ignores, as nohup does with SIGHUP, stays ignored."""
        self._wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        old_wakeup = signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        before: dict[int, Any] = {}
        real_time = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
        asked = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, *_FORWARDED, *real_time)
        for number in asked:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._on_signal)
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_wakeup)
            os.close(self._wake_r)
            os.close(wake_w)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._pending.append(number)

    def _handle_signals(self, now_s: float) -> None:
        while self._pending:
            self._handle(self._pending.popleft(), now_s)

    def _handle(self, number: int, now_s: float) -> None:
        name = _signal_name(number)
        match number:
            case signal.SIGTERM:
                self._stop_all(FINE, f"the supervisor got {name}", now_s)
            case signal.SIGINT:
                self._interrupts += 1
                if self._interrupts == 1:
                    self._stop_all(128 + number, "the supervisor was interrupted", now_s)
                else:
                    self._say("signal", f"{name} again: kills all workers", level="warning")
                    for copy in self._copies:
                        if copy.escalation is not None:
                            copy.escalation.hurry(Step.KILL, now_s)
            case signal.SIGHUP:
                if self._had_terminal and not _has_terminal():
                    self._stop_all(128 + number, "the terminal was closed", now_s)
                elif self._stop_code is None:
                    self._say("signal", f"{name}: restarts the workers one after the other")
                    self._systemd.reloading()
                    self._rolling = deque(self._copies)
            case signal.SIGUSR1:
                self._say("signal", f"{name}: all workers drain and are started again")
                for copy in self._copies:
                    self._recycle(copy, f"the supervisor got {name}", now_s)
            case signal.SIGUSR2:
                self._say("signal", f"{name}: the stacks of all workers")
                for copy in self._copies:
                    self._show_stacks(copy)
            case _:
                sent = sum([copy.send(number) for copy in self._copies])
                if number not in _ROUTINE:
                    self._say("signal", f"{name} was forwarded to {counted(sent, 'worker')}")

    def _show_stacks(self, copy: SupervisedCopy) -> None:
        if copy.worker is None or copy.watch is None:
            return
        copy.watch.refresh()
        places = copy.dump_stacks()
        problem = "" if places else self._run_py_spy(copy, lambda now_s: None)
        if places or problem:
            self._say("stacks", f"{self._of(copy)}: {'; '.join(places) or f'no stacks ({problem})'}", copy)

    def _recycle(self, copy: SupervisedCopy, why: str, now_s: float) -> None:
        """Replaces a worker because the operator asks for it."""
        if self._stop_code is not None:
            return
        copy.policy.forgive()
        if not copy.is_running:
            copy.restart_reason = copy.restart_reason or RestartReason.RECYCLE
            copy.due_s = now_s
            copy.set_state(CopyState.BACKOFF, why)
        elif copy.escalation is None:
            copy.refresh()
            self._escalate(copy, plan_recycle(RestartReason.RECYCLE, why, copy.times), now_s)

    def _stop_all(self, code: int, why: str, now_s: float) -> None:
        if self._stop_code is not None:
            return
        self._stop_code = code
        self._rolling.clear()
        self._rolled = None
        self._say("stop", f"stops: {why}")
        self._systemd.stopping()
        for copy in self._copies:
            if not copy.is_running:
                if not copy.is_over:
                    copy.set_state(CopyState.DONE, "the supervisor stops")
            elif copy.escalation is None or copy.escalation.step in (None, Step.DRAIN):
                copy.refresh()
                self._escalate(copy, plan_stop(why, copy.times), now_s)

    def _roll(self, now_s: float) -> None:
        """Goes on with a rolling restart: the next worker is replaced when the last new one runs."""
        copy = self._rolled
        if copy is not None:
            is_new = copy.worker is not None and copy.escalation is None and now_s - copy.started_s >= _SETTLED_S
            if not is_new and not copy.is_over:
                return
            self._rolled = None
            if copy.state is CopyState.FAILED:
                self._rolling.clear()
                self._say("signal", f"the restart of all workers ends here: {self._of(copy)} failed", level="error")
            if not self._rolling:
                self._say("signal", "the restart of all workers has ended")
                self._systemd.ready()
        if self._rolling and self._stop_code is None:
            self._rolled = self._rolling.popleft()
            self._recycle(self._rolled, "the supervisor got SIGHUP", now_s)

    # ---- what others are told

    def _of(self, copy: SupervisedCopy) -> str:
        number = f" {copy.number}" if len(self._copies) > 1 else ""
        return f"worker{number}" + (f" (pid {copy.last_pid})" if copy.last_pid else "")

    def _say(
        self,
        kind: str,
        text: str,
        copy: SupervisedCopy | None = None,
        reason: RestartReason | None = None,
        level: str = "info",
        *,
        pid: int = 0,
        keep: bool = True,
    ) -> None:
        number = 0 if copy is None else copy.number
        now = time.time()
        facts = {
            "t": round(now, 3),
            "level": level,
            "kind": kind,
            "copy": number,
            "pid": copy.last_pid if copy is not None else pid,
            "reason": None if reason is None else str(reason),
            "text": text,
        }
        self._log.write(facts, text)
        if keep:
            self._events.append(SupervisorEvent(t=now, copy=number, kind=kind, text=printable(text)[:1000]))
        self._changed = True

    def _restart_words(self) -> str:
        total = self._restarts()
        if not total:
            return "no restarts"
        by_reason = ", ".join(f"{n} {reason}" for reason, n in total.items())
        return f"{counted(sum(total.values()), 'restart')} ({by_reason})"

    def _restarts(self) -> Counter[RestartReason]:
        return sum((copy.restarts for copy in self._copies), Counter())

    def _publish(self, now_s: float) -> None:
        if not self._changed and now_s - self._written_s < REWRITE_S:
            return
        self._changed, self._written_s = False, now_s
        pid, ticks = self._file.identity
        status = SupervisorStatus(
            pid=pid,
            start_ticks=ticks or 0,
            name=self._name,
            command=self._options.command,
            workers=tuple(copy.status_row() for copy in self._copies),
            restarts={str(reason): n for reason, n in self._restarts().items()},
            events=tuple(self._events),
        )
        with contextlib.suppress(OSError), self._spending():  # a full disk
            self._file.write(status)

    def _tell_systemd(self, now_s: float) -> None:
        if not self._systemd.is_on:
            return
        running = sum(copy.worker is not None for copy in self._copies)
        if not self._was_ready and running == len(self._copies):
            self._was_ready = True
            self._systemd.ready()
        self._systemd.status(f"{running} of {counted(len(self._copies), 'worker')} running; {self._restart_words()}")
        if self._stop_code is not None and now_s - self._extended_s > 5:
            self._extended_s = now_s
            self._systemd.still_stopping(15)
        if self._systemd.watchdog_s is not None and now_s >= self._watchdog_s and all(map(_is_healthy, self._copies)):
            self._watchdog_s = now_s + self._systemd.watchdog_s
            self._systemd.watchdog()

    @contextlib.contextmanager
    def _spending(self) -> Iterator[None]:
        """Frees the reserved descriptors: what follows works even if all others are in use."""
        with contextlib.ExitStack() as stack:
            for _ in range(_RESERVE):
                stack.enter_context(self._reserve.spend())
            yield


def _is_healthy(copy: SupervisedCopy) -> bool:
    """Whether systemd may be told that this copy works; never while it is down, or was found not to work."""
    if copy.state is CopyState.DONE:
        return True
    is_bad = copy.escalation is not None and not copy.escalation.plan.is_planned
    return copy.is_running and not is_bad


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
