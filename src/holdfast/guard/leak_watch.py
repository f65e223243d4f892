"""Decides whether this process leaks descriptors, from its samples and jobs, and when its limit is reached."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from .._util.text import span_words
from ..doctor.fd_profile import grown
from ..doctor.model import Diagnosis, FdProfile, JobSample, Sample, Verdict
from ..doctor.sampler import Series
from ..doctor.signatures import match
from ..doctor.trend import find_job_trend
from ..doctor.verdict import classify
from ..procfs.processes import Identity
from .own_process import OwnProcess

# Each look that takes longer than a sample takes at most 1/2,000 of the time; together with the samples that is below
# 0.2 % of a core.
_REST = 2_000
# A scan of all descriptors comes with every so many samples.
_PROFILE_EVERY = 15
_MOST_JOBS = 120
_LEAST_RISE = 8


def due_s(began_s: float, every_s: float) -> float:
    """Returns when a look is due again that began at this CPU time of the thread: after `every_s`, or later if it took
    long."""
    return time.monotonic() + max(every_s, _REST * (time.thread_time() - began_s))


def _thin(jobs: Sequence[JobSample]) -> Sequence[JobSample]:
    """Returns at most 120 jobs, the last one included: the trend compares all pairs."""
    step = -(-len(jobs) // _MOST_JOBS)
    return jobs if step <= 1 else jobs[::-step][::-1]


class LeakWatch:
    """The samples of this process, and its descriptors by kind in the first and in the last scan."""

    def __init__(self, own: OwnProcess, every_s: float) -> None:
        self.series = Series(Identity(own.pid, None), every_s)
        self._own = own
        self._every_s = every_s
        self._started_s = time.monotonic()
        self._first: FdProfile | None = None
        self._profile: FdProfile | None = None
        self._profile_due_s = self._classify_due_s = 0.0
        self._least_fds = own.count_fds()
        self._classified = (self._least_fds, 0)

    def check(self, sample: Sample, jobs: Sequence[JobSample], jobs_done: int, within_s: float) -> str:
        """Returns why the process is to be replaced: it leaks and reaches its limit within that time, or has reached
        it. Empty if it is not, or if the look is not due yet."""
        state = (sample.fds, jobs_done)
        if sample.at_s < self._classify_due_s or state == self._classified:
            return ""  # a count that did not change does not grow
        self._classified = state
        self._least_fds = min(self._least_fds, sample.fds)
        # With many descriptors a scan takes a tenth of a second: none is needed while there are not more of them.
        if sample.at_s >= self._profile_due_s and sample.fds >= self._least_fds + _LEAST_RISE:
            began_s = time.thread_time()
            self.scan()
            self._profile_due_s = due_s(began_s, _PROFILE_EVERY * self._every_s)
        began_s = time.thread_time()
        jobs = _thin(jobs)
        found = self.classify(sample.fds, jobs)
        eta_s = self._exhausted_in_s(found, jobs, jobs_done)
        self._classify_due_s = due_s(began_s, self._every_s)
        if found.verdict not in (Verdict.LEAK, Verdict.EXHAUSTED) or eta_s >= within_s:
            return ""
        when = "its limit is reached" if eta_s <= 0 else f"its limit is reached in {span_words(eta_s)}"
        return f"{found.verdict}: {found.evidence[0]}; {when}"

    def scan(self) -> None:
        _, self._profile = self._own.profile()
        self._first = self._first or self._profile

    def classify(self, fds: int, jobs: Sequence[JobSample]) -> Diagnosis:
        soft, hard = self._own.fd_limits()
        first = None if self._first is self._profile else self._first
        profile = self._profile
        growth = None if first is None or profile is None else grown(first, profile)
        return classify(
            fds=fds,
            soft=math.inf if soft is None else soft,
            hard=math.inf if hard is None else hard,
            samples=self.series.samples,
            jobs=jobs,
            profile=profile,
            first_profile=first,
            match=None if profile is None else match(profile, growth),
            uptime_s=time.monotonic() - self._started_s,
            pid=self._own.pid,
        )

    def _exhausted_in_s(self, found: Diagnosis, jobs: Sequence[JobSample], jobs_done: int) -> float:
        """Returns the earliest time to the soft limit: by the trend, or by what each job leaves open."""
        if found.verdict is Verdict.EXHAUSTED:
            return 0.0
        soft = self._own.fd_limits()[0]
        if soft is None or found.fds is None:
            return math.inf
        times = [one.eta_s[0] for one in found.forecasts if one.line == "soft limit"]
        trend = find_job_trend(jobs)
        if trend is not None and trend.grows and trend.per_job > 0 and jobs_done:
            per_s = jobs_done / max(1e-3, time.monotonic() - self._started_s)
            times.append((soft - found.fds) / (trend.per_job * per_s))
        return min(times, default=math.inf)
