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
import os
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from ..._util.process import call_after_fork
from ..._util.text import counted, one_line, time_argument
from .caps import Amount, Cap
from .emergency import GuardLog
from .jobs import GuardJob
from .options import GuardOptions, Time, check_caps, seconds, seconds_or_never
from .run import GuardRun

RESTART_EXIT = 75  # EX_TEMPFAIL: supervisors restart a worker that exits with it
_EVERY_S = 1.0
_MAX_JOB_CHARS = 256

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
        self._options = GuardOptions(
            name=name,
            caps=check_caps(fds, rss, threads, children),
            max_jobs=max_jobs,
            max_age_s=seconds_or_never(max_age, "max_age"),
            jitter=jitter,
            eta_s=seconds(eta, "eta"),
            progress_s=seconds(progress_timeout, "progress_timeout"),
            drain_s=seconds_or_never(drain_timeout, "drain_timeout"),
            reserve_fds=reserve_fds,
            exit_code=exit_code,
            log=log,
            every_s=seconds(every, "every") or _EVERY_S,
        )
        self.name = self._options.name
        self._callbacks: list[Callable[..., object]] = []
        self._run: GuardRun | None = None  # from its start on
        self._was_warned = False
        self._code_was_read = False

    @property
    def draining(self) -> bool:
        """Whether to take no new job: the worker finishes what it has and leaves its loop."""
        if (run := self._run) is None:
            return False
        run.was_asked = True
        return run.drain.is_draining

    @property
    def reason(self) -> str:
        """Why it drains; empty while it does not."""
        return "" if self._run is None else self._run.drain.reason

    @property
    def wants_restart(self) -> bool:
        """Whether this process asks to be replaced: for ranks that must agree before one of them leaves its loop."""
        self._code_was_read = True
        if (run := self._run) is None:
            return False
        run.was_asked = True
        return run.drain.asks_for_restart

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 75 to be restarted, 0 after SIGTERM or without a drain."""
        self._code_was_read = True
        return 0 if self._run is None else self._run.exit_code

    def ok(self) -> None:
        """Reports a successful outcome, the only heartbeat that counts; a poll that found no job is one, too."""
        if (run := self._run) is not None and run.is_open:
            run.ok()
        else:
            self._warn_not_started("ok")

    def fail(self, error: BaseException | str | None = None) -> None:
        """Reports a failure. An EMFILE inside of it, however wrapped, ends the process at once if it is short of
        descriptors; an ENFILE or ENOMEM makes it drain."""
        if (run := self._run) is not None and run.is_open:
            run.fail(error)
        else:
            self._warn_not_started("fail")

    def step(self) -> None:
        """Reports that the job of this thread or task goes on; in the main thread without a job, that the training loop
        does. A thread without a job may work for any: there it counts for all jobs."""
        if (run := self._run) is not None and run.is_open:
            run.step()
        else:
            self._warn_not_started("step")

    def job(self, job_id: object = "") -> GuardJob:
        """Returns a context manager around one job. Its end without an error is a success; the descriptors that are
        open then show what each job leaks."""
        if self._run is None:
            self._warn_not_started("job")
        return GuardJob(self._run, one_line(str(job_id)[:_MAX_JOB_CHARS]))

    def on_drain(self, callback: Callback) -> Callback:
        """Registers a function that is called once when the drain begins, in a thread of its own, with the reason. The
        end of the `with` block waits for it, until the drain timeout."""
        if not callable(callback):
            raise TypeError(f"expected a function, got {callback!r}")
        self._callbacks.append(callback)
        return callback

    def drain(self, reason: str = "the program asked for it", *, restart: bool = True) -> None:
        """Starts to drain: `draining` is True from now on."""
        if (run := self._run) is not None and run.is_open:
            run.drain.request(reason, restart=restart)
        else:
            self._warn_not_started("drain")

    def wait(self, timeout: Time = None) -> bool:
        """Waits until it drains or ends, or for `timeout`; returns `draining`. Use it instead of time.sleep between
        polls."""
        timeout_s = None if timeout is None else time_argument(timeout, "timeout")
        if (run := self._run) is not None and run.is_open:
            run.was_asked = True
            run.drained.wait(timeout_s)
        else:
            self._warn_not_started("wait")
        return self.draining

    def _warn_not_started(self, method: str) -> None:
        """Warns once that the guard does nothing yet: a worker that forgot `with` would seem to be guarded."""
        if self._run is not None or self._was_warned:  # after its end, and in a forked child, calls do nothing
            return
        self._was_warned = True
        text = f"{method}() has no effect: this Guard is not started. Write `with guard:` around the loop"
        warnings.warn(text, RuntimeWarning, stacklevel=3)

    def __repr__(self) -> str:
        run = self._run
        state = "not active"
        if run is not None and (run.is_open or run.drain.is_draining):
            state = "draining" if run.drain.is_draining else "active"
        done = counted(0 if run is None else run.jobs.done, "job")
        return f"<Guard {self.name or os.getpid()}: {state}, {done} done>"

    def __enter__(self) -> Self:
        global _active
        if self._run is not None:
            raise RuntimeError("expected a new Guard, got one that was used already: make one for each `with` block")
        if _active is not None:
            raise RuntimeError(
                f"expected one active Guard in a process, got a second one beside {_active.name!r}: pass that one on; "
                "several jobs, threads and tasks may share it"
            )
        self._run = GuardRun(self._options, self._callbacks)
        _active = self
        call_after_fork(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _active
        if _active is not self or self._run is None:
            return  # in a forked child
        _active = None
        self._run.close()
        if kind is None and self._run.exit_code and not self._code_was_read:
            atexit.register(self._remind_of_exit_code)
        if kind is None:  # otherwise the program ends already, and its error must not be replaced
            self._run.signals.pass_on()

    def _remind_of_exit_code(self) -> None:
        """At the end of Python: a worker that drained and exits with 0 would stay down."""
        run = self._run
        if self._code_was_read or run is None or run.pid != os.getpid():
            return
        with contextlib.suppress(OSError, ValueError):
            log = GuardLog(run.log.path or None, run.log.prefix)
            log.write(
                "it asked for a restart, but nobody read guard.exit_code: end the program with "
                "`raise SystemExit(guard.exit_code)`"
            )
            log.close()

    def after_fork_in_child(self) -> None:
        """Makes the guard of a forked child inactive."""
        global _active
        if _active is self:
            _active = None
        if self._run is not None:
            self._run.after_fork_in_child()
