"""The jobs that run under a Guard, and which of them has made no step for longest."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from ..doctor.model import JobSample
from .heartbeat import AT, HeartbeatPage
from .own_process import OwnProcess

if TYPE_CHECKING:
    from .run import GuardRun

KEPT_JOBS = 2_000
_SAMPLE_EVERY_NS = 5_000_000  # a count takes 3 µs, which is much for a job of a millisecond
_JOBS_DONE, _JOBS_STARTED, _JOBS_ACTIVE = AT["jobs_done"], AT["jobs_started"], AT["jobs_active"]
_JOB_STARTED_NS, _JOB_STEP_NS, _STEP_NS = AT["job_started_ns"], AT["job_step_ns"], AT["step_ns"]


class GuardJob:
    """One job. An error in it counts as a failure, and is raised on. `run` is None if the guard is not started."""

    __slots__ = ("_is_active", "_is_of_main", "_run", "_step_ns", "name", "outer", "started_ns")

    def __init__(self, run: GuardRun | None, name: str) -> None:
        self._run = run
        self._is_active = self._is_of_main = False
        self._step_ns = 0
        self.name = name
        self.outer: GuardJob | None = None
        self.started_ns = 0

    def step(self) -> None:
        """Reports that this job goes on, from any thread."""
        run = self._run
        if run is not None and run.is_open and self.mark(run, time.monotonic_ns()):
            run.page.numbers[_STEP_NS] = self._step_ns

    def mark(self, run: GuardRun, now_ns: int) -> bool:
        """Stores a step of this job and of those around it. Returns False if none of them runs under this guard: what a
        job has started may outlive it."""
        is_marked = False
        job: GuardJob | None = self
        while job is not None:
            if job._is_active and job._run is run:
                job._step_ns = now_ns
                is_marked = True
            job = job.outer
        return is_marked

    def last_step_ns(self, main_step_ns: int, loose_step_ns: int) -> int:
        """Returns when it made its last step, or another task of the main thread or any helper thread may have made one
        for it."""
        return max(self.started_ns, self._step_ns, loose_step_ns, main_step_ns if self._is_of_main else 0)

    def __enter__(self) -> GuardJob:
        outer = current_job.get()
        while outer is not None and not outer._is_active:  # it was ended in another thread or task
            outer = outer.outer
        self.outer = outer
        current_job.set(self)
        self._is_active, self._is_of_main = True, is_main_thread()
        if self._run is not None:
            self._run.start_job(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_active = False
        if current_job.get() is self:
            current_job.set(self.outer)
        if self._run is not None:
            self._run.end_job(self, error)


def is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


current_job: ContextVar[GuardJob | None] = ContextVar("holdfast_job", default=None)


class JobTable:
    """Counts the jobs of one guard, and shows them on its page. The caller holds the guard's lock."""

    def __init__(self, page: HeartbeatPage, own: OwnProcess) -> None:
        self._page = page
        self._own = own
        self.started = self.done = self.failed = 0
        self.active: dict[int, GuardJob] = {}
        self.samples: deque[JobSample] = deque(maxlen=KEPT_JOBS)
        self.main_step_ns = self.loose_step_ns = 0  # outside of a job: in the main thread, and in others
        self._shown: GuardJob | None = None
        self.sample_due_ns = 0

    def add(self, job: GuardJob) -> None:
        numbers = self._page.numbers
        self.started += 1
        self.active[id(job)] = job
        numbers[_JOBS_STARTED], numbers[_JOBS_ACTIVE] = self.started, len(self.active)
        if len(self.active) == 1:
            self.show_quietest()

    def count_fds(self, now_ns: int) -> int:
        """Returns the descriptors that are open after a job; -1: they are not counted after each. Takes no lock."""
        if now_ns < self.sample_due_ns or not self._own.counts_quickly:
            return -1
        fds = self._own.count_fds()
        self.sample_due_ns = now_ns + _SAMPLE_EVERY_NS
        return fds

    def remove(self, job: GuardJob, fds: int, *, has_failed: bool) -> int:
        """Returns how many jobs have ended."""
        self.active.pop(id(job), None)
        if has_failed:
            self.failed += 1
            self._page.set(jobs_failed=self.failed)
        else:
            self.done += 1
            self._page.numbers[_JOBS_DONE] = self.done
        ended = self.done + self.failed
        if fds >= 0:
            self.samples.append(JobSample(job=ended, fds=fds))
            self._page.add_job(ended, fds)
        self.show_quietest()
        return ended

    def show_quietest(self) -> None:
        """Shows the job that has made no step for longest: a job that is stuck must not hide behind others."""
        numbers, active = self._page.numbers, list(self.active.values())
        numbers[_JOBS_ACTIVE] = len(active)
        if not active:
            numbers[_JOB_STARTED_NS] = numbers[_JOB_STEP_NS] = 0
            return
        clocks = self.main_step_ns, self.loose_step_ns
        job = min(active, key=lambda one: one.last_step_ns(*clocks)) if len(active) > 1 else active[0]
        if job is not self._shown:
            self._shown = job
            self._page.set_text("job", job.name)
        numbers[_JOB_STARTED_NS] = job.started_ns
        numbers[_JOB_STEP_NS] = job.last_step_ns(*clocks)
