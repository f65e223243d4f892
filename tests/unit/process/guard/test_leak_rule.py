"""When descriptors drain a worker: many healthy and leaking shapes, each through the Guard's rules by a given clock.

A shape gives the descriptors that are held at a time and after so many jobs. It is scaled to the limit: `size` is 40 %
of it.
"""

from __future__ import annotations

import inspect
import math
import random
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast._util.text import parse_seconds, span_words
from holdfast.process.doctor.model import FdProfile, JobSample, Sample
from holdfast.process.guard.caps import FDS, RISING_SAMPLES, SOFT_SAMPLES, Cap, CapWatch
from holdfast.process.guard.guard import Guard
from holdfast.process.guard.health import OUTAGE_FAILS, OUTAGE_S
from holdfast.process.guard.jobs import KEPT_JOBS
from holdfast.process.guard.leak_watch import LEAK_SHARE, START_UPS, LeakWatch
from holdfast.process.guard.leak_watch import RISING_SAMPLES as LEAK_RISES
from holdfast.process.guard.own_process import OwnProcess
from holdfast.process.guard.run import DRAINS

LIMITS = (256, 1_024, 65_536)
BASE = 20  # libraries, log files, the guard's own
DEFAULTS = inspect.signature(Guard).parameters
CAP: Cap = DEFAULTS["fds"].default
HIGH = Cap(soft=0.999)  # of the program
DRAIN_S = 900.0
WITHIN_S = DRAINS * DRAIN_S
assert (DEFAULTS["drain_timeout"].default, DEFAULTS["eta"].default) == ("15min", "6h")

Held = Callable[[float, int, int], float]  # seconds, jobs done, size → descriptors


class SimulatedProcess(OwnProcess):
    """Its limit and its descriptors, all of them files."""

    def __init__(self, limit: int) -> None:
        self.pid = 1
        self.limit = limit
        self.fds = BASE

    def count_fds(self) -> int:
        return self.fds

    def fd_limits(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return self.limit, self.limit

    def profile(self) -> Any:
        return None, FdProfile(fds=self.fds)


class Drain(NamedTuple):
    at_s: float
    share: float  # of the limit
    reason: str


def simulate(
    held: Held, limit: int, for_s: float, *, every_s: float = 1.0, job_s: float = 0.5, start_s: float = 2.0, **more: Any
) -> Drain | None:
    """Returns the first drain. `job_s=inf` is a worker without jobs; `cap=None` leaves it to the leak rule."""
    cap, within_s = more.get("cap", CAP), more.get("within_s", WITHIN_S)
    size = int(0.4 * limit)
    own = SimulatedProcess(limit)
    leaks, soft_cap = LeakWatch(own, every_s, born_s=0.0), CapWatch()
    jobs: deque[JobSample] = deque(maxlen=KEPT_JOBS)
    done = 0
    at_s = start_s
    while at_s < for_s:
        at_s += every_s
        while start_s + (done + 1) * job_s <= at_s:
            done += 1
            jobs.append(JobSample(job=done, fds=BASE + int(held(start_s + done * job_s, done, size))))
        own.fds = BASE + int(held(at_s, done, size))
        sample = Sample(at_s=at_s, fds=own.fds)
        leaks.series.add(sample)
        share = own.fds / limit
        if cap is not None and (which := soft_cap.check(own.fds, FDS.resolve(cap, limit))):
            return Drain(at_s, share, f"{which} cap {leaks.describe(sample, jobs)}")
        has_cap = cap is not None and cap.soft is not None
        if why := leaks.check(sample, jobs, start_s, within_s, has_cap=has_cap):
            return Drain(at_s, share, why)
    return None


# ---- healthy workers ---------------------------------------------------------------------------------------


def walk(seed: int, top: int, steps: int = 4_000) -> list[int]:
    chance, at, found = random.Random(seed), 0, []
    for _ in range(steps):
        at = min(top, max(0, at + chance.randint(-4, 4)))
        found.append(at)
    return found


WALK_60, WALK_100 = walk(1, 60), walk(2, 100)
CHANCE = [random.Random(3).random() for _ in range(10_000)]


def zipf(job: int, size: int) -> float:
    """How many of `size` keys were used in so many jobs, if few keys have most of the jobs."""
    return size * math.log1p(job) / math.log1p(job + 5 * size)


HEALTHY: dict[str, Held] = {
    "flat": lambda t, n, size: size,
    "nothing": lambda t, n, size: 0,
    "LRU of 64 handles, one new a job": lambda t, n, size: min(n, 64),
    "LRU of 64 handles, one new in ten jobs": lambda t, n, size: min(n // 10, 64),
    "LRU of 64 handles, eight new a job": lambda t, n, size: min(8 * n, 64),
    "LRU of 85 handles, two descriptors each": lambda t, n, size: min(2 * n, 2 * 40),
    "LRU of 40 % of the limit, one new a job": lambda t, n, size: min(n, size),
    "LRU by random keys": lambda t, n, size: size * (1 - math.exp(-n / (size + 1))),
    "LRU by random keys, ten a job": lambda t, n, size: size * (1 - math.exp(-10 * n / (size + 1))),
    "LRU that is emptied when full": lambda t, n, size: n % size,
    "cache that is trimmed to half when full": lambda t, n, size: n if n < size else size / 2 + n % (size / 2),
    "cache with a time to live of 5 min": lambda t, n, size: min(t, 300) / 300 * size,
    "tenants, few of them with most jobs": lambda t, n, size: zipf(n, size),
    "tenants that come one after the other": lambda t, n, size: min(size, 2 * (n // 25)),
    "a connection per thread, threads start on demand": lambda t, n, size: min(size, 4 * int(t / 30)),
    "a connection per thread, all at once": lambda t, n, size: size if n > 3 else 0,
    "connection pool that follows the load": lambda t, n, size: size * min(1, t / 900) * (0.5 + CHANCE[n % 9999] / 2),
    "helper pools, 16 descriptors each": lambda t, n, size: min(size, 16 * (n // 20)),
    "helper pool that is made again every 100 jobs": lambda t, n, size: size * 0.6 + size * 0.4 * (n % 100 < 10),
    "shard cache": lambda t, n, size: min(size, n // 5),
    "shards of an epoch, closed at its end": lambda t, n, size: n // 3 % size,
    "tempfile cache": lambda t, n, size: min(n % 400, size),
    "tempfiles deleted every 10 min": lambda t, n, size: size * (t % 600) / 600,
    "batch window of 50 jobs": lambda t, n, size: size * (n % 50) / 50,
    "batch window of 500 jobs": lambda t, n, size: size * (n % 500) / 500,
    "results are released 20 jobs later": lambda t, n, size: min(3 * n, 60),
    "GC cycle of a minute": lambda t, n, size: size * (t % 60) / 60,
    "GC cycle of 20 min": lambda t, n, size: size * (t % 1200) / 1200,
    "GC cycles of two generations": lambda t, n, size: size * (0.5 * (t % 45) / 45 + 0.5 * (t % 700) / 700),
    "warm-up of 10 jobs": lambda t, n, size: size * min(n, 10) / 10,
    "warm-up of 100 jobs": lambda t, n, size: size * min(n, 100) / 100,
    "warm-up of 1,000 jobs": lambda t, n, size: size * min(n, 1_000) / 1_000,
    "warm-up of 5,000 jobs": lambda t, n, size: size * min(n, 5_000) / 5_000,
    "warm-up that slows down": lambda t, n, size: size * (1 - 1 / (1 + n / 100)),
    "warm-up in steps": lambda t, n, size: size * min(8, n // 300) / 8,
    "grows for half an hour, then flat": lambda t, n, size: size * min(1, t / 1800),
    "grows, flat, grows, flat": lambda t, n, size: size / 2 * (min(1, t / 600) + min(1, max(0, t - 1800) / 600)),
    "sine of 30 s": lambda t, n, size: size / 2 * (1 - math.cos(t * math.tau / 30)),
    "sine of 5 min": lambda t, n, size: size / 2 * (1 - math.cos(t * math.tau / 300)),
    "sine of 1 h": lambda t, n, size: size / 2 * (1 - math.cos(t * math.tau / 3600)),
    "random walk of 0 to 60": lambda t, n, size: WALK_60[int(t) % 4_000],
    "random walk of 0 to size": lambda t, n, size: WALK_100[int(t) % 4_000] * size / 100,
    "noise": lambda t, n, size: size * CHANCE[int(7 * t) % 9999],
    "bursts of 5 s a minute": lambda t, n, size: size if t % 60 < 5 else 0,
    "bursts above the soft cap for two samples": lambda t, n, size: 1.7 * size if t % 60 < 2 else size / 2,
    "bursts above the soft cap for 25 s": lambda t, n, size: 1.7 * size if t % 120 < 25 else size / 2,
    "batch window above the soft cap": lambda t, n, size: 1.6 * size * (n % 100 > 60),
    "bursts of any length": lambda t, n, size: size if CHANCE[int(t / 7) % 9999] > 0.7 else size / 3,
    "sawtooth of 7 jobs": lambda t, n, size: size * (n % 7) / 7,
    "DataLoader made again each epoch": lambda t, n, size: 62 if n % 40 > 3 else 0,
    "DataLoader made before the old one is released": lambda t, n, size: 34 * (2 if n % 40 < 4 else 1),
    "prefetch that doubles": lambda t, n, size: min(size, 2 ** min(20, n // 50)),
    "logistic growth": lambda t, n, size: size / (1 + math.exp(-(t - 1500) / 200)),
    "clients that come and go": lambda t, n, size: size * (0.5 + 0.5 * math.sin(t / 97) * math.sin(t / 31)),
    "checkpoint of 30 files every 100 jobs": lambda t, n, size: 30 if n % 100 < 20 else 0,
}
# In time steps of a minute, over three days.
DAYS: dict[str, Held] = {
    "nightly peak": lambda t, n, size: size if t % 86_400 > 79_200 else size / 4,
    "day and night": lambda t, n, size: size / 2 * (1 - math.cos(t * math.tau / 86_400)),
    "log files of a day": lambda t, n, size: 24 * (t % 86_400) / 86_400,
    "new tenants for two days": lambda t, n, size: size * min(1, t / 172_800),
}
# These use much of their limit for good: each gives a part of it, of which `BASE` is the first.
STEADY: dict[str, Callable[[float, int], float]] = {
    "55 %": lambda t, n: 0.55,
    "70 %": lambda t, n: 0.7,
    "80 %": lambda t, n: 0.8,
    "93 %": lambda t, n: 0.93,
    "55 % after 100 jobs": lambda t, n: 0.55 * min(1, n / 100),
    "70 % after 10 jobs": lambda t, n: 0.7 * min(1, n / 10),
    "80 % after 10 jobs": lambda t, n: 0.8 * min(1, n / 10),
    "80 % after half an hour": lambda t, n: 0.8 * min(1, t / 1800),
    "85 % with noise": lambda t, n: 0.82 + 0.03 * CHANCE[int(7 * t) % 9999],
    "random walk of 60 to 80 %": lambda t, n: 0.6 + 0.002 * WALK_100[int(t) % 4_000],
    "sawtooth of 40 to 75 % in 4 s": lambda t, n: 0.4 + 0.35 * (n % 8) / 7,
    "sawtooth of 40 to 75 % in a minute": lambda t, n: 0.4 + 0.35 * (t % 60) / 60,
    "sawtooth of 40 to 75 % in 10 min": lambda t, n: 0.4 + 0.35 * (t % 600) / 600,
    "sawtooth of 40 to 75 % in an hour": lambda t, n: 0.4 + 0.35 * (t % 3600) / 3600,
    "sawtooth of 40 to 75 % by jobs": lambda t, n: 0.4 + 0.35 * (n % 300) / 300,
}
HEALTHY["LRU of 128 handles, one new a job"] = lambda t, n, size: min(n, 128)


def test_there_are_enough_shapes() -> None:
    assert len(HEALTHY) + len(DAYS) + len(STEADY) >= 40
    assert len(LEAKS) + len(SLOW) >= 20


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", [*HEALTHY, *DAYS])
def test_a_healthy_worker_is_not_drained(name: str, limit: int) -> None:
    if name in DAYS:
        found = simulate(DAYS[name], limit, 3 * 86_400, every_s=60.0, job_s=60.0)
    else:
        found = simulate(HEALTHY[name], limit, 4_000 if limit == 1_024 else 2_000)
    assert found is None


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", STEADY)
def test_a_worker_that_always_uses_much_of_its_limit_is_not_drained(name: str, limit: int) -> None:
    def held(at_s: float, done: int, size: int) -> float:
        return max(0, int(STEADY[name](at_s, done) * limit) - BASE)

    assert simulate(held, limit, 4_000 if limit == 1_024 else 2_000) is None
    drained = simulate(held, limit, 4_000, cap=Cap(soft=0.5))
    assert drained is not None
    assert drained.reason.startswith("soft cap"), "a cap of the program is obeyed"


def test_without_caps_a_healthy_worker_is_not_drained_either() -> None:
    for name, held in HEALTHY.items():
        assert simulate(held, 256, 900, cap=None) is None, name


# ---- leaks -------------------------------------------------------------------------------------------------

# Fractions of a descriptor a job are whole ones in some jobs.
LEAKS: dict[str, Held] = {
    "with every job": lambda t, n, size: size * n / 3_000,
    "with every tenth job": lambda t, n, size: size * (n // 10) / 300,
    "with every hundredth job": lambda t, n, size: size * (n // 100) / 30,
    "fast": lambda t, n, size: size * n / 60,
    "as fast as the guard samples": lambda t, n, size: size * n / 12,
    "very fast": lambda t, n, size: size * n / 30,
    "by time": lambda t, n, size: size * t / 1_500,
    "by time, in lumps of a minute": lambda t, n, size: size * (t // 60) / 30,
    "by time, in lumps of ten minutes": lambda t, n, size: size * (t // 600) / 8,
    "on top of a flat cache": lambda t, n, size: size / 2 + size * n / 3_000,
    "on top of a cache that fills": lambda t, n, size: min(n, size / 2) + size * n / 3_000,
    "on top of a sine of 30 s": lambda t, n, size: size / 5 * (1 - math.cos(t * math.tau / 30)) + size * n / 4_000,
    "on top of a sine of 10 min": lambda t, n, size: size / 5 * (1 - math.cos(t * math.tau / 600)) + size * n / 4_000,
    "on top of noise": lambda t, n, size: size / 4 * CHANCE[int(7 * t) % 9999] + size * n / 4_000,
    "on top of a random walk": lambda t, n, size: size / 400 * WALK_100[int(t) % 4_000] + size * n / 4_000,
    "on top of GC cycles": lambda t, n, size: size * (t % 60) / 300 + size * n / 4_000,
    "after a long flat phase": lambda t, n, size: size / 4 + size * max(0, n - 6_000) / 2_000,
    "after a long flat phase, fast": lambda t, n, size: size / 4 + size * max(0, n - 6_000) / 100,
    "bursts, of which a part is released": lambda t, n, size: size * (n // 40) / 80 + size / 8 * (n % 40 < 10),
    "pauses: one job in ten minutes of work": lambda t, n, size: size * (n // 600 * 300 + min(n % 600, 300)) / 1_500,
    "that gets faster": lambda t, n, size: size * (n / 3_000) ** 2,
    "that gets slower": lambda t, n, size: size * math.sqrt(n / 2_000),
    "by one kind of job in three": lambda t, n, size: size / 8 * (n % 3 == 1) + size * (n // 3) / 1_200,
}
SLOW: dict[str, float] = {"10,000 a day": 10_000.0, "1,000 a day": 1_000.0, "100 an hour": 2_400.0}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_drained_in_time(name: str, limit: int) -> None:
    """The job that runs then needs a second; what it leaks in it, too, stays below the hard cap."""
    held, hard = LEAKS[name], CAP.hard
    assert isinstance(hard, float)
    found = simulate(held, limit, 20_000)
    assert found is not None
    assert "hard" not in found.reason
    assert LEAK_SHARE <= found.share < 0.9, found
    done = int((found.at_s - 2) / 0.5) + 2
    ended = BASE + held(found.at_s + 1, done, int(0.4 * limit))
    assert ended < hard * limit, (found, ended)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_leak_is_drained_near_the_limit_and_not_before(name: str, limit: int) -> None:
    per_s = SLOW[name] / 86_400
    full_s = limit / per_s
    found = simulate(lambda t, n, size: per_s * t, limit, full_s, every_s=60.0, job_s=600.0)
    assert found is not None
    assert 0.7 * full_s < found.at_s < 0.9 * full_s, found
    assert LEAK_SHARE <= found.share < 0.9


def test_the_restart_intervals_of_the_slow_leaks() -> None:
    """One descriptor a job of 0.4 s at a limit of 4,096, and 10,000 a day at 1,024: every 22 min and every 2 h."""
    found = simulate(lambda t, n, size: n, 4_096, 3_000, job_s=0.4)
    assert found is not None
    assert found.reason.startswith(
        "LEAK: every job leaves 1 descriptor open (over 1,990 jobs after the warm-up); its limit"
    )
    assert found.at_s > 1_300
    found = simulate(lambda t, n, size: 10_000 * t / 86_400, 1_024, 86_400, job_s=30.0)
    assert found is not None
    assert found.at_s > 6_500


# ---- the leak rule alone, where the caps are off or higher -------------------------------------------------


@pytest.mark.parametrize("limit", [1_024, 65_536])
@pytest.mark.parametrize("name", ["with every job", "with every tenth job", "on top of noise", "that gets faster"])
def test_a_leak_by_jobs_is_drained_below_a_high_cap_of_the_program(name: str, limit: int) -> None:
    found = simulate(LEAKS[name], limit, 20_000, cap=HIGH)
    assert found is not None
    assert found.reason.startswith("LEAK: every job leaves ")
    assert LEAK_SHARE <= found.share < 0.9, found


def test_a_leak_far_from_the_limit_is_left_to_the_cap() -> None:
    """One a second at 65,536: at 80 % of the limit 3.6 hours are left, and 30 min at 97 %."""
    found = simulate(lambda t, n, size: t, 65_536, 70_000, every_s=10.0, job_s=10.0, cap=HIGH)
    assert found is not None
    assert (65_536 - BASE) - found.at_s == pytest.approx(WITHIN_S, rel=0.1)
    later = simulate(lambda t, n, size: t, 65_536, 70_000, every_s=10.0, job_s=10.0, cap=HIGH, within_s=600.0)
    assert later is not None
    assert (65_536 - BASE) - later.at_s == pytest.approx(600, rel=0.2)


def test_a_leak_is_not_drained_before_ten_start_ups() -> None:
    """It loads a model for a minute, and reaches its limit a minute later."""
    found = simulate(LEAKS["fast"], 1_024, 600, cap=HIGH, start_s=60.0)
    assert found is None or found.reason.startswith(("EXHAUSTED", "soft cap"))
    slower: Held = lambda t, n, size: size * n / 500  # noqa: E731
    found = simulate(slower, 1_024, 3_600, cap=HIGH, start_s=60.0)
    assert found is not None
    assert found.at_s >= START_UPS * 60
    found = simulate(slower, 1_024, 3_600, cap=HIGH, start_s=1.0)
    assert found is not None
    assert found.at_s < START_UPS * 60 + 60


# ---- the documentation -------------------------------------------------------------------------------------


def test_the_table_in_the_documentation_has_the_numbers_of_every_rule() -> None:
    text = (Path(__file__).parents[4] / "docs/guard.md").read_text()
    table = re.sub(r"\s+", " ", text.split("## What it does, and when")[1].split("To *drain*")[0])
    for name in ("eta", "progress_timeout", "drain_timeout"):
        assert re.search(rf"`{name}` \({span_words(parse_seconds(DEFAULTS[name].default))}\)", table), name
    assert f"`jitter` ({DEFAULTS['jitter'].default * 100:g} %)" in table
    assert f"use {LEAK_SHARE * 100:g} % of the soft limit" in table
    assert f"twice `drain_timeout` ({span_words(WITHIN_S)})" in table
    assert f"after {START_UPS} times the start-up" in table
    assert f"exceeded by the last of {RISING_SAMPLES} samples that rise, or by {SOFT_SAMPLES} in a row" in table
    assert f"{OUTAGE_FAILS} failures in a row, and no success for {span_words(OUTAGE_S)}" in table
    assert Cap(hard=CAP.hard) == CAP
    assert f"capped, at `hold.Cap(hard={CAP.hard})`" in re.sub(r"\s+", " ", text)
    assert f"or {LEAK_RISES} samples in a row rise" in table
