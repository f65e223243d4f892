"""`hold.Guard`: keeps a worker within its limits, reports a heartbeat only after a success, and replaces
the worker before it fails.

    guard = hold.Guard(name="worker", fds=hold.Cap(soft=0.5, hard=0.85))
    with guard:
        while not guard.draining:
            try:
                job = api.poll()
                guard.ok()  # a success, even "nothing to do"
            except Exception as error:
                guard.fail(error)
                guard.wait("5s")
                continue
            if job:
                with guard.job(job.id):
                    run(job)
    raise SystemExit(guard.exit_code)

A thread samples the process once a second. All that it needs is imported, opened and reserved when the guard starts:
it samples, logs, drains and exits with no free descriptor.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import math
import os
import queue
import random
import resource
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from errno import EMFILE, ENFILE, ENOMEM, errorcode
from types import TracebackType
from typing import Self, TypeVar

from ..._util.process import call_after_fork
from ..._util.text import counted, one_line, parse_seconds, span_words
from ...errors import InputError
from ..doctor.model import JobSample, Sample
from ..error_guide.cause_chain import recognise, walk
from ..fd_owners.agent import AgentListener, listen
from .caps import CHILDREN, FDS, RSS, THREADS, Amount, Cap, CappedResource, CapWatch, ResolvedCap
from .drain_signals import DrainSignals
from .emergency import HARD_EXIT, GuardLog, end_at_once
from .health import Health, HealthLimits, OutageWatch, classify_health
from .heartbeat import AT, GuardState, HeartbeatPage, parse_heartbeat
from .leak_watch import LeakWatch, due_s
from .own_process import OwnProcess

RESTART_EXIT = 75  # EX_TEMPFAIL: supervisors restart a worker that exits with it
_EVERY_S = 1.0
_TREE_EVERY = 5  # scan the process tree every N samples
# A drain that begins this many times its time-out before the limit is reached is done in comfort.
DRAINS = 2
_PAUSE_SAMPLES = 5
_KEPT_JOBS = 2_000
_JOB_SAMPLE_EVERY_NS = 5_000_000  # a count takes 3 µs, which is much for a job of a millisecond
_MAX_JOB_CHARS = 256
_JOIN_S = 5.0
_MAX_NEEDED = 64
_LATCHED = frozenset({EMFILE, ENFILE, ENOMEM})
_OK_NS, _OK_WALL_NS, _OK_CALLS = AT["ok_ns"], AT["ok_wall_ns"], AT["ok_calls"]
_STEP_NS, _FAILS_IN_ROW, _JOBS_DONE = AT["step_ns"], AT["fails_in_row"], AT["jobs_done"]
_JOBS_STARTED, _JOBS_ACTIVE = AT["jobs_started"], AT["jobs_active"]
_JOB_STARTED_NS, _JOB_STEP_NS = AT["job_started_ns"], AT["job_step_ns"]

Time = str | float | None
Callback = TypeVar("Callback", bound=Callable[..., object])

_active: Guard | None = None


class Guard:
    """Watches this process, and decides when it is to be replaced.

    Args:
        name: How it is called in logs and by `holdfast watch`.
        fds: The cap on descriptors, in numbers or as a part of the soft limit; None: no cap. Without a soft cap, it
            also drains when it has used 80 % of its soft limit and still uses more and more.
        rss: The cap on resident memory; with `tree=True` of all descendants, too.
        threads, children: Caps on threads and child processes.
        max_jobs, max_age: It drains after that many jobs or that much time, less up to `jitter` of it, so that workers
            that started together are not replaced together.
        eta: It drains when it leaks descriptors, has used half of its soft limit and reaches it within this time, or
            within twice the `drain_timeout` if that is shorter. None: a leak is left to the caps.
        progress_timeout: It drains when nothing succeeds, or a job makes no step, for this long. It counts from the
            first call of `ok`, `fail`, `step` or `job` on.
        drain_timeout: The time that a drain may take. After that it ends at once.
        reserve_fds: The soft limit of descriptors is held this far below the hard one, for the dump at the end.
        exit_code: What `exit_code` is after a drain that asks for a restart.
        log: A file to append to; by default stderr.
        every: The time between two samples; by default a second.

    Raises:
        ValueError: an argument is not what it must be, or the process is above a soft cap already when it starts.
        RuntimeError: another Guard is active in this process.
    """

    __module__ = "holdfast"

    def __init__(
        self,
        name: str = "",
        *,
        fds: Cap | Amount = Cap(hard=0.95),  # noqa: B008 - frozen
        rss: Cap | Amount = None,
        threads: Cap | Amount = None,
        children: Cap | Amount = None,
        max_jobs: int | None = None,
        max_age: Time = None,
        jitter: float = 0.1,
        eta: Time = "6h",
        progress_timeout: Time = "10min",
        drain_timeout: Time = "15min",
        reserve_fds: int = 64,
        exit_code: int = RESTART_EXIT,
        log: str | os.PathLike[str] | None = None,
        every: Time = _EVERY_S,
    ) -> None:
        if not isinstance(name, str):
            raise ValueError(f"expected name= as text, got {name!r}")
        if not isinstance(jitter, (int, float)) or not 0 <= jitter < 1:
            raise ValueError(f"expected jitter= from 0 to below 1, got {jitter!r}")
        if max_jobs is not None and (isinstance(max_jobs, bool) or not isinstance(max_jobs, int) or max_jobs < 1):
            raise ValueError(f"expected max_jobs= of at least 1, got {max_jobs!r}")
        if isinstance(reserve_fds, bool) or not isinstance(reserve_fds, int) or reserve_fds < 0:
            raise ValueError(f"expected reserve_fds= of at least 0, got {reserve_fds!r}")
        if isinstance(exit_code, bool) or not isinstance(exit_code, int) or not 0 <= exit_code <= 255:
            raise ValueError(f"expected exit_code= from 0 to 255, got {exit_code!r}")
        if log is not None and not isinstance(log, (str, os.PathLike)):
            raise ValueError(f"expected log= as the path of a file, got {log!r}")
        self.name = one_line(name)
        self._caps: dict[CappedResource, Cap] = {}
        for what, cap in ((FDS, fds), (RSS, rss), (THREADS, threads), (CHILDREN, children)):
            if (checked := what.check(cap)) is not None:
                self._caps[what] = checked
        self._jitter = jitter
        self._max_jobs = max_jobs
        age_s = _seconds(max_age, "max_age")
        self._max_age_s = math.inf if age_s is None else age_s
        self._eta_s = _seconds(eta, "eta")
        self._progress_s = _seconds(progress_timeout, "progress_timeout")
        drain_s = _seconds(drain_timeout, "drain_timeout")
        self._drain_s = math.inf if drain_s is None else drain_s
        self._every_s = _seconds(every, "every") or _EVERY_S
        self._reserve_fds = reserve_fds
        self._restart_code = exit_code
        self._log_path = log

        self._lock = threading.RLock()  # a signal handler of the program may call ok() or fail() within one
        self._state = GuardState.STARTING
        self._is_open = False
        self._was_open = False
        self._was_warned = False
        self._code_was_read = False
        self._was_asked = False  # whether it drains: the program leaves its loop then
        self._is_draining = False
        self._is_stopped = False  # an operator's stop: no restart
        self._reason = ""
        self._drain_at_s = math.inf
        self._requests: deque[str] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put may be called in a signal handler
        self._drained = threading.Event()
        self._callbacks: list[Callable[..., object]] = []
        self._calls: threading.Thread | None = None
        self._jobs_started = self._jobs_done = self._jobs_failed = 0
        self._fails = self._fails_in_row = self._ok_calls = 0
        self._jobs_active: dict[int, _Job] = {}
        self._main_step_ns = self._loose_step_ns = 0  # outside of a job: in the main thread, and in others
        self._job_samples: deque[JobSample] = deque(maxlen=_KEPT_JOBS)
        self._job_shown: _Job | None = None
        self._job_sample_due_ns = 0
        self._cap_watches = {what: CapWatch() for what in self._caps}
        self._outage = OutageWatch()
        self._last_fault = ""
        self._ignored_until_s = 0.0

    # ---- what the worker calls ---------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        """Whether to take no new job: the worker finishes what it has and leaves its loop."""
        self._was_asked = True
        return self._is_draining

    @property
    def reason(self) -> str:
        """Why it drains; empty while it does not."""
        return self._reason

    @property
    def wants_restart(self) -> bool:
        """Whether this process asks to be replaced: for ranks that must agree before one of them leaves its loop."""
        self._code_was_read = self._was_asked = True
        return self._asks_for_restart

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 75 to be restarted, 0 after SIGTERM or without a drain."""
        self._code_was_read = True
        return self._code

    @property
    def _asks_for_restart(self) -> bool:
        return self._is_draining and not self._is_stopped

    @property
    def _code(self) -> int:
        return self._restart_code if self._asks_for_restart else 0

    def ok(self) -> None:
        """Reports a successful outcome, the only heartbeat that counts; a poll that found no job is one, too."""
        if not self._is_open:
            self._warn_not_started("ok")
            return
        numbers = self._page.numbers
        with self._lock:
            self._ok_calls += 1
            self._store_success(numbers)
            numbers[_OK_CALLS] = self._ok_calls
        if self._state is GuardState.STARTING:
            self._begin()

    def _store_success(self, numbers: memoryview[int]) -> None:
        numbers[_OK_NS] = time.monotonic_ns()
        numbers[_OK_WALL_NS] = time.time_ns()
        if self._fails_in_row:
            self._fails_in_row = numbers[_FAILS_IN_ROW] = 0

    def fail(self, error: BaseException | str | None = None) -> None:
        """Reports a failure. An EMFILE inside of it, however wrapped, ends the process at once if it is short of
        descriptors; an ENFILE or ENOMEM makes it drain."""
        if not self._is_open:
            self._warn_not_started("fail")
            return
        number, is_remote = find_errno(error) if isinstance(error, BaseException) else (None, False)
        with self._lock:
            self._fails += 1
            self._fails_in_row += 1
            self._page.set(
                fail_ns=time.monotonic_ns(), fails=self._fails, fails_in_row=self._fails_in_row, errno=number or 0
            )
            self._page.set_text("error", _error_text(error))
        self._begin()
        if number in _LATCHED:
            self._latch(number, error, is_remote=is_remote)

    def step(self) -> None:
        """Reports that the job of this thread or task goes on; in the main thread without a job, that the training loop
        does. A thread without a job may work for any: there it counts for all jobs."""
        if self._is_open:
            job, now_ns = _current_job.get(), time.monotonic_ns()
            if job is None or not job.mark(self, now_ns):
                if _is_main_thread():
                    self._main_step_ns = now_ns
                else:
                    self._loose_step_ns = now_ns
            self._page.numbers[_STEP_NS] = now_ns
            if self._state is GuardState.STARTING:
                self._begin()
        else:
            self._warn_not_started("step")

    def job(self, job_id: object = "") -> _Job:
        """Returns a context manager around one job. Its end without an error is a success; the descriptors that are
        open then show what each job leaks."""
        if not self._is_open:
            self._warn_not_started("job")
        return _Job(self, one_line(str(job_id)[:_MAX_JOB_CHARS]))

    def on_drain(self, callback: Callback) -> Callback:
        """Registers a function that is called once when the drain begins, in a thread of its own, with the reason. The
        end of the `with` block waits for it, until the drain timeout."""
        if not callable(callback):
            raise TypeError(f"expected a function, got {callback!r}")
        self._callbacks.append(callback)
        return callback

    def drain(self, reason: str = "the program asked for it", *, restart: bool = True) -> None:
        """Starts to drain: `draining` is True from now on."""
        if self._is_open:
            self._request(reason, restart=restart)
        else:
            self._warn_not_started("drain")

    def wait(self, timeout: Time = None) -> bool:
        """Waits until it drains or ends, or for `timeout`; returns `draining`. Use it instead of time.sleep between
        polls."""
        self._was_asked = True
        timeout_s = 0.0 if timeout == 0 else _seconds(timeout, "timeout")
        if self._is_open:
            self._drained.wait(timeout_s)
        else:
            self._warn_not_started("wait")
        return self._is_draining

    def _warn_not_started(self, method: str) -> None:
        """Warns once that the guard does nothing yet: a worker that forgot `with` would seem to be guarded."""
        if self._was_open or self._was_warned:  # after its end, and in a forked child, calls do nothing as they should
            return
        self._was_warned = True
        text = f"{method}() has no effect: this Guard is not started. Write `with guard:` around the loop"
        warnings.warn(text, RuntimeWarning, stacklevel=3)

    def __repr__(self) -> str:
        state = "draining" if self._is_draining else "active" if self._is_open else "not active"
        return f"<Guard {self.name or os.getpid()}: {state}, {counted(self._jobs_done, 'job')} done>"

    # ---- start and end -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        global _active
        if self._was_open:
            raise RuntimeError("expected a new Guard, got one that was used already: make one for each `with` block")
        if _active is not None:
            raise RuntimeError(
                f"expected one active Guard in a process, got a second one beside {_active.name!r}: pass that one on; "
                "several jobs, threads and tasks may share it"
            )
        with contextlib.ExitStack() as undo:
            self._open(undo)
            self._undo = undo.pop_all()
        _active = self
        call_after_fork(self)
        return self

    def _open(self, undo: contextlib.ExitStack) -> None:
        self._pid = os.getpid()
        self._started_s = self._ticked_s = time.monotonic()
        # Here, because workers that were forked from one process may share the object that it made.
        self._age_bound = self._jobs_bound = ""
        if math.isfinite(self._max_age_s):
            self._age_bound = "max_age less jitter" if self._jitter else "max_age"
        self._max_age_s *= _less(self._jitter)
        if (maximum := self._max_jobs) is not None:
            self._max_jobs = max(1, round(maximum * _less(self._jitter)))
            self._jobs_bound = "max_jobs" if self._max_jobs == maximum else f"max_jobs={maximum:,} less jitter"
        self._log = GuardLog(self._log_path, f"{self.name}[{self._pid}]" if self.name else f"[{self._pid}]")
        undo.callback(self._log.close)
        self._own = OwnProcess()
        undo.callback(self._own.close)
        self._hold_reserve(undo)
        self._memory = self._own.memory_limit() if RSS in self._caps else None
        self._refuse_low_caps()
        self._page = HeartbeatPage(self.name)
        undo.callback(self._page.close)
        if self._page.problem:
            self._log.write(f"its heartbeat is not visible to other processes: {self._page.problem}")
        self._listener = self._listen()
        if self._listener is not None:
            undo.callback(self._listener.close)
        self._leak_watch = LeakWatch(self._own, self._every_s, self._started_s - self._own.age_s())
        self._tree_due_s = self._shared_due_s = 0.0
        self._tree_pids: list[int] = []
        self._tree_rss = self._tree_children = self._shared = 0
        self._fill_page()
        self._signals = DrainSignals(self._log, self._own, self._page, self._request, self._must_hold_signals)
        undo.callback(self._signals.restore)
        self._signals.take()
        self._is_open = self._was_open = True
        undo.callback(setattr, self, "_is_open", False)
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="holdfast-guard", daemon=True)
        self._thread.start()
        undo.callback(self._stop_thread)

    def _hold_reserve(self, undo: contextlib.ExitStack) -> None:
        """Keeps the soft limit below the hard one: raising it again takes microseconds and no descriptor."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard == resource.RLIM_INFINITY or not self._reserve_fds:
            return
        # At most an eighth of a small limit.
        goal = hard - min(self._reserve_fds, hard // 8)
        if (soft != resource.RLIM_INFINITY and soft <= goal) or goal <= self._own.count_fds():
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
        for what, used in ((FDS, self._own.count_fds()), (RSS, self._own.rss_bytes()), (THREADS, self._own.threads())):
            cap = self._resolved(what)
            if cap is not None and (which := cap.exceeded(used)):
                raise ValueError(
                    f"expected a cap above what the process uses at its start, but {what.sentence(used, cap, which)}. "
                    f"Raise {what.name}=, or start the guard earlier"
                )

    def _listen(self) -> AgentListener | None:
        """Lets `holdfast doctor` and `rescue` ask which objects hold the descriptors."""
        try:
            return listen(self.name or None)
        except (OSError, InputError) as error:
            self._log.write(f"other processes cannot ask for its owners: {error}")
            return None

    def _fill_page(self) -> None:
        self._page.set(progress_timeout_ns=_ns(self._progress_s), drain_timeout_ns=_ns(self._drain_s))
        self._page.set_text("log", self._log.path)
        self._show_caps()

    def _show_caps(self) -> None:
        cap = self._resolved(FDS) or ResolvedCap(None, None)
        self._page.set(fd_soft_cap=cap.soft or 0, fd_hard_cap=cap.hard or 0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _active
        if _active is not self:
            return  # in a forked child
        _active = None
        self._undo.close()
        if kind is None and self._code and not self._code_was_read:
            atexit.register(self._remind_of_exit_code)
        if kind is None:  # otherwise the program ends already, and its error must not be replaced
            self._signals.pass_on()

    def _stop_thread(self) -> None:
        try:
            if self._is_draining:
                self._drained.wait(_JOIN_S)
            if self._calls is not None:
                self._calls.join()  # meanwhile the thread still ends the process after the drain timeout
        finally:  # also after Ctrl-C
            self._stop = True
            self._notify()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._answer_requests()  # a signal may have come after the thread's last round
            if self._calls is not None:
                self._calls.join(_JOIN_S)
        self._page.set(state=GuardState.ENDED)
        self._drained.set()  # nobody waits for a drain any longer
        left = f", {counted(len(self._jobs_active), 'job')} not finished" if self._jobs_active else ""
        why = f"; {self._reason}" if self._reason else ""
        failed = f", {counted(self._fails, 'failure')}" if self._fails else ""
        self._log.write(f"ended after {counted(self._jobs_done, 'job')}{failed}{left}{why}")

    def _remind_of_exit_code(self) -> None:
        """At the end of Python: a worker that drained and exits with 0 would stay down."""
        if self._code_was_read or self._pid != os.getpid():
            return
        with contextlib.suppress(OSError, ValueError):
            log = GuardLog(self._log.path or None, self._log.prefix)
            log.write(
                "it asked for a restart, but nobody read guard.exit_code: end the program with "
                "`raise SystemExit(guard.exit_code)`"
            )
            log.close()

    def after_fork_in_child(self) -> None:
        """Makes the guard of a forked child inactive: it has no thread, and the page and the signals are the
        parent's. Without this, a child would ignore SIGTERM."""
        global _active
        if _active is self:
            _active = None
        self._is_open = self._is_draining = False
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._drained = threading.Event()
        self._undo.pop_all()
        self._page.detach()
        self._signals.restore()
        self._own.close()
        self._log.close()

    # ---- drain -------------------------------------------------------------------------------------------

    def _request(self, reason: str, *, restart: bool = True) -> None:
        """Sets what `draining` returns; the guard's thread does the rest. Callable from a signal handler."""
        if not restart:  # an operator's stop wins over a restart, whichever comes first
            self._is_stopped = True
            self._reason = reason
        elif not self._reason:
            self._reason = reason
        self._is_draining = True
        self._requests.append(reason)
        self._notify()

    def _must_hold_signals(self) -> bool:
        """Whether a handler that the program had before must wait: for a job, or for the end of the block."""
        return self._was_asked or bool(self._callbacks) or bool(self._jobs_active)

    def _notify(self) -> None:
        self._wake.put(None)

    def _answer_requests(self) -> None:
        while self._requests:
            reason = self._requests.popleft()
            if self._state is GuardState.DRAINING:
                self._correct_drain()
            else:
                self._start_drain(reason)

    def _start_drain(self, reason: str) -> None:
        self._drain_at_s = time.monotonic()
        code = self._code
        with self._lock:
            self._state = GuardState.DRAINING
            self._page.set_text("reason", reason)
            self._page.set(drain_ns=time.monotonic_ns(), exit_code=code, state=GuardState.DRAINING)
        self._log.write(f"draining: {reason}; will exit with {code}")
        try:
            if self._callbacks:
                # In a thread of their own: the guard's must see the end of the drain timeout, and a hard cap.
                calls = threading.Thread(target=self._call_all, args=(reason,), name="holdfast-drain", daemon=True)
                calls.start()
                self._calls = calls
        except RuntimeError:  # no further thread is allowed
            self._drained.set()
            self._call_all(reason)
        finally:
            self._drained.set()

    def _correct_drain(self) -> None:
        """An operator's stop came after a request for a restart."""
        if self._page.get("exit_code") != self._code:
            self._page.set_text("reason", self._reason)
            self._page.set(exit_code=self._code)
            self._log.write(f"draining: {self._reason}; will exit with {self._code}")

    def _call_all(self, reason: str) -> None:
        for callback in self._callbacks:
            try:
                callback(reason) if _takes_argument(callback) else callback()
            except BaseException as error:  # noqa: BLE001 - the drain goes on; sys.exit() would only end this thread
                name = getattr(callback, "__name__", repr(callback))
                self._log.write(f"on_drain: {name}() failed: {_error_text(error)}")

    def _latch(self, number: int | None, error: BaseException | str | None, *, is_remote: bool) -> None:
        name = errorcode.get(number or 0, str(number))
        why = f"{name} ({_error_text(error)})"
        if number == EMFILE:
            used, soft = self._own.count_fds(), self._own.fd_limits()[0]
            if soft is not None and is_short_of_fds(used, soft):
                self._end_at_once(f"it has no free descriptor: {why}", owners=True)
            self._log_foreign(f"{why} is a failure like others: this process uses {used:,} of {soft or math.inf:,}")
        elif number == ENOMEM and is_remote:
            self._log_foreign(f"{why} is a failure like others: it is another process's")
        else:
            self._request(why)

    def _log_foreign(self, text: str) -> None:
        """Logs a shortage of others when it first appears, not with each attempt."""
        if self._fails_in_row <= 1:
            self._log.write(text)

    def _end_at_once(self, why: str, *, owners: bool) -> None:
        self._page.set_text("reason", why)
        began_ns = self._page.get("drain_ns") or time.monotonic_ns()
        self._page.set(drain_ns=began_ns, state=GuardState.DRAINING, exit_code=HARD_EXIT)
        end_at_once(self._log, self._own, why, HARD_EXIT, owners=owners)

    # ---- jobs --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._state is not GuardState.STARTING:
            return
        with self._lock:  # the guard's thread may begin to drain just now
            self._page.set(begun_ns=time.monotonic_ns())
            if self._state is GuardState.STARTING:
                self._state = GuardState.RUNNING
                self._page.set(state=GuardState.RUNNING)

    def _start_job(self, job: _Job) -> None:
        if not self._is_open:
            return
        self._signals.call_waiting()  # it takes a job although it drains
        numbers = self._page.numbers
        job.started_ns = time.monotonic_ns()
        if job.outer is not None:
            job.outer.mark(self, job.started_ns)
        with self._lock:
            self._jobs_started += 1
            self._jobs_active[id(job)] = job
            numbers[_JOBS_STARTED], numbers[_JOBS_ACTIVE] = self._jobs_started, len(self._jobs_active)
            if len(self._jobs_active) == 1:
                self._show_quietest_job()
        if self._state is GuardState.STARTING:
            self._begin()

    def _show_quietest_job(self) -> None:
        """Shows the job that has made no step for longest: a job that is stuck must not hide behind others."""
        numbers, active = self._page.numbers, list(self._jobs_active.values())
        numbers[_JOBS_ACTIVE] = len(active)
        if not active:
            numbers[_JOB_STARTED_NS] = numbers[_JOB_STEP_NS] = 0
            return
        clocks = self._main_step_ns, self._loose_step_ns
        job = min(active, key=lambda one: one.heard_ns(*clocks)) if len(active) > 1 else active[0]
        if job is not self._job_shown:
            self._job_shown = job
            self._page.set_text("job", job.name)
        numbers[_JOB_STARTED_NS] = job.started_ns
        numbers[_JOB_STEP_NS] = job.heard_ns(*clocks)

    def _end_job(self, job: _Job, error: BaseException | None) -> None:
        if not self._is_open:
            return
        now_ns = time.monotonic_ns()
        fds = -1
        if now_ns >= self._job_sample_due_ns and self._own.counts_quickly:
            fds = self._own.count_fds()
            self._job_sample_due_ns = now_ns + _JOB_SAMPLE_EVERY_NS
        numbers = self._page.numbers
        with self._lock:
            self._jobs_active.pop(id(job), None)
            if error is None:
                self._jobs_done += 1
                numbers[_JOBS_DONE] = self._jobs_done
                self._store_success(numbers)
            else:
                self._jobs_failed += 1
                self._page.set(jobs_failed=self._jobs_failed)
            ended = self._jobs_done + self._jobs_failed
            if fds >= 0:
                self._job_samples.append(JobSample(job=ended, fds=fds))
                self._page.add_job(ended, fds)
            self._show_quietest_job()
        if job.outer is not None:
            job.outer.mark(self, now_ns)
        if isinstance(error, Exception):
            self.fail(error)
        if self._max_jobs is not None and ended >= self._max_jobs and not self._is_draining:
            self._request(f"it has done {counted(ended, 'job')} ({self._jobs_bound})")

    # ---- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop:
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=self._every_s)
                while True:
                    self._wake.get_nowait()
            try:
                self._answer_requests()
                if not self._stop:
                    self._tick()
            except Exception as error:  # noqa: BLE001 - a fault of the guard must not leave the worker unguarded
                self._report_fault(error)

    def _report_fault(self, error: Exception) -> None:
        """Logs a fault once, not with every sample."""
        with contextlib.suppress(Exception):  # it may be a MemoryError
            text = _error_text(error)
            if text != self._last_fault:
                self._last_fault = text
                self._log.write(f"a sample failed: {text}")

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._page.restore()
        self._page.set(alive_ns=time.monotonic_ns())
        self._signals.check()
        with self._lock:
            self._show_quietest_job()
        self._ignore_pause(now_s)
        try:
            sample = self._sample(now_s)
        finally:
            self._check_times(now_s)  # whatever fails above
        if self._state is not GuardState.DRAINING and self._eta_s is not None:
            within_s = min(self._eta_s, DRAINS * self._drain_s)
            ok_s, has_cap = self._page.get("ok_ns") / 1e9, FDS in self._caps and self._caps[FDS].soft is not None
            if why := self._leak_watch.check(sample, self._job_samples, ok_s, within_s, has_cap=has_cap):
                self._request(why)

    def _ignore_pause(self, now_s: float) -> None:
        """Gives the worker time after the process was stopped, as a container that was paused is: nothing could succeed
        meanwhile."""
        gap_s, self._ticked_s = now_s - self._ticked_s, now_s
        if gap_s > _PAUSE_SAMPLES * self._every_s:
            self._drain_at_s += gap_s
            self._ignored_until_s = now_s + min(gap_s, self._progress_s or 0.0)

    def _sample(self, now_s: float) -> Sample:
        """Counts everything and checks the caps."""
        fds, rss, threads = self._own.count_fds(), self._own.rss_bytes(), self._own.threads()
        self._page.set(fds=fds, rss_bytes=rss, threads=threads)
        self._show_caps()  # their limit may have changed
        sample = Sample(at_s=now_s, fds=fds, rss_bytes=rss, threads=threads, children=self._tree_children)
        self._leak_watch.series.add(sample)
        if now_s >= self._tree_due_s and self._needs_tree:
            self._scan_tree()
        tree_rss = self._caps.get(RSS) is not None and self._caps[RSS].tree
        self._check(FDS, fds, sample)
        self._check(THREADS, threads, sample)
        self._check(CHILDREN, self._tree_children, sample)
        self._check(RSS, rss + self._tree_rss if tree_rss else rss, sample)
        return sample

    def _check_times(self, now_s: float) -> None:
        if self._state is GuardState.DRAINING:
            if now_s - self._drain_at_s > self._drain_s:
                took = span_words(now_s - self._drain_at_s)
                self._end_at_once(f"its drain ({self._reason}) has taken {took}", owners=False)
            return
        if now_s - self._started_s >= self._max_age_s:
            age = span_words(now_s - self._started_s)
            self._request(f"it is {age} old ({self._age_bound})")
        if now_s >= self._ignored_until_s:
            self._check_progress()

    def _resolved(self, what: CappedResource) -> ResolvedCap | None:
        cap = self._caps.get(what)
        if cap is None:
            return None
        limit = None
        if what is FDS:
            limit = self._own.fd_limits()[0]  # now: `holdfast rescue` may have raised it
        elif what is RSS:
            limit = self._memory
        return what.resolve(cap, limit)

    def _check(self, what: CappedResource, used: int, sample: Sample) -> None:
        cap = self._resolved(what)
        if cap is None:
            return
        if what is RSS and self._caps[RSS].tree and self._tree_pids and cap.exceeded(used):
            used = self._without_shared(used)
        which = self._cap_watches[what].check(used, cap)
        if which == "hard":
            self._end_at_once(what.sentence(used, cap, which), owners=what is FDS)
        elif which and self._state is not GuardState.DRAINING:
            leak = ""
            with contextlib.suppress(Exception):  # it drains, whatever the scan meets
                if what is FDS and self._eta_s is not None:
                    leak = self._leak_watch.describe(sample, self._job_samples)
            self._request(f"{leak}; {what.sentence(used, cap, which)}" if leak else what.sentence(used, cap, which))

    def _without_shared(self, rss: int) -> int:
        """Subtracts the memory that the tree shares, which the sum of resident sizes contains once for each process.

        The kernel needs seconds for a large tree: between two scans the last answer is used.
        """
        if time.monotonic() >= self._shared_due_s:
            began_s = time.thread_time()
            pss = self._own.pss_of([self._own.pid, *self._tree_pids])
            self._shared = max(0, rss - pss) if pss else 0
            self._shared_due_s = due_s(time.monotonic(), began_s, _TREE_EVERY * self._every_s)
        return rss - self._shared

    @property
    def _needs_tree(self) -> bool:
        return CHILDREN in self._caps or (RSS in self._caps and self._caps[RSS].tree)

    def _scan_tree(self) -> None:
        began_s = time.thread_time()
        found = self._own.tree()
        if found is not None:
            self._tree_pids, self._tree_children = found
            if CHILDREN in self._caps and self._caps[CHILDREN].tree:
                self._tree_children = len(self._tree_pids)
            self._tree_rss = self._own.rss_of(self._tree_pids)
            self._page.set(children=self._tree_children)
        self._tree_due_s = due_s(time.monotonic(), began_s, _TREE_EVERY * self._every_s)

    def _check_progress(self) -> None:
        page = parse_heartbeat(self._page.copy(), jobs=False)
        if page is None:
            return
        now_ns = time.monotonic_ns()
        if change := self._outage.check(page, now_ns):
            self._log.write(change)
        if self._progress_s is None:
            return
        found = classify_health(page, now_ns, HealthLimits(progress_s=self._progress_s), "R")
        if found.health in (Health.HUNG, Health.FAILING):
            self._request(found.sentence)


class _Job:
    """One job. An error in it counts as a failure, and is raised on."""

    __slots__ = ("_guard", "_is_active", "_is_of_main", "_step_ns", "name", "outer", "started_ns")

    def __init__(self, guard: Guard, name: str) -> None:
        self._guard = guard
        self._is_active = self._is_of_main = False
        self._step_ns = 0
        self.name = name
        self.outer: _Job | None = None
        self.started_ns = 0

    def step(self) -> None:
        """Reports that this job goes on, from any thread."""
        if self._guard._is_open and self.mark(self._guard, time.monotonic_ns()):
            self._guard._page.numbers[_STEP_NS] = self._step_ns

    def mark(self, guard: Guard, now_ns: int) -> bool:
        """Stores a step of this job and of those around it. Returns False if none of them runs under this guard: what a
        job has started may outlive it."""
        is_marked = False
        job: _Job | None = self
        while job is not None:
            if job._is_active and job._guard is guard:
                job._step_ns = now_ns
                is_marked = True
            job = job.outer
        return is_marked

    def heard_ns(self, main_step_ns: int, loose_step_ns: int) -> int:
        """Returns when it made its last step, or another task of the main thread or any helper thread may have made one
        for it."""
        return max(self.started_ns, self._step_ns, loose_step_ns, main_step_ns if self._is_of_main else 0)

    def __enter__(self) -> _Job:
        outer = _current_job.get()
        while outer is not None and not outer._is_active:  # it was ended in another thread or task
            outer = outer.outer
        self.outer = outer
        _current_job.set(self)
        self._is_active, self._is_of_main = True, _is_main_thread()
        self._guard._start_job(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_active = False
        if _current_job.get() is self:
            _current_job.set(self.outer)
        self._guard._end_job(self, error)


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


_current_job: ContextVar[_Job | None] = ContextVar("holdfast_job", default=None)


def is_short_of_fds(used: int, soft: int) -> bool:
    """Returns whether an EMFILE can be of this process, and not of another one, or of inotify's limit for the user.

    What failed may have needed many descriptors, and have closed them again: pools and loaders take dozens.
    """
    return soft - used < min(_MAX_NEEDED, soft // 8)


def find_errno(error: BaseException) -> tuple[int | None, bool]:
    """Returns the errno behind an error, however wrapped: EMFILE, ENFILE and ENOMEM before any other. The second value
    is whether the error came from a worker process."""
    links = walk(error)
    is_remote = any(_is_remote(link.error) for link in links)
    numbers = [ENOMEM if isinstance(link.error, MemoryError) else link.errno for link in links if link.meant]
    numbers += [link.errno for link in links if not link.meant]
    for number in numbers:
        if number in _LATCHED:
            return number, is_remote
    cause = recognise(links)  # torch and TensorFlow put the text of an errno into errors of their own
    if cause is not None and cause.rule.errno in _LATCHED:
        return cause.rule.errno, is_remote
    return next((number for number in numbers if number), None), is_remote


def _is_remote(error: BaseException) -> bool:
    """Returns whether multiprocessing, concurrent.futures or a DataLoader brought it from a worker process."""
    return type(error).__name__.endswith("RemoteTraceback") or "DataLoader worker process" in _error_text(error)


def _error_text(error: BaseException | str | None) -> str:
    if isinstance(error, BaseException):
        try:
            text = one_line(str(error))[:500]
            return f"{type(error).__name__}: {text}" if text else type(error).__name__
        except Exception:  # noqa: BLE001 - __str__ of a foreign class may raise anything
            return type(error).__name__
    return one_line(str(error))[:500] if error is not None else ""


def _takes_argument(callback: Callable[..., object]) -> bool:
    try:
        inspect.signature(callback).bind("")
    except TypeError:
        return False
    except ValueError:
        pass  # a builtin without a signature
    return True


def _seconds(value: Time, name: str) -> float | None:
    try:
        return None if value is None else parse_seconds(value)
    except ValueError as error:
        raise ValueError(f"{name}=: {error}") from None


def _less(jitter: float) -> float:
    return 1 - random.uniform(0, jitter)


def _ns(seconds: float | None) -> int:
    return 0 if seconds is None or seconds == math.inf else int(seconds * 1e9)
