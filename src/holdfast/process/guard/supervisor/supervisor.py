"""The supervisor: one loop in one thread that starts workers, scans them, and ends and restarts them.

It waits for messages of its reapers, their ends (pidfd), signals, and the output of its helper processes. Whatever
could block it, such as a probe, runs in a process of its own. The number of its descriptors is bounded by
`max_descriptors`.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from errno import EAGAIN, EMFILE, ENFILE, ENOMEM, ETXTBSY
from functools import partial
from types import FrameType
from typing import Any

from ...._util.fds import Reserve, raise_nofile
from ...._util.text import counted, one_line
from ....errors import InputError
from ....procfs.processes import Identity, Stat, read_stat
from ....procfs.procfs import REAL, read_or_none
from .config import SuperviseOptions, name_of, watched_words
from .helper_run import HelperRuns
from .log_lines import LogLines
from .near_limit import write_use
from .process_tree import kill_tree, own_children, signal_process
from .progress import file_probe, http_probe
from .reaper import (
    WorkerLaunch,
    adopt_orphans,
    start_reaper,
    wake_group_at_end,
)
from .reporting import SupervisorReport
from .supervised_worker import GRACE_S, SupervisedWorker
from .worker_machine import (
    EndStep,
    RestartReason,
    WorkerEvent,
    WorkerState,
    plan_bad_health,
    plan_recycle,
    plan_stop,
)
from .worker_watch import WorkerFinding, WorkerWatch, pss_of

FINE, GAVE_UP = 0, 1
_RESERVE = 6
_BASE_DESCRIPTORS = 24  # of Python, the log, systemd's socket, the wake-up pipe, the reserve
_DESCRIPTORS_PER_WORKER = 8
_SCAN_SHARE = 50  # a scan that took a millisecond is followed by 50 without one
_LATE_S = 5.0
_SETTLED_S = 1.0  # a rolling restart goes on when the new worker has run that long
_PSS_S = 5.0
_USE_S = 60.0
_MAX_COMMAND = 200
_PID_1 = 1
_ORPHANS_S = 0.05

_MARK = "HOLDFAST_SUPERVISOR"  # distinguishes the processes of this supervisor's workers from others
_SHORTAGES = frozenset({EAGAIN, ENOMEM, EMFILE, ENFILE, ETXTBSY})  # a start that failed by these may work later
_ROUTINE = (signal.SIGCONT, signal.SIGWINCH)
_FORWARDED = (signal.SIGQUIT, signal.SIGCONT, signal.SIGWINCH, signal.SIGPWR, signal.SIGALRM)


def max_descriptors(workers: int) -> int:
    """Returns how many descriptors the supervisor needs at most."""
    return _BASE_DESCRIPTORS + _DESCRIPTORS_PER_WORKER * workers


class Supervisor:
    def __init__(self, options: SuperviseOptions, log: LogLines) -> None:
        self._options = options
        self._log = log
        self._workers: list[SupervisedWorker] = []
        self._pending: deque[int] = deque()
        self._helpers = HelperRuns()
        self._stop_code: int | None = None  # what the supervisor exits with; None: it is not stopping
        self._interrupts = 0
        self._refused: InputError | None = None
        self._rolling: deque[SupervisedWorker] = deque()
        self._rolled: SupervisedWorker | None = None
        self._scan_s = 0.0

    # ---- the loop

    def run(self) -> int:
        """Runs until all workers have ended for good, or a signal asks to stop. Returns the exit code.

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
        with contextlib.suppress(OSError):
            wake_group_at_end()
        self._strangers = set(own_children())  # of the program that became this one by exec
        self._environment = dict(os.environ)
        name = self._options.name or name_of(self._options.command)
        self._report = SupervisorReport(name, self._options, self._workers, self._log, self._environment)
        self._environment |= {_MARK: self._report.mark, "HOLDFAST_WORKERS": str(self._options.workers)}
        for number in range(1, self._options.workers + 1):
            self._workers.append(SupervisedWorker(number, self._options, self._report, self._helpers))
        self._reserve = Reserve(_RESERVE)
        self._had_terminal = _has_terminal()
        try:
            with self._signals():
                return self._run()
        finally:
            for worker in self._workers:
                worker.closed()  # a reaper whose channel is closed ends its worker
            self._report.close()
            self._reserve.close()

    def _raise_limit(self) -> tuple[int, int]:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        need = max_descriptors(self._options.workers)
        if 0 <= raise_nofile(need)[1] < need:
            raise InputError(
                f"expected a limit of at least {need:,} descriptors for {counted(self._options.workers, 'worker')}, "
                f"got {before[1]:,} (ulimit -Hn)"
            )
        return before

    def _run(self) -> int:
        command = one_line(" ".join(self._options.command))[:_MAX_COMMAND]
        self._report.log("begin", f"runs {counted(len(self._workers), 'worker')}: {command}", pid=os.getpid())
        self._report.log("watches", watched_words(self._options), keep=False)
        while not self._is_over():
            self._wait()
            with self._spending():
                self._work()
        return self._end()

    def _work(self) -> None:
        """Does all that is due. Each part reads the clock anew: the one before it may have taken time."""
        self._handle_signals(time.monotonic())
        self._reap()
        for worker in self._workers:
            worker.receive(time.monotonic())
            self._close_ended(worker, time.monotonic())
        self._helpers.finish(time.monotonic())
        self._start_due(time.monotonic())
        if time.monotonic() >= self._scan_s:
            self._scan_all()
        for worker in self._workers:
            worker.advance(time.monotonic())
        self._roll(time.monotonic())
        self._report.notify_systemd(time.monotonic(), is_stopping=self._stop_code is not None)
        self._report.publish(time.monotonic())

    def _is_over(self) -> bool:
        if self._rolling or self._rolled:
            return False
        return all(worker.is_over for worker in self._workers)

    def _end(self) -> int:
        self._kill_orphans(wait=True)
        self._helpers.close()
        if self._refused is not None:
            raise self._refused
        failed = [worker for worker in self._workers if worker.state is WorkerState.GIVEN_UP]
        code = self._stop_code if self._stop_code is not None else GAVE_UP if failed else FINE
        restarts = self._report.restart_words()
        if failed and self._stop_code is None:
            text = f"gave up: {counted(len(failed), 'worker')} of {len(self._workers)} failed for good"
            self._report.log("gave-up", f"{text}; {restarts}; exits with {code}", level="error")
        else:
            self._report.log("end", f"all workers have ended; {restarts}; exits with {code}")
        return code

    def _wait(self) -> None:
        """Waits for an event, or until the next thing is due."""
        now_s = time.monotonic()
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        for worker in self._workers:
            if worker.reaper is not None and not worker.reaper_is_gone:
                poll.register(worker.reaper.pidfd, select.POLLIN)
                poll.register(worker.reaper.channel, select.POLLIN)
        for fd in self._helpers.fds:
            poll.register(fd, select.POLLIN)
        wait_s = max(0.0, self._due_s() - now_s)
        events = poll.poll(math.ceil(wait_s * 1000))
        late_s = time.monotonic() - now_s - wait_s
        if late_s > max(_LATE_S, 3 * self._options.tick_s):
            for worker in self._workers:
                if worker.watch is not None:
                    worker.watch.restart_clock(time.monotonic(), late_s)
        ready = {fd for fd, _ in events}
        if self._wake_r in ready:
            with contextlib.suppress(OSError):
                os.read(self._wake_r, 4096)
        self._helpers.read(ready)

    def _due_s(self) -> float:
        due = [self._scan_s]
        for worker in self._workers:
            if worker.state is WorkerState.BACKING_OFF:
                due.append(worker.due_s)
            if worker.escalation is not None and worker.is_running:
                due.append(worker.escalation.due_s)
            if worker.reaper_is_gone and worker.is_running:
                due.append(time.monotonic() + _ORPHANS_S)
        return min(*due, self._helpers.due_s)

    # ---- starts and ends

    def _start_due(self, now_s: float) -> None:
        for worker in self._workers:
            if worker.state is WorkerState.BACKING_OFF and now_s >= worker.due_s:
                if self._stop_code is None:
                    self._start(worker, now_s)
                else:
                    worker.move(WorkerEvent.FINISH, "the supervisor stops")

    def _start(self, worker: SupervisedWorker, now_s: float) -> None:
        launch = WorkerLaunch(
            command=self._options.command,
            environment=self._environment | {"HOLDFAST_WORKER": str(worker.number)},
            nofile=self._nofile,
            stop_s=self._options.stop_s,
            grace_s=min(GRACE_S, self._options.stop_s),
            drain_s=self._options.drain_s,
        )
        try:
            reaper = start_reaper(launch)
        except OSError as error:
            worker.retry_start(error.errno or EAGAIN, now_s)
            return
        worker.forked(reaper, now_s)

    def _reap(self) -> None:
        """Reaps all children that have ended, also those that were adopted: as PID 1 it gets everybody's."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._helpers.reaped(pid)
            for worker in self._workers:
                if worker.reaper is not None and worker.reaper.pid == pid:
                    worker.reaper_is_gone = True

    def _close_ended(self, worker: SupervisedWorker, now_s: float) -> None:
        if not worker.reaper_is_gone or worker.reaper is None:
            return
        if worker.status is None and not worker.run_errno and self._kill_orphans():
            return  # the reaper was killed: its processes are the supervisor's now, and end first
        worker.closed()
        if worker.run_errno in _SHORTAGES and self._stop_code is None:
            worker.retry_start(worker.run_errno, now_s)
            return
        if worker.run_errno and not any(one.ever_ran for one in self._workers) and self._stop_code is None:
            self._refused = InputError(worker.sentence)
            self._stop_all(FINE, worker.sentence, now_s)
        worker.decide(now_s, is_stopping=self._stop_code is not None)

    # ---- scans

    def _scan_all(self) -> None:
        now_s = time.monotonic()
        for worker in self._workers:
            if worker.reaper is None or worker.reaper_is_gone:
                continue
            worker.resume_reaper()
            if worker.process is not None and worker.watch is not None:
                self._scan(worker, worker.watch, time.monotonic())
        self._kill_orphans()
        self._scan_s = now_s + max(self._options.tick_s, _SCAN_SHARE * (time.monotonic() - now_s))

    def _scan(self, worker: SupervisedWorker, watch: WorkerWatch, now_s: float) -> None:
        before = watch.sentence
        found = watch.scan(now_s)
        self._report.changed |= before != watch.sentence
        if worker.escalation is None and watch.is_draining != (worker.state is WorkerState.DRAINING):
            if watch.is_draining:
                self._report.log("drain", f"{worker.name} drains: {watch.drain_reason}", worker)
            worker.move(WorkerEvent.DRAINS if watch.is_draining else WorkerEvent.WORKS, watch.sentence or "it runs")
        if watch.progress is not None and now_s >= watch.progress.next_s:
            self._probe(watch, now_s)
        if watch.wants_pss:
            self._read_pss(watch, now_s)
        if watch.limits.wants_use:
            self._read_use(watch)
        if watch.note:
            self._report.log("health", f"{worker.name}: {watch.note}", worker, level="warning")
            watch.note = ""
        if found is not None:
            self._found(worker, found, now_s)

    def _found(self, worker: SupervisedWorker, found: WorkerFinding, now_s: float) -> None:
        times = replace(worker.times, stop_s=max(worker.times.stop_s, found.ask_s))
        if worker.escalation is None:
            make = plan_bad_health if found.is_bad else plan_recycle
            worker.escalate(make(found.reason, found.sentence, times), now_s)
        elif (
            found.is_bad
            and worker.escalation.plan.is_planned
            and worker.escalation.step in (EndStep.DRAIN, EndStep.ASK)
        ):
            if worker.escalation.plan.reason is None:  # the supervisor stops
                worker.escalation.hurry(EndStep.TERM, now_s)
            else:
                worker.escalate(plan_bad_health(found.reason, found.sentence, times), now_s)

    def _probe(self, watch: WorkerWatch, now_s: float) -> None:
        progress = watch.progress
        assert progress is not None
        progress.next_s = math.inf  # until this one has ended
        is_file = self._options.progress_file is not None
        probe = file_probe(progress.what) if is_file else http_probe(progress.what, progress.probe_s)
        if not self._helpers.start(
            probe, progress.probe_s + 1, lambda output: progress.probed(output, time.monotonic())
        ):
            progress.next_s = now_s + progress.every_s

    def _read_pss(self, watch: WorkerWatch, now_s: float) -> None:
        pids = list(watch.tree)

        def work(write: int) -> None:
            os.write(write, b"%d" % pss_of(pids))

        def done(output: str) -> None:
            watch.learned_pss(int(output) if output.isdigit() and int(output) else None, time.monotonic())

        watch.wants_pss = False
        if not self._helpers.start(work, _PSS_S, done):
            watch.learned_pss(None, now_s)

    def _read_use(self, watch: WorkerWatch) -> None:
        pid, watch.limits.wants_use = watch.limits.wants_use, 0
        done = partial(watch.limits.learned_use, pid)
        if not self._helpers.start(partial(write_use, pid), _USE_S, done):
            done("")

    # ---- processes of a reaper that was killed

    def _kill_orphans(self, *, wait: bool = False) -> int:
        """Kills the processes that the supervisor adopted from a reaper. Returns how many there still were."""
        while True:
            reapers = {worker.reaper.pid for worker in self._workers if worker.reaper is not None}
            found = [pid for pid in own_children() if pid not in reapers | self._helpers.pids | self._strangers]
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
        watches = [worker.watch for worker in self._workers if worker.watch is not None]
        known = any(pid in watch.tree and watch.tree[pid].start_ticks == seen.start_ticks for watch in watches)
        environment = read_or_none(REAL, f"/proc/{pid}/environ") or ""
        return seen if known or f"{_MARK}={self._report.mark}" in environment.split("\0") else None

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
                    self._report.log("signal", f"{name} again: kills all workers", level="warning")
                    for worker in self._workers:
                        if worker.escalation is not None:
                            worker.escalation.hurry(EndStep.KILL, now_s)
            case signal.SIGHUP:
                if self._had_terminal and not _has_terminal():
                    self._stop_all(128 + number, "the terminal was closed", now_s)
                elif self._stop_code is None:
                    self._report.log("signal", f"{name}: restarts the workers one after the other")
                    self._report.systemd.reloading()
                    self._rolling = deque(self._workers)
            case signal.SIGUSR1:
                self._report.log("signal", f"{name}: all workers drain and are started again")
                for worker in self._workers:
                    self._recycle(worker, f"the supervisor got {name}", now_s)
            case signal.SIGUSR2:
                self._report.log("signal", f"{name}: the stacks of all workers")
                for worker in self._workers:
                    worker.show_stacks()
            case _:
                sent = sum([worker.send(number) for worker in self._workers])
                if number not in _ROUTINE:
                    self._report.log("signal", f"{name} was forwarded to {counted(sent, 'worker')}")

    def _recycle(self, worker: SupervisedWorker, why: str, now_s: float) -> None:
        """Replaces a worker because the operator asks for it."""
        if self._stop_code is not None:
            return
        worker.policy.reset()
        if not worker.is_running:
            worker.restart_now(why, now_s)
        elif worker.escalation is None:
            worker.refresh()
            worker.escalate(plan_recycle(RestartReason.RECYCLE, why, worker.times), now_s)

    def _stop_all(self, code: int, why: str, now_s: float) -> None:
        if self._stop_code is not None:
            return
        self._stop_code = code
        self._rolling.clear()
        self._rolled = None
        again = " (Ctrl-C again kills the workers)" if self._interrupts else ""
        self._report.log("stop", f"stops: {why}{again}")
        self._report.systemd.stopping()
        for worker in self._workers:
            if not worker.is_running:
                if not worker.is_over:
                    worker.move(WorkerEvent.FINISH, "the supervisor stops")
            elif worker.escalation is None or worker.escalation.step in (None, EndStep.DRAIN):
                worker.refresh()
                worker.escalate(plan_stop(why, worker.times), now_s)

    def _roll(self, now_s: float) -> None:
        """Goes on with a rolling restart: the next worker is replaced when the last new one runs."""
        worker = self._rolled
        if worker is not None:
            is_new = worker.process is not None and worker.escalation is None and now_s - worker.started_s >= _SETTLED_S
            if not is_new and not worker.is_over:
                return
            self._rolled = None
            if worker.state is WorkerState.GIVEN_UP:
                self._rolling.clear()
                self._report.log(
                    "signal",
                    f"the restart of all workers ends here: {worker.name} failed",
                    level="error",
                )
            if not self._rolling:
                self._report.log("signal", "the restart of all workers has ended")
                self._report.systemd.ready()
        if self._rolling and self._stop_code is None:
            self._rolled = self._rolling.popleft()
            self._recycle(self._rolled, "the supervisor got SIGHUP", now_s)

    @contextlib.contextmanager
    def _spending(self) -> Iterator[None]:
        """Frees the reserved descriptors: what follows works even if all others are in use."""
        with contextlib.ExitStack() as stack:
            for _ in range(_RESERVE):
                stack.enter_context(self._reserve.spend())
            yield


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
