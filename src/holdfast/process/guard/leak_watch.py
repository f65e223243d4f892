"""Decides whether this process is to be replaced because it leaks descriptors and its limit is near.

A cache that fills looks like a leak until it is full, and a restart empties it. So a leak drains only where the limit
is near in both senses: half of it is used, and it is reached before a drain could be done in comfort.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from ..._util.text import span_words
from ...procfs.processes import Identity
from ..doctor.fd_profile import grown
from ..doctor.model import Diagnosis, FdProfile, JobSample, Sample, Verdict
from ..doctor.sampler import Series
from ..doctor.signatures import match
from ..doctor.verdict import classify, is_exhausted
from .own_process import OwnProcess

# The part of the soft limit that a leak must have used before it drains.
LEAK_SHARE = 0.5
# A leak drains at the earliest this many times the start-up after the start: then at most a tenth of the time is spent
# on starting.
START_UPS = 10
# What takes longer than a sample takes at most 1/2,000 of the time; together with the samples that is below 0.2 % of a
# core.
_REST = 2_000
# A scan of all descriptors comes with every so many samples.
_PROFILE_EVERY = 15
_LEAST_RISE = 8


def due_s(now_s: float, began_s: float, every_s: float) -> float:
    """Returns when a look is due again that began at this CPU time of the thread: after `every_s`, or later if it took
    long."""
    return now_s + max(every_s, _REST * (time.thread_time() - began_s))


class LeakWatch:
    """The samples of this process, and its descriptors by kind in the first and in the last scan.

    All times are those of the samples. `born_s` is when the process started.
    """

    def __init__(self, own: OwnProcess, every_s: float, born_s: float) -> None:
        self.series = Series(Identity(own.pid, None), every_s)
        self._own = own
        self._every_s = every_s
        self._born_s = born_s
        self._first: FdProfile | None = None
        self._profile: FdProfile | None = None
        self._profile_due_s = self._classify_due_s = 0.0
        self._first_fds = own.count_fds()
        self._ready_s = math.inf

    def check(self, sample: Sample, jobs: Sequence[JobSample], ok_s: float, within_s: float) -> str:
        """Returns why the process is to be replaced: it leaks, has used half of its limit and reaches it within that
        time; or has reached it. Empty if it is not, or if the look is not due yet.

        `ok_s` is when something succeeded last, 0 if nothing has: the start-up ends with the first success.
        """
        if ok_s and self._ready_s == math.inf:
            self._ready_s = self._born_s + START_UPS * (ok_s - self._born_s)
        if self._first is None and sample.fds >= self._first_fds + _LEAST_RISE:
            self._scan(sample.at_s)  # before the growth that it is compared with
        soft = self._own.fd_limits()[0]
        if soft is None or sample.fds < LEAK_SHARE * soft or sample.at_s < self._classify_due_s:
            return ""
        began_s = time.thread_time()
        eta_s = self._reached_in_s(sample, soft, within_s)
        is_near = eta_s <= 0 or (eta_s < within_s and sample.at_s >= self._ready_s)
        found = self._classify(sample, jobs) if is_near else None
        self._classify_due_s = due_s(sample.at_s, began_s, self._every_s)
        if found is None or found.verdict not in (Verdict.LEAK, Verdict.EXHAUSTED):
            return ""
        when = "its limit is reached" if eta_s <= 0 else f"its limit is reached in {span_words(eta_s)}"
        return f"{found.verdict}: {found.evidence[0]}; {when}"

    def describe(self, sample: Sample, jobs: Sequence[JobSample]) -> str:
        """Returns what leaks, such as `LEAK: every job leaves 2 descriptors open (…)`; empty if nothing is known to."""
        found = self._classify(sample, jobs)
        return f"{found.verdict}: {found.evidence[0]}" if found.verdict is Verdict.LEAK else ""

    def _reached_in_s(self, sample: Sample, soft: int, within_s: float) -> float:
        """Returns the time to the soft limit at the rate at which the lowest counts rose in the last `within_s`."""
        if is_exhausted(sample.fds, soft):
            return 0.0
        recent = [one for one in self.series.samples if one.at_s >= sample.at_s - within_s]
        half = len(recent) // 2
        if not half:
            return math.inf
        rise = min(one.fds for one in recent[half:]) - min(one.fds for one in recent[:half])
        took_s = recent[half].at_s - recent[0].at_s
        return (soft - sample.fds) * took_s / rise if rise > 0 else math.inf

    def _scan(self, now_s: float) -> None:
        began_s = time.thread_time()
        _, self._profile = self._own.profile()
        self._first = self._first or self._profile
        self._profile_due_s = due_s(now_s, began_s, _PROFILE_EVERY * self._every_s)

    def _classify(self, sample: Sample, jobs: Sequence[JobSample]) -> Diagnosis:
        if sample.at_s >= self._profile_due_s:
            self._scan(sample.at_s)
        soft, hard = self._own.fd_limits()
        first = None if self._first is self._profile else self._first
        profile = self._profile
        growth = None if first is None or profile is None else grown(first, profile)
        return classify(
            fds=sample.fds,
            soft=math.inf if soft is None else soft,
            hard=math.inf if hard is None else hard,
            samples=self.series.samples,
            jobs=list(jobs),
            profile=profile,
            first_profile=first,
            match=None if profile is None else match(profile, growth),
            uptime_s=sample.at_s - self._born_s,
            pid=self._own.pid,
        )
