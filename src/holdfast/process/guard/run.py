"""One run of a Guard, from the start of its `with` block to its end: the thread that samples, the drain, the state.

All that it needs is imported, opened and reserved when it starts: it samples, logs, drains and exits with no free
descriptor.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import queue
import random
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from errno import EMFILE, ENOMEM, errorcode

from ..._util.text import counted, span_words
from ...errors import InputError
from ..doctor.model import Sample
from ..fd_owners.agent import AgentListener, listen
from .caps import CHILDREN, FDS, RSS, THREADS, CappedResource, CapWatch, ResolvedCap
from .drain_signals import DrainSignals
from .emergency import HARD_EXIT, GuardLog, end_at_once
from .health import Health, HealthLimits, OutageWatch, classify_health
from .heartbeat import AT, GuardState, HeartbeatPage, parse_heartbeat
from .jobs import GuardJob, JobTable, current_job, is_main_thread
from .leak_watch import LeakWatch, due_s
from .options import GuardOptions
from .own_process import OwnProcess
from .shortages import SHORTAGES, error_text, find_errno, is_short_of_fds

_TREE_EVERY = 5  # scan the process tree every N samples
# A drain that begins this many times its time-out before the limit is reached is done in comfort.
DRAINS = 2
_PAUSE_SAMPLES = 5
_JOIN_S = 5.0
_OK_NS, _OK_WALL_NS, _OK_CALLS = AT["ok_ns"], AT["ok_wall_ns"], AT["ok_calls"]
_STEP_NS, _FAILS_IN_ROW = AT["step_ns"], AT["fails_in_row"]


class DrainRequests:
    """What `draining` returns, and why. Each method may be called in a signal handler: only plain stores, and a put
    into a SimpleQueue, which may interrupt itself."""

    def __init__(self) -> None:
        self.is_draining = False
        self.is_stopped = False  # an operator's stop: no restart
        self.reason = ""
        self.waiting: deque[str] = deque()
        self.wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def asks_for_restart(self) -> bool:
        return self.is_draining and not self.is_stopped

    def request(self, reason: str, *, restart: bool = True) -> None:
        """Starts the drain; the guard's thread does the rest."""
        if not restart:  # an operator's stop wins over a restart, whichever comes first
            self.is_stopped = True
            self.reason = reason
        elif not self.reason:
            self.reason = reason
        self.is_draining = True
        self.waiting.append(reason)
        self.wake.put(None)


class _Tree:
    """What the descendants use, as of the last scan."""

    def __init__(self) -> None:
        self.due_s = self.shared_due_s = 0.0
        self.pids: list[int] = []
        self.rss = self.children = self.shared = 0


class GuardRun:
    """Opens all it needs when it is made. `callbacks` are those of `on_drain`; more may follow.

    Raises:
        ValueError: the process is above a cap already.
    """

    def __init__(self, options: GuardOptions, callbacks: Sequence[Callable[..., object]]) -> None:
        self.options = options
        self.pid = os.getpid()
        self._callbacks = callbacks
        self._lock = threading.RLock()  # a signal handler of the program may call ok() or fail() within one
        self.state = GuardState.STARTING
        self.is_open = False
        self.was_asked = False  # whether it drains: the program leaves its loop then
        self.drain = DrainRequests()
        self.drain_at_s = math.inf
        self.drained = threading.Event()
        self._calls: threading.Thread | None = None
        self._fails = self._fails_in_row = self._ok_calls = 0
        self._cap_watches = {what: CapWatch() for what in options.caps}
        self._outage = OutageWatch()
        self._last_fault = ""
        self.ignored_until_s = 0.0
        self._started_s = self.ticked_s = time.monotonic()
        self._bound()
        with contextlib.ExitStack() as undo:
            self._open(undo)
            self._undo = undo.pop_all()

    def _bound(self) -> None:
        """Shortens the bounds by the jitter: for each run anew, as forked workers may share one Guard."""
        options = self.options
        self.max_age_s, self.max_jobs = options.max_age_s * _less(options.jitter), options.max_jobs
        self._age_bound = "max_age less jitter" if options.jitter else "max_age"
        self._jobs_bound = "max_jobs"
        if options.max_jobs is not None:
            self.max_jobs = max(1, round(options.max_jobs * _less(options.jitter)))
            if self.max_jobs != options.max_jobs:
                self._jobs_bound = f"max_jobs={options.max_jobs:,} less jitter"

    # ---- start and end -----------------------------------------------------------------------------------

    def _open(self, undo: contextlib.ExitStack) -> None:
        name = self.options.name
        self.log = GuardLog(self.options.log, f"{name}[{self.pid}]" if name else f"[{self.pid}]")
        undo.callback(self.log.close)
        self.own = OwnProcess()
        undo.callback(self.own.close)
        self._hold_reserve(undo)
        self._memory = self.own.memory_limit() if RSS in self.options.caps else None
        self._refuse_low_caps()
        self.page = HeartbeatPage(name)
        undo.callback(self.page.close)
        if self.page.problem:
            self.log.write(f"its heartbeat is not visible to other processes: {self.page.problem}")
        listener = self._listen()
        if listener is not None:
            undo.callback(listener.close)
        self.jobs = JobTable(self.page, self.own)
        self.leak_watch = LeakWatch(self.own, self.options.every_s, self._started_s - self.own.age_s())
        self.tree = _Tree()
        self._fill_page()
        self.signals = DrainSignals(self.log, self.own, self.page, self.drain.request, self._must_hold_signals)
        undo.callback(self.signals.restore)
        self.signals.take()
        self.is_open = True
        undo.callback(setattr, self, "is_open", False)
        self._stop = False
        self.thread = threading.Thread(target=self._run, name="holdfast-guard", daemon=True)
        self.thread.start()
        undo.callback(self._stop_thread)

    def _hold_reserve(self, undo: contextlib.ExitStack) -> None:
        """Keeps the soft limit below the hard one: raising it again takes microseconds and no descriptor."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard == resource.RLIM_INFINITY or not self.options.reserve_fds:
            return
        # At most an eighth of a small limit.
        goal = hard - min(self.options.reserve_fds, hard // 8)
        if (soft != resource.RLIM_INFINITY and soft <= goal) or goal <= self.own.count_fds():
            return
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))

        def restore() -> None:
            now = resource.getrlimit(resource.RLIMIT_NOFILE)
            if now == (goal, hard):  # nobody else has changed it
                with contextlib.suppress(OSError, ValueError):
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        undo.callback(restore)

    def _refuse_low_caps(self) -> None:
        """Raises where a soft cap is exceeded at the start: the worker would drain at once, again and again."""
        for what, used in ((FDS, self.own.count_fds()), (RSS, self.own.rss_bytes()), (THREADS, self.own.threads())):
            cap = self._resolved(what)
            if cap is not None and (which := cap.exceeded(used)):
                raise ValueError(
                    f"expected a cap above what the process uses at its start, but {what.sentence(used, cap, which)}. "
                    f"Raise {what.name}=, or start the guard earlier"
                )

    def _listen(self) -> AgentListener | None:
        """Lets `holdfast doctor` and `rescue` ask which objects hold the descriptors."""
        try:
            return listen(self.options.name or None)
        except (OSError, InputError) as error:
            self.log.write(f"other processes cannot ask for its owners: {error}")
            return None

    def _fill_page(self) -> None:
        options = self.options
        self.page.set(progress_timeout_ns=_ns(options.progress_s), drain_timeout_ns=_ns(options.drain_s))
        self.page.set_text("log", self.log.path)
        self._show_caps()

    def _show_caps(self) -> None:
        cap = self._resolved(FDS) or ResolvedCap(None, None)
        self.page.set(fd_soft_cap=cap.soft or 0, fd_hard_cap=cap.hard or 0)

    def close(self) -> None:
        """Ends the thread, after the callbacks of a drain, and undoes all that was opened."""
        self._undo.close()

    def _stop_thread(self) -> None:
        try:
            if self.drain.is_draining:
                self.drained.wait(_JOIN_S)
            if self._calls is not None:
                self._calls.join()  # meanwhile the thread still ends the process after the drain timeout
        finally:  # also after Ctrl-C
            self._stop = True
            self.drain.wake.put(None)
        if self.thread is not threading.current_thread():
            self.thread.join(_JOIN_S)
        if not self.thread.is_alive():
            self.answer_requests()  # a signal may have come after the thread's last round
            if self._calls is not None:
                self._calls.join(_JOIN_S)
        self.page.set(state=GuardState.ENDED)
        self.drained.set()  # nobody waits for a drain any longer
        left = f", {counted(len(self.jobs.active), 'job')} not finished" if self.jobs.active else ""
        why = f"; {self.drain.reason}" if self.drain.reason else ""
        failed = f", {counted(self._fails, 'failure')}" if self._fails else ""
        self.log.write(f"ended after {counted(self.jobs.done, 'job')}{failed}{left}{why}")

    def after_fork_in_child(self) -> None:
        """Makes the run of a forked child inactive: it has no thread, and the page and the signals are the parent's.
        Without this, a child would ignore SIGTERM."""
        self.is_open = self.drain.is_draining = False
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self.drained = threading.Event()
        self._undo.pop_all()
        self.page.detach()
        self.signals.restore()
        self.own.close()
        self.log.close()

    # ---- outcomes and jobs -------------------------------------------------------------------------------

    def ok(self) -> None:
        numbers = self.page.numbers
        with self._lock:
            self._ok_calls += 1
            self._store_success(numbers)
            numbers[_OK_CALLS] = self._ok_calls
        if self.state is GuardState.STARTING:
            self._begin()

    def _store_success(self, numbers: memoryview[int]) -> None:
        numbers[_OK_NS] = time.monotonic_ns()
        numbers[_OK_WALL_NS] = time.time_ns()
        if self._fails_in_row:
            self._fails_in_row = numbers[_FAILS_IN_ROW] = 0

    def fail(self, error: BaseException | str | None) -> None:
        number, is_remote = find_errno(error) if isinstance(error, BaseException) else (None, False)
        with self._lock:
            self._fails += 1
            self._fails_in_row += 1
            self.page.set(
                fail_ns=time.monotonic_ns(), fails=self._fails, fails_in_row=self._fails_in_row, errno=number or 0
            )
            self.page.set_text("error", error_text(error))
        self._begin()
        if number in SHORTAGES:
            self._react_to_shortage(number, error, is_remote=is_remote)

    def _react_to_shortage(self, number: int | None, error: BaseException | str | None, *, is_remote: bool) -> None:
        name = errorcode.get(number or 0, str(number))
        why = f"{name} ({error_text(error)})"
        if number == EMFILE:
            used, soft = self.own.count_fds(), self.own.fd_limits()[0]
            if soft is not None and is_short_of_fds(used, soft):
                self._end_at_once(f"it has no free descriptor: {why}", owners=True)
            self._log_foreign(f"{why} is a failure like others: this process uses {used:,} of {soft or math.inf:,}")
        elif number == ENOMEM and is_remote:
            self._log_foreign(f"{why} is a failure like others: it is another process's")
        else:
            self.drain.request(why)

    def _log_foreign(self, text: str) -> None:
        """Logs a shortage of others when it first appears, not with each attempt."""
        if self._fails_in_row <= 1:
            self.log.write(text)

    def step(self) -> None:
        job, now_ns = current_job.get(), time.monotonic_ns()
        if job is None or not job.mark(self, now_ns):
            if is_main_thread():
                self.jobs.main_step_ns = now_ns
            else:
                self.jobs.loose_step_ns = now_ns
        self.page.numbers[_STEP_NS] = now_ns
        if self.state is GuardState.STARTING:
            self._begin()

    def _begin(self) -> None:
        if self.state is not GuardState.STARTING:
            return
        with self._lock:  # the guard's thread may begin to drain just now
            self.page.set(begun_ns=time.monotonic_ns())
            if self.state is GuardState.STARTING:
                self.state = GuardState.RUNNING
                self.page.set(state=GuardState.RUNNING)

    def start_job(self, job: GuardJob) -> None:
        if not self.is_open:
            return
        self.signals.call_waiting()  # it takes a job although it drains
        job.started_ns = time.monotonic_ns()
        if job.outer is not None:
            job.outer.mark(self, job.started_ns)
        with self._lock:
            self.jobs.add(job)
        if self.state is GuardState.STARTING:
            self._begin()

    def end_job(self, job: GuardJob, error: BaseException | None) -> None:
        if not self.is_open:
            return
        now_ns = time.monotonic_ns()
        fds = self.jobs.count_fds(now_ns)
        with self._lock:
            if error is None:
                self._store_success(self.page.numbers)
            ended = self.jobs.remove(job, fds, has_failed=error is not None)
        if job.outer is not None:
            job.outer.mark(self, now_ns)
        if isinstance(error, Exception):
            self.fail(error)
        if self.max_jobs is not None and ended >= self.max_jobs and not self.drain.is_draining:
            self.drain.request(f"{counted(ended, 'job')} done ({self._jobs_bound})")

    # ---- drain -------------------------------------------------------------------------------------------

    @property
    def exit_code(self) -> int:
        return self.options.exit_code if self.drain.asks_for_restart else 0

    def _must_hold_signals(self) -> bool:
        """Whether a handler that the program had before must wait: for a job, or for the end of the block."""
        return self.was_asked or bool(self._callbacks) or bool(self.jobs.active)

    def answer_requests(self) -> None:
        while self.drain.waiting:
            reason = self.drain.waiting.popleft()
            if self.state is GuardState.DRAINING:
                self._correct_drain()
            else:
                self._start_drain(reason)

    def _start_drain(self, reason: str) -> None:
        self.drain_at_s = time.monotonic()
        code = self.exit_code
        with self._lock:
            self.state = GuardState.DRAINING
            self.page.set_text("reason", reason)
            self.page.set(drain_ns=time.monotonic_ns(), exit_code=code, state=GuardState.DRAINING)
        self.log.write(f"draining: {reason}; will exit with {code}")
        try:
            if self._callbacks:
                # In a thread of their own: the guard's must see the end of the drain timeout, and a hard cap.
                calls = threading.Thread(target=self._call_all, args=(reason,), name="holdfast-drain", daemon=True)
                calls.start()
                self._calls = calls
        except RuntimeError:  # no further thread is allowed
            self.drained.set()
            self._call_all(reason)
        finally:
            self.drained.set()

    def _correct_drain(self) -> None:
        """An operator's stop came after a request for a restart."""
        if self.page.get("exit_code") != self.exit_code:
            self.page.set_text("reason", self.drain.reason)
            self.page.set(exit_code=self.exit_code)
            self.log.write(f"draining: {self.drain.reason}; will exit with {self.exit_code}")

    def _call_all(self, reason: str) -> None:
        for callback in self._callbacks:
            try:
                callback(reason) if _takes_argument(callback) else callback()
            except BaseException as error:  # noqa: BLE001 - the drain goes on; sys.exit() would only end this thread
                name = getattr(callback, "__name__", repr(callback))
                self.log.write(f"on_drain: {name}() failed: {error_text(error)}")

    def _end_at_once(self, why: str, *, owners: bool) -> None:
        self.page.set_text("reason", why)
        began_ns = self.page.get("drain_ns") or time.monotonic_ns()
        self.page.set(drain_ns=began_ns, state=GuardState.DRAINING, exit_code=HARD_EXIT)
        end_at_once(self.log, self.own, why, HARD_EXIT, owners=owners)

    # ---- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop:
            with contextlib.suppress(queue.Empty):
                self.drain.wake.get(timeout=self.options.every_s)
                while True:
                    self.drain.wake.get_nowait()
            try:
                self.answer_requests()
                if not self._stop:
                    self.tick()
            except Exception as error:  # noqa: BLE001 - a fault of the guard must not leave the worker unguarded
                self._report_fault(error)

    def _report_fault(self, error: Exception) -> None:
        """Logs a fault once, not with every sample."""
        with contextlib.suppress(Exception):  # it may be a MemoryError
            text = error_text(error)
            if text != self._last_fault:
                self._last_fault = text
                self.log.write(f"a sample failed: {text}")

    def tick(self) -> None:
        """Takes one sample, and reacts to it."""
        now_s = time.monotonic()
        self.page.restore()
        self.page.set(alive_ns=time.monotonic_ns())
        self.signals.check()
        with self._lock:
            self.jobs.show_quietest()
        self._ignore_pause(now_s)
        try:
            sample = self._sample(now_s)
        finally:
            self._check_times(now_s)  # whatever fails above
        options = self.options
        if self.state is not GuardState.DRAINING and options.eta_s is not None:
            within_s = min(options.eta_s, DRAINS * options.drain_s)
            ok_s, has_cap = self.page.get("ok_ns") / 1e9, FDS in options.caps and options.caps[FDS].soft is not None
            if why := self.leak_watch.check(sample, self.jobs.samples, ok_s, within_s, has_cap=has_cap):
                self.drain.request(why)

    def _ignore_pause(self, now_s: float) -> None:
        """Gives the worker time after the process was stopped, as a container that was paused is: nothing could succeed
        meanwhile."""
        gap_s, self.ticked_s = now_s - self.ticked_s, now_s
        if gap_s > _PAUSE_SAMPLES * self.options.every_s:
            self.drain_at_s += gap_s
            self.ignored_until_s = now_s + min(gap_s, self.options.progress_s or 0.0)

    def _sample(self, now_s: float) -> Sample:
        """Counts everything and checks the caps."""
        tree, caps = self.tree, self.options.caps
        fds, rss, threads = self.own.count_fds(), self.own.rss_bytes(), self.own.threads()
        self.page.set(fds=fds, rss_bytes=rss, threads=threads)
        self._show_caps()  # their limit may have changed
        sample = Sample(at_s=now_s, fds=fds, rss_bytes=rss, threads=threads, children=tree.children)
        self.leak_watch.series.add(sample)
        if now_s >= tree.due_s and self.options.counts_tree:
            self._scan_tree()
        self._check(FDS, fds, sample)
        self._check(THREADS, threads, sample)
        self._check(CHILDREN, tree.children, sample)
        self._check(RSS, rss + tree.rss if RSS in caps and caps[RSS].tree else rss, sample)
        return sample

    def _check_times(self, now_s: float) -> None:
        if self.state is GuardState.DRAINING:
            if now_s - self.drain_at_s > self.options.drain_s:
                took = span_words(now_s - self.drain_at_s)
                self._end_at_once(f"its drain ({self.drain.reason}) has taken {took}", owners=False)
            return
        if now_s - self._started_s >= self.max_age_s:
            age = span_words(now_s - self._started_s)
            self.drain.request(f"it is {age} old ({self._age_bound})")
        if now_s >= self.ignored_until_s:
            self._check_progress()

    def _resolved(self, what: CappedResource) -> ResolvedCap | None:
        cap = self.options.caps.get(what)
        if cap is None:
            return None
        limit = None
        if what is FDS:
            limit = self.own.fd_limits()[0]  # now: `holdfast rescue` may have raised it
        elif what is RSS:
            limit = self._memory
        return what.resolve(cap, limit)

    def _check(self, what: CappedResource, used: int, sample: Sample) -> None:
        cap = self._resolved(what)
        if cap is None:
            return
        if what is RSS and self.options.caps[RSS].tree and self.tree.pids and cap.exceeded(used):
            used = self._without_shared(used)
        which = self._cap_watches[what].check(used, cap)
        if which == "hard":
            self._end_at_once(what.sentence(used, cap, which), owners=what is FDS)
        elif which and self.state is not GuardState.DRAINING:
            leak = ""
            with contextlib.suppress(Exception):  # it drains, whatever the scan meets
                if what is FDS and self.options.eta_s is not None:
                    leak = self.leak_watch.describe(sample, self.jobs.samples)
            sentence = what.sentence(used, cap, which)
            self.drain.request(f"{leak}; {sentence}" if leak else sentence)

    def _without_shared(self, rss: int) -> int:
        """Subtracts the memory that the tree shares, which the sum of resident sizes contains once for each process.

        The kernel needs seconds for a large tree: between two scans the last answer is used.
        """
        tree = self.tree
        if time.monotonic() >= tree.shared_due_s:
            began_s = time.thread_time()
            pss = self.own.pss_of([self.own.pid, *tree.pids])
            tree.shared = max(0, rss - pss) if pss else 0
            tree.shared_due_s = due_s(time.monotonic(), began_s, _TREE_EVERY * self.options.every_s)
        return rss - tree.shared

    def _scan_tree(self) -> None:
        began_s, tree, caps = time.thread_time(), self.tree, self.options.caps
        found = self.own.tree()
        if found is not None:
            tree.pids, tree.children = found
            if CHILDREN in caps and caps[CHILDREN].tree:
                tree.children = len(tree.pids)
            tree.rss = self.own.rss_of(tree.pids)
            self.page.set(children=tree.children)
        tree.due_s = due_s(time.monotonic(), began_s, _TREE_EVERY * self.options.every_s)

    def _check_progress(self) -> None:
        page = parse_heartbeat(self.page.copy(), jobs=False)
        if page is None:
            return
        now_ns = time.monotonic_ns()
        if change := self._outage.check(page, now_ns):
            self.log.write(change)
        if self.options.progress_s is None:
            return
        found = classify_health(page, now_ns, HealthLimits(progress_s=self.options.progress_s), "R")
        if found.health in (Health.HUNG, Health.FAILING):
            self.drain.request(found.sentence)


def _takes_argument(callback: Callable[..., object]) -> bool:
    try:
        inspect.signature(callback).bind("")
    except TypeError:
        return False
    except ValueError:
        pass  # a builtin without a signature
    return True


def _less(jitter: float) -> float:
    return 1 - random.uniform(0, jitter)


def _ns(seconds: float | None) -> int:
    return 0 if seconds is None or seconds == math.inf else int(seconds * 1e9)
