from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from factories_series import (
    HEALTHY,
    Maker,
    collected,
    first_hours,
    flat,
    leak,
    lumpy_leak,
    make_samples,
    on_top,
    pool,
    teeth,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.process.doctor.model import JobSample, Sample, Verdict
from holdfast.process.doctor.trend import (
    BIN_S,
    MAX_BINS,
    Baseline,
    Shape,
    bin_width,
    find_baselines,
    find_job_trend,
    find_slope,
    find_trend,
    shape_of,
    trend_of,
)
from holdfast.process.doctor.verdict import classify

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def _samples(*counts: int, every_s: float = 60.0) -> list[Sample]:
    return [Sample(at_s=at * every_s, fds=fds) for at, fds in enumerate(counts)]


# ---- floors ------------------------------------------------------------------------------------------------


def test_the_floor_is_the_minimum_of_each_bin() -> None:
    found = find_baselines(_samples(5, 9, 3, 8, 7, 6, 9), bin_s=120)
    assert found == [Baseline(60, 3), Baseline(180, 7), Baseline(300, 6)]


def test_bins_end_with_the_last_sample_and_are_never_cut_short() -> None:
    """The first sample is older than three whole bins: it is left out."""
    assert [baseline.fds for baseline in find_baselines(_samples(1, 9, 3, 8, 7, 6, 9, 9), bin_s=120)] == [3, 6, 9]


def test_a_stretch_without_samples_has_no_floor() -> None:
    found = find_baselines([Sample(at_s=0, fds=1), Sample(at_s=10, fds=2), Sample(at_s=100, fds=3)], bin_s=10)
    assert [baseline.fds for baseline in found] == [1, 3]


def test_no_floors_without_a_span() -> None:
    assert find_baselines([]) == []
    assert find_baselines(_samples(5)) == []
    assert find_baselines([Sample(at_s=3, fds=1), Sample(at_s=3, fds=2)]) == []


def test_bins_suit_the_span() -> None:
    assert bin_width(30) == 2.5
    assert bin_width(2 * HOUR_S) == BIN_S == bin_width(DAY_S)
    assert 30 * DAY_S / bin_width(30 * DAY_S) == MAX_BINS


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e7), st.integers(0, 10**6)), min_size=2, max_size=60))
def test_floors_are_bounded_and_in_order(points: list[tuple[float, int]]) -> None:
    samples = [Sample(at_s=at, fds=fds) for at, fds in sorted(points)]
    found = find_baselines(samples)
    assert len(found) <= MAX_BINS
    assert [baseline.at_s for baseline in found] == sorted(baseline.at_s for baseline in found)
    assert {baseline.fds for baseline in found} <= {one.fds for one in samples}


# ---- slope -------------------------------------------------------------------------------------------------


def test_a_slope_is_not_bent_by_outliers() -> None:
    values = [10.0 + 3 * at for at in range(20)]
    assert find_slope(range(20), values)[:3] == (3, 3, 3)
    values[5], values[12] = 10_000, 0
    bent = find_slope(range(20), values)
    assert bent.value == 3
    assert bent.low <= 3 <= bent.high
    assert bent.spread == 0


def test_a_slope_agrees_with_a_known_one() -> None:
    """Sen's estimate of a small table by hand: the middle of ten slopes; the interval at n = 5 takes in nearly all."""
    found = find_slope([1, 2, 3, 4, 5], [1, 3, 2, 5, 4])
    assert found.value == 0.875
    assert (found.low, found.high) == (-1, 3)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    chance = random.Random(11)
    covered = 0
    for _ in range(200):
        found = find_slope(range(24), [2 * at + chance.gauss(0, 15) for at in range(24)])
        covered += found.low <= 2 <= found.high
    assert 180 <= covered <= 200


def test_one_point_has_no_slope() -> None:
    with pytest.raises(ValueError, match="at least two points, got 1"):
        find_slope([1], [1])


# ---- the rule ----------------------------------------------------------------------------------------------


def _floors(*counts: int) -> list[Baseline]:
    return [Baseline(BIN_S * at, fds) for at, fds in enumerate(counts)]


def test_too_few_bins_tell_nothing() -> None:
    assert trend_of(_floors(*range(0, 700, 100))) is None
    assert find_trend(_samples(1, 2, 3)) is None


def test_a_steady_rise_grows() -> None:
    found = trend_of(_floors(*range(100, 1300, 100)))
    assert found is not None
    assert (found.grows, found.settles) == (True, False)
    assert found.per_hour == found.low == found.high == 400
    assert (found.rise, found.span_s, found.bins) == (1100, 12 * BIN_S, 12)


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param([100] * 12, id="flat"),
        pytest.param([*range(100, 105), *[104] * 7], id="too small a rise"),
        pytest.param([100] * 6 + [900] * 6, id="one step in the middle"),
        pytest.param([100] * 3 + [900] * 9, id="one early step"),
        pytest.param([100] * 9 + [900] * 3, id="one late step"),
        pytest.param([*range(100, 700, 100), *range(700, 100, -100)], id="up and down"),
        pytest.param(range(1300, 100, -100), id="falling"),
    ],
)
def test_what_does_not_grow(counts: list[int]) -> None:
    found = trend_of(_floors(*counts))
    assert found is not None
    assert (found.grows, found.settles) == (False, False)
    assert found.low <= 0


def test_a_rise_that_slows_down_settles() -> None:
    found = trend_of(_floors(100, 300, 450, 550, 600, 640, 670, 690, 705, 715, 720, 724))
    assert found is not None
    assert (found.grows, found.settles) == (False, True)


def test_a_daily_rhythm_does_not_grow_once_a_day_is_seen() -> None:
    """It begins in the evening, so that its thirds rise and its slope is above zero."""
    day = [1000 - round(900 * _sine(at / 96)) for at in range(96)]
    half = trend_of(_floors(*day[24:72]))
    assert half is not None
    assert half.grows
    for length in (96, 120, 144, 192):
        found = trend_of(_floors(*(day * 2)[:length]))
        assert found is not None
        assert not found.grows


def _sine(turns: float) -> float:
    return math.sin(2 * math.pi * turns)


def test_a_leak_on_a_daily_rhythm_grows() -> None:
    """In three days: until then one third of the time is less than a day and has a rhythm of its own."""
    counts = [1000 + 20 * at - round(900 * _sine(at / 96)) for at in range(4 * 96)]
    found = trend_of(_floors(*counts[:288]))
    assert found is not None
    assert (found.grows, found.steady) == (True, False)
    assert found.per_hour == pytest.approx(80, rel=0.1)
    later = trend_of(_floors(*counts))
    assert later is not None
    assert later.steady


def test_a_warm_up_and_a_step_are_not_steady() -> None:
    found = trend_of(_floors(*(min(400, 20 * at) + (400 if at > 60 else 0) + at // 10 for at in range(110))))
    assert found is not None
    assert (found.grows, found.steady) == (True, False)
    steady = trend_of(_floors(*range(0, 1100, 10)))
    assert steady is not None
    assert (steady.grows, steady.steady) == (True, True)


def test_a_leak_that_begins_after_quiet_days() -> None:
    curve = flat(random.Random(3))
    quiet = make_samples(curve, 80)
    began = 72 * HOUR_S
    leaking = [Sample(at_s=one.at_s, fds=one.fds + max(0, int((one.at_s - began) / HOUR_S * 400))) for one in quiet]
    found = find_trend(leaking)
    assert found is not None
    assert found.grows
    assert found.span_s == pytest.approx(6 * HOUR_S, rel=0.1)
    assert found.per_hour == pytest.approx(400, rel=0.05)
    steady = find_trend(quiet)
    assert steady is not None
    assert not steady.grows


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=9, max_size=40), st.integers(0, 10**6))
def test_a_trend_does_not_depend_on_where_the_count_starts(counts: list[int], more: int) -> None:
    here, there = trend_of(_floors(*counts)), trend_of(_floors(*(one + more for one in counts)))
    assert here is not None
    assert there is not None
    assert (here.grows, here.settles, here.rise) == (there.grows, there.settles, there.rise)
    assert here.low <= here.per_hour <= here.high
    assert not (here.grows and here.settles)
    assert (here.low > 0) == here.grows
    assert not here.grows or here.rise > 4


@settings(deadline=None)
@given(st.lists(st.integers(-1000, 0), min_size=9, max_size=40))
def test_what_only_falls_never_grows(steps: list[int]) -> None:
    counts = [50_000]
    for step in steps:
        counts.append(counts[-1] + step)
    found = trend_of(_floors(*counts))
    assert found is not None
    assert not found.grows


def test_the_shape_of_few_values() -> None:
    values = [0.0, 10, 20, 30, 40, 50, 60, 70, 80]
    assert shape_of(values, find_slope(range(9), values), 32) is Shape.RISING
    assert shape_of(values, find_slope(range(9), values), 80) is Shape.LEVEL


# ---- error rates -------------------------------------------------------------------------------------------

RUNS = 40


def _grown(maker: Maker, hours: float) -> int:
    found = 0
    for seed in range(RUNS):
        trend = find_trend(make_samples(maker(random.Random(seed)), hours))
        found += trend is not None and trend.grows
    return found


@pytest.mark.parametrize("name", ["flat", "sawtooth", "bursty", "one step"])
def test_false_alarms_of_steady_work(name: str) -> None:
    assert _grown(HEALTHY[name], 2) <= RUNS // 10
    assert _grown(HEALTHY[name], 6) <= RUNS // 20
    assert _grown(HEALTHY[name], 24) == 0


def test_false_alarms_of_warm_up_end_within_six_hours() -> None:
    assert _grown(HEALTHY["warm-up"], 6) == 0


def test_a_daily_rhythm_fools_any_window_below_a_day() -> None:
    assert _grown(HEALTHY["diurnal"], 6) >= RUNS // 8
    assert _grown(HEALTHY["diurnal"], 24) == 0


def test_leaks_are_found() -> None:
    assert _grown(leak(10_000), 2) >= RUNS * 0.95
    assert _grown(leak(10_000), 6) == RUNS
    assert _grown(lumpy_leak, 6) >= RUNS * 0.8
    assert _grown(lumpy_leak, 24) >= RUNS * 0.9
    assert _grown(leak(100), 24) >= RUNS * 0.75


# How many of 100 watches of a process that is up for six hours are said to be GROWING, at the most or at the least.
# Behind a row, where it differs much: about how many it would be at 30 s without the rules for short watches and drift.
SHORT_WATCHES = [
    # what it does, in 30 s at the most, in 5 min at the most, in 5 min at the least
    pytest.param(flat, 0, 0, 0, id="flat"),
    pytest.param(teeth(1, 60), 0, 1, 0, id="sawtooth of 1 to 60 s"),  # 17
    pytest.param(collected(1, 60), 0, 1, 0, id="collected after 1 to 60 s"),  # 39
    pytest.param(teeth(180, 860), 0, 45, 0, id="sawtooth of 3 to 14 min"),  # 88
    pytest.param(pool(0.1), 0, 5, 0, id="pool, 10 changes a second"),
    pytest.param(pool(1), 0, 5, 0, id="pool, a change a second"),  # 10
    pytest.param(pool(5), 0, 5, 0, id="pool, a change in 5 s"),
    pytest.param(on_top(432, flat), 0, 100, 99, id="leak of 432 an hour"),
    pytest.param(on_top(72_000, flat), 0, 100, 99, id="leak of 20 a second"),
    pytest.param(on_top(3600, teeth(1, 60)), 0, 100, 70, id="leak of 1 a second under a sawtooth"),
]


@pytest.mark.parametrize(("maker", "max_30s", "max_300s", "least_300s"), SHORT_WATCHES)
def test_error_rates_of_short_watches(maker: Maker, max_30s: int, max_300s: int, least_300s: int) -> None:
    assert _growing(maker, 30) <= max_30s
    assert least_300s <= _growing(maker, 300) <= max_300s


def _growing(maker: Maker, span_s: float) -> int:
    found = 0
    for seed in range(100):
        samples = make_samples(maker(random.Random(seed)), span_s / HOUR_S, every_s=max(0.25, span_s / 240), seed=seed)
        processes = classify(fds=samples[-1].fds, soft=20_000, hard=20_000, samples=samples, uptime_s=6 * HOUR_S)
        found += processes.verdict is Verdict.GROWING
        assert processes.trend is not None
        assert (processes.trend.low > 0) == (processes.verdict is Verdict.GROWING)
    return found


def test_a_fast_leak_of_a_young_process_is_reported_in_seconds() -> None:
    samples = make_samples(on_top(72_000, flat)(random.Random(1)), 5 / HOUR_S, every_s=0.1)
    found = classify(fds=samples[-1].fds, soft=20_000, hard=20_000, samples=samples, uptime_s=6)
    assert found.verdict is Verdict.GROWING


def test_the_slope_of_a_leak() -> None:
    for seed in range(RUNS):
        samples = make_samples(leak(10_000)(random.Random(seed)), 24)
        for hours, wrong in ((6, 0.1), (24, 0.02)):
            found = find_trend(first_hours(samples, hours))
            assert found is not None
            assert found.per_hour * 24 == pytest.approx(10_000, rel=wrong)


# ---- jobs --------------------------------------------------------------------------------------------------


def _jobs(chance: random.Random, n: int, per_job: float, noise: int, warm_up: int = 0) -> list[JobSample]:
    return [
        JobSample(job=job, fds=200 + int(per_job * job) + min(job, 10) * warm_up + chance.randint(0, noise))
        for job in range(n)
    ]


def test_too_few_jobs_tell_nothing() -> None:
    assert find_job_trend(_jobs(random.Random(1), 41, 9, 0)) is None


@pytest.mark.parametrize(("per_job", "n"), [(8, 42), (2, 90), (0.5, 320), (0.1, 1_600), (2, 5_011)])
def test_what_every_job_leaves_open_is_found_once_it_is_more_than_a_cache(per_job: float, n: int) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        found = find_job_trend(_jobs(chance, n, per_job, 3))
        assert found is not None
        assert found.grows
        assert found.jobs == n - 10
        assert found.per_job == pytest.approx(per_job, rel=0.1)


def test_jobs_that_give_back_are_not_accused() -> None:
    accused = 0
    for seed in range(60):
        chance = random.Random(seed)
        for n in (42, 50, 100, 500):
            found = find_job_trend(_jobs(chance, n, 0, chance.choice((0, 2, 8, 40)), warm_up=chance.choice((0, 30))))
            assert found is not None
            accused += found.grows
    assert accused == 0


@pytest.mark.parametrize(
    "held",
    [
        lambda job: min(job, 128),  # a cache of handles that fills, one with each job
        lambda job: min(2 * job, 60),
        lambda job: job % 120,  # a batch window, or what a garbage collection frees
        lambda job: 400 if job > 60 else 0,  # a pool that is made later
        lambda job: int(128 * (1 - 0.99**job)),  # a cache of 128 handles by random keys
        lambda job: int(60 - 60 * math.cos(job / 50)),
    ],
)
def test_caches_and_cycles_are_not_accused_after_any_number_of_jobs(held: Callable[[int], int]) -> None:
    jobs = [JobSample(job=job, fds=20 + held(job)) for job in range(1_000)]
    assert not [n for n in range(42, 1_000, 7) if (found := find_job_trend(jobs[:n])) is None or found.grows]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(sorted(HEALTHY)), st.integers(2, 30))
def test_any_healthy_mixture_has_a_sound_trend(seed: int, name: str, hours: int) -> None:
    chance = random.Random(seed)
    one, other = HEALTHY[name](chance), HEALTHY[chance.choice(sorted(HEALTHY))](chance)
    found = find_trend(make_samples(lambda at: one(at) + other(at), hours))
    assert found is not None
    assert found.low <= found.per_hour <= found.high
    assert found.bins <= MAX_BINS
