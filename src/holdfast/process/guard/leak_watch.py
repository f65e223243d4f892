"""Decides whether this process is to be replaced because it leaks descriptors and its limit is near.

A cache that fills cannot be distinguished from a leak until it is full, and a restart empties it. So growth drains
only where the limit is near: 80 % of it is used. A process that stays where it is gives no
reason, however much it uses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import pairwise

from ..._util.text import span_words
from ...procfs.processes import Identity
from ..doctor.fd_profile import grown
from ..doctor.model import Diagnosis, FdProfile, JobSample, Sample, Verdict
from ..doctor.sampler import Series
from ..doctor.signatures import match
from ..doctor.verdict import classify, is_exhausted
from .own_process import OwnProcess

# The part of the soft limit above which growth drains.
LEAK_SHARE = 0.8
# Where so many samples in a row rise, and the limit is reached in at most `_FAST_TIMES` as long, no trend is needed.
RISING_SAMPLES = 5
_FAST_TIMES = 8
# A leak drains at the earliest this many times the start-up after the start: then at most a tenth of the time is spent
# on starting.
START_UPS = 10
# What takes longer than a sample takes at most 1/2,000 of the time; together with the samples that is below 0.2 % of a
# core.
_REST = 2_000
# Scan all descriptors every N samples.
_PROFILE_EVERY = 15
_LEAST_RISE = 8


def due_s(now_s: float, began_s: float, every_s: float) -> float:
    """Returns when the scan is due again that began at this CPU time of the thread: after `every_s`, or later if it
    took long."""
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

    def check(
        self, sample: Sample, jobs: Sequence[JobSample], ok_s: float, within_s: float, *, has_cap: bool = False
    ) -> str:
        """Returns why the process is to be replaced: it has used 80 % of its limit and uses more and more; or has
        reached it. Empty if it is not, or if the scan is not due yet.

        `ok_s` is when something succeeded last, 0 if nothing has: the start-up ends with the first success. `has_cap`:
        the program has set a soft cap, so that only a leak that reaches the limit within that time counts.
        """
        if ok_s and self._ready_s == math.inf:
            self._ready_s = self._born_s + START_UPS * (ok_s - self._born_s)
        if self._first is None and sample.fds >= self._first_fds + _LEAST_RISE:
            self._scan(sample.at_s)  # before the growth that it is compared with
        soft = self._own.fd_limits()[0]
        if soft is None or sample.fds <= LEAK_SHARE * soft or sample.at_s < self._classify_due_s:
            return ""
        began_s = time.thread_time()
        recent = [one for one in self.series.samples if one.at_s >= sample.at_s - within_s]
        eta_s = _reached_in_s(recent, soft)
        reasons = [Verdict.LEAK, Verdict.EXHAUSTED] if has_cap else [Verdict.LEAK, Verdict.EXHAUSTED, Verdict.GROWING]
        found = None
        if eta_s <= 0 or (sample.at_s >= self._ready_s and (eta_s < within_s or not has_cap)):
            found = self._classify(sample, jobs, self.series.samples)
            if found.verdict not in reasons and not has_cap:
                found = self._classify(sample, jobs, recent)  # it may have begun after a long time without growth
        self._classify_due_s = due_s(sample.at_s, began_s, self._every_s)
        if found is not None and found.verdict in reasons:
            when = "" if eta_s <= 0 else f" in {span_words(eta_s)}"
            end = f"its limit is reached{when}" if eta_s < within_s else f"{soft - sample.fds:,} of {soft:,} are left"
            return f"{found.verdict}: {found.evidence[0]}; {end}"
        if not has_cap and (rise := self._fast_rise(soft)):
            what = self.describe(sample, jobs) or f"{Verdict.GROWING}: {rise:,} more in {RISING_SAMPLES} samples"
            return f"{what}; {soft - sample.fds:,} of {soft:,} are left"
        return ""

    def _fast_rise(self, soft: int) -> int:
        """Returns by how much the last samples rose, if each rose and the limit is reached soon; otherwise 0."""
        last = [one.fds for one in self.series.samples[-RISING_SAMPLES:]]
        rise = last[-1] - last[0]
        rises = len(last) == RISING_SAMPLES and all(before < after for before, after in pairwise(last))
        return rise if rises and rise * _FAST_TIMES >= soft - last[-1] else 0

    def describe(self, sample: Sample, jobs: Sequence[JobSample]) -> str:
        """Returns what leaks, such as `LEAK: every job leaves 2 descriptors open (…)`; empty if nothing is known to."""
        found = self._classify(sample, jobs, self.series.samples)
        return f"{found.verdict}: {found.evidence[0]}" if found.verdict is Verdict.LEAK else ""

    def _scan(self, now_s: float) -> None:
        began_s = time.thread_time()
        _, self._profile = self._own.profile()
        self._first = self._first or self._profile
        self._profile_due_s = due_s(now_s, began_s, _PROFILE_EVERY * self._every_s)

    def _classify(self, sample: Sample, jobs: Sequence[JobSample], samples: Sequence[Sample]) -> Diagnosis:
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
            samples=samples,
            jobs=list(jobs),
            profile=profile,
            first_profile=first,
            match=None if profile is None else match(profile, growth),
            uptime_s=sample.at_s - self._born_s,
            pid=self._own.pid,
        )


def _reached_in_s(recent: Sequence[Sample], soft: int) -> float:
    """Returns the time to the soft limit at the rate at which the lowest counts rose in these samples."""
    fds = recent[-1].fds
    if is_exhausted(fds, soft):
        return 0.0
    half = len(recent) // 2
    if not half:
        return math.inf
    rise = min(one.fds for one in recent[half:]) - min(one.fds for one in recent[:half])
    took_s = recent[half].at_s - recent[0].at_s
    return (soft - fds) * took_s / rise if rise > 0 else math.inf
