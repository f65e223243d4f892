"""Six days in a second or two, and a thousand healthy days after them."""

from __future__ import annotations

import random

import pytest
from factories_series import HEALTHY, first_hours, leak, make_samples
from hypothesis import given, settings
from hypothesis import strategies as st
from incident import BASE, DAY_S, HOUR_S, PER_DAY, PID, SOFT, Incident

from holdfast.process.doctor.fd_profile import grown
from holdfast.process.doctor.model import Diagnosis, FdProfile, Sample, Verdict
from holdfast.process.doctor.sampler import Watch
from holdfast.process.doctor.signatures import match
from holdfast.process.doctor.verdict import classify
from holdfast.procfs.processes import Identity

QUARTER_S = 900.0
# Until 300 and what the leak leaves reach the limit; with a job's share a little sooner.
FULL_S = (SOFT - BASE) / PER_DAY * DAY_S


def _classify(
    incident: Incident, watch: Watch, first: FdProfile | None = None, last: FdProfile | None = None
) -> Diagnosis:
    return classify(
        fds=incident.fds,
        soft=SOFT,
        hard=SOFT,
        samples=watch.series[Identity(PID, 500)].samples,
        profile=last,
        first_profile=first,
        match=None if last is None else match(last, None if first is None else grown(first, last)),
        uptime_s=incident.now_s,
        pipe_limit=1024,
        pid=PID,
    )


def test_six_days() -> None:
    incident = Incident()
    watch = incident.watch(every_s=20)
    since: dict[Verdict, float] = {}
    soon = 6 * HOUR_S
    while incident.now_s < 6.6 * DAY_S:
        watch.run(QUARTER_S if incident.now_s < soon else 12 * HOUR_S)
        found = _classify(incident, watch)
        since.setdefault(found.verdict, incident.now_s)
        if found.verdict is Verdict.GROWING:
            assert any("less than a day" in one or "watched for" in one for one in found.evidence)
        if incident.now_s == pytest.approx(soon):
            _check_forecast(found, FULL_S - soon)
    assert since[Verdict.GROWING] <= 2 * HOUR_S
    assert DAY_S <= since[Verdict.LEAK] <= 1.6 * DAY_S
    assert since[Verdict.EXHAUSTED] == pytest.approx(FULL_S, abs=DAY_S / 2)
    assert since.keys() <= {Verdict.OK, Verdict.SETTLING, Verdict.GROWING, Verdict.LEAK, Verdict.EXHAUSTED}


def _check_forecast(found: Diagnosis, left_s: float) -> None:
    line = next(one for one in found.forecasts if one.line == "soft limit")
    assert found.trend is not None
    middle = 3600 * (SOFT - (found.fds or 0)) / found.trend.per_hour
    assert middle == pytest.approx(left_s, rel=0.1)
    assert line.eta_s[0] == pytest.approx(left_s, rel=0.1)
    assert line.eta_s[1] == pytest.approx(left_s, rel=0.1)


def test_a_leak_within_a_quarter_of_an_hour_of_the_first_full_snapshot() -> None:
    """The trend has shown for two hours; a look, and another one 15 minutes later, prove it."""
    incident = Incident(seed=2)
    watch = incident.watch(every_s=5)
    watch.run(2 * HOUR_S)
    assert _classify(incident, watch).verdict is Verdict.GROWING
    first = incident.profile()
    watch.run(QUARTER_S)
    found = _classify(incident, watch, first, incident.profile())
    assert found.verdict is Verdict.LEAK
    assert found.match is not None
    assert found.match.name == "dead-dataloader-iterators"
    assert any("are unusable" in sentence for sentence in found.evidence)
    assert "pipe shrink" in [one.line for one in found.forecasts]


def test_one_snapshot_of_a_worker_that_is_nearly_out_of_descriptors() -> None:
    incident = Incident()
    incident.wait(1.5 * DAY_S)
    profile = incident.profile()
    found = classify(fds=profile.fds, soft=SOFT, hard=SOFT, profile=profile, match=match(profile), uptime_s=1.5 * DAY_S)
    assert found.verdict is Verdict.LEAK
    assert "seen once; 417 an hour on average since its start 1 d 12 h ago" in " ".join(found.evidence)


# ---- healthy days ------------------------------------------------------------------------------------------


def _judge_series(samples: list[Sample]) -> Verdict:
    return classify(fds=samples[-1].fds, soft=SOFT, hard=SOFT, samples=samples).verdict


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_no_healthy_day_is_called_a_leak(name: str) -> None:
    """102 runs of one day and 22 of three, for each of the six: 1,008 days."""
    seen = []
    for days, runs, looks in ((1, 102, (2, 6, 24)), (3, 22, (24, 36, 48, 72))):
        for seed in range(runs):
            samples = make_samples(HEALTHY[name](random.Random(f"{name} {days} {seed}")), 24 * days)
            seen += [_judge_series(first_hours(samples, hours)) for hours in looks]
    assert set(seen) <= {Verdict.OK, Verdict.SETTLING, Verdict.GROWING}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(sorted(HEALTHY)), min_size=1, max_size=3), st.integers(24, 60))
def test_no_mixture_of_healthy_work_is_called_a_leak(seed: int, names: list[str], hours: int) -> None:
    """Of a day and more: the daily rhythm is seen by then. That no seed at all is wrong is not claimed."""
    chance = random.Random(seed)
    curves = [HEALTHY[name](chance) for name in dict.fromkeys(names)]
    samples = make_samples(lambda at: sum(curve(at) for curve in curves), hours, every_s=300)
    assert _judge_series(samples) is not Verdict.LEAK


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.sampled_from(["flat", "sawtooth", "bursty"]))
def test_a_leak_under_healthy_work_is_found_in_a_day(seed: int, name: str) -> None:
    chance = random.Random(seed)
    healthy, leaking = HEALTHY[name](chance), leak(PER_DAY)(chance)
    assert _judge_series(make_samples(lambda at: healthy(at) + leaking(at), 25, every_s=300)) is Verdict.LEAK
