"""The count right after each job: what a job leaves behind, free of the noise of the work itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .facts import JobSample
from .slope import find_slope
from .trend import LEAST_RISE, Shape, shape_of

# Imports, caches and pools open theirs in the first jobs and keep them.
WARM_UP_JOBS = 10
LEAST_JOBS = 9
# All pairs are compared; of a longer history every second, third, … job will do.
_MOST_JOBS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTrend:
    """Descriptors left by each job. `low` and `high` are the ends of the 95 % interval of `per_job`."""

    per_job: float
    low: float
    high: float
    rise: float
    jobs: int
    grows: bool


def find_job_trend(jobs: Sequence[JobSample]) -> JobTrend | None:
    """Of samples in the order of their jobs, the first ten left out; None if fewer than nine are left."""
    counted = list(jobs)[WARM_UP_JOBS:]
    if len(counted) < LEAST_JOBS:
        return None
    step = -(-len(counted) // _MOST_JOBS)
    thin = counted[::-step][::-1]  # counted from the last one, which is always there
    values = [one.fds for one in thin]
    slope = find_slope([one.job for one in thin], values)
    return JobTrend(
        per_job=slope.value,
        low=slope.low,
        high=slope.high,
        rise=values[-1] - values[0],
        jobs=len(counted),
        grows=shape_of(values, slope, LEAST_RISE) is Shape.RISING,
    )
