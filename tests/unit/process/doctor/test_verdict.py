from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.process.doctor.model import Diagnosis, FdProfile, JobSample, Match, Sample, Verdict
from holdfast.process.doctor.verdict import classify, confidence_of, count_pipes, eta_s, is_exhausted
from holdfast.procfs.descriptors import Kind

HOUR_S = 3600.0


def _ramp(hours: float, per_hour: float, start: int = 100, every_s: float = 60.0) -> list[Sample]:
    turns = int(hours * HOUR_S / every_s)
    return [Sample(at_s=n * every_s, fds=start + int(per_hour * n * every_s / HOUR_S)) for n in range(turns + 1)]


def _jobs(n: int, per_job: int) -> list[JobSample]:
    return [JobSample(job=job, fds=100 + per_job * job) for job in range(n)]


def _dead(fds: int, *, hup: int = 0, err: int = 0, self_pairs: int = 0, **more: int) -> FdProfile:
    pipes = hup + err + 2 * self_pairs
    return FdProfile(fds=fds, kinds={Kind.PIPE: pipes}, hup=hup, err=err, self_pairs=self_pairs, **more)


def _classify(fds: int = 200, soft: float = 65536, hard: float = 1048576, **more: object) -> Diagnosis:
    return classify(fds=fds, soft=soft, hard=hard, **more)  # type: ignore[arg-type]


LIVE = Match(name="x", cause="y", advice=("join the workers",), count=90, dead=0, share=0.9)
MATCH = Match(name="x", cause="y", advice=("drop the iterator",), count=90, dead=90, share=0.9)


INCIDENT = _dead(63_912, hup=15_960, err=15_960, self_pairs=15_960)


# ---- OK and SETTLING ---------------------------------------------------------------------------------------


def test_one_calm_snapshot() -> None:
    found = _classify()
    assert found.verdict is Verdict.OK
    assert found.evidence == (
        "one snapshot: whether it grows shows only when it is watched",
        "it holds 200 of 65,536 descriptors (under 1 %): 65,336 are left",
    )
    assert (found.advice, found.forecasts, found.trend) == ((), (), None)


def test_a_calm_watch() -> None:
    found = _classify(samples=_ramp(5, 0), jobs=_jobs(50, 0))
    assert found.verdict is Verdict.OK
    assert found.evidence[:2] == (
        "its baseline did not rise in 5 h",
        "jobs release what they open: 40 of them left nothing open",
    )


def test_little_room_gets_advice_without_a_leak() -> None:
    found = _classify(fds=900, soft=1024, hard=4096)
    assert found.verdict is Verdict.OK
    assert found.advice[0] == "raise its limit while it runs: prlimit --pid PID --nofile=4096:"
    assert "hold.raise_nofile()" in found.advice[1]


def test_warm_up_settles() -> None:
    samples = [Sample(at_s=60.0 * n, fds=int(1000 - 900 * 0.985**n)) for n in range(361)]
    found = _classify(samples=samples, match=MATCH)
    assert found.verdict is Verdict.SETTLING
    assert "but more and more slowly" in found.evidence[0]
    assert found.advice == ("growth that slows down is mostly a warm-up; to make sure: holdfast doctor PID --for 1h",)


def test_what_cannot_be_seen() -> None:
    found = classify(fds=None, soft=None, hard=None)
    assert found.verdict is Verdict.OK
    assert found.evidence[-1] == "permission denied to list its descriptors: run as its user or as root"
    assert classify(fds=5, soft=None, hard=None).evidence[-1] == "it holds 5 descriptors; its limit cannot be read"
    assert classify(fds=5, soft=math.inf, hard=math.inf).evidence[-1] == "it holds 5 descriptors and has no limit"


# ---- GROWING -----------------------------------------------------------------------------------------------


def test_a_trend_alone_is_growing() -> None:
    found = _classify(fds=2205, samples=_ramp(5, 421), pid=4711)
    assert found.verdict is Verdict.GROWING
    assert found.evidence[0] == "its baseline rose by 2,006 in 5 h (421 an hour, 421–421) and stays high when idle"
    assert found.evidence[1] == "the trend covers less than a day: a daily cycle would look the same"
    assert found.advice == (
        "watch it under load to see which kind grows: holdfast doctor 4711 --for 10m",
        "until then: raise its limit while it runs: prlimit --pid 4711 --nofile=1048576:",
    )


def test_a_short_watch_says_so() -> None:
    """Since the process was started, a minute ago, it may have grown at this pace."""
    found = _classify(samples=_ramp(30 / HOUR_S, 12_000, every_s=0.5), match=LIVE, uptime_s=60)
    assert found.verdict is Verdict.GROWING
    assert found.evidence[1] == "it was watched for 30 s only: a running job would look the same"
    assert "idle" not in found.evidence[0]
    assert found.advice[:2] == ("join the workers", "watch it longer before you act: holdfast doctor PID --for 10m")


@pytest.mark.parametrize("uptime_s", [None, 3600.0])
def test_a_rise_in_a_short_watch_of_a_long_life_is_unclear(uptime_s: float | None) -> None:
    """At this pace it would have begun moments ago: a job under way is likelier than a leak."""
    found = _classify(samples=_ramp(30 / HOUR_S, 12_000, every_s=0.5), uptime_s=uptime_s)
    assert found.trend is not None
    assert (found.verdict, found.trend.unclear, found.trend.low) == (Verdict.UNCLEAR, True, 0)
    assert found.evidence[0].endswith("in so short a time a running job would look the same")
    sure = confidence_of(found)
    assert (sure.conclusive, sure.sentence) == (
        False,
        "not sure: it rose by 93 in 30 s, which a job or a leak would explain; a watch of 3 min would settle it",
    )
    assert not found.forecasts
    assert found.advice == ("watch it longer before you act: holdfast doctor PID --for 10m",)


def test_a_rise_that_reaches_the_limit_soon_is_reported_in_a_short_watch() -> None:
    samples = _ramp(30 / HOUR_S, 12_000, every_s=0.5)
    soon, later = (_classify(samples=samples, soft=samples[-1].fds + room, uptime_s=3600.0) for room in (1_500, 4_000))
    assert (soon.verdict, later.verdict) == (Verdict.GROWING, Verdict.UNCLEAR)


@pytest.mark.parametrize("per_day", [10_000, 2_000])
def test_a_slow_leak_is_growing_after_five_minutes(per_day: int) -> None:
    """Its slope is printed with an interval that excludes zero: an OK beside it would contradict that."""
    found = _classify(samples=_ramp(5 / 60, per_day / 24, every_s=5))
    assert found.trend is not None
    assert found.trend.low > 0
    assert found.verdict is Verdict.GROWING
    assert found.forecasts[0].line == "soft limit"


def test_live_growth_is_not_called_a_leak_before_a_day() -> None:
    first, last = FdProfile(fds=100, live=20), FdProfile(fds=2200, live=2100, kinds={Kind.PIPE: 2100})
    assert _classify(fds=2200, samples=_ramp(20, 105), profile=last, first_profile=first).verdict is Verdict.GROWING


def test_dead_ones_from_before_prove_nothing_of_live_growth() -> None:
    first = _dead(700, hup=150, err=150)
    last = _dead(2800, hup=150, err=150, live=2100)
    assert _classify(fds=2800, samples=_ramp(5, 420), profile=last, first_profile=first).verdict is Verdict.GROWING


# ---- LEAK --------------------------------------------------------------------------------------------------


def test_growth_that_is_dead_is_a_leak() -> None:
    first, last = _dead(1000, hup=2, err=2), _dead(1110, hup=30, err=30, self_pairs=25)
    found = _classify(fds=1110, samples=_ramp(2, 50, 1000), profile=last, first_profile=first, match=MATCH)
    assert found.verdict is Verdict.LEAK
    assert found.evidence[1:] == (
        "60 of its 1,110 descriptors are pipes whose other end is closed in every process",
        "50 of its 1,110 descriptors are both ends of 25 pipes that no other process has open",
        "106 of the 110 opened since the first snapshot are unusable",
        "it holds 1,110 of 65,536 descriptors (2 %): 64,426 are left",
    )
    assert found.advice[0] == "drop the iterator"


def test_a_burst_between_the_snapshots_hides_nothing() -> None:
    """800 live ones came with the burst; the floor rose by 100, and 104 more are dead."""
    first, last = _dead(1000, hup=2, err=2), _dead(1900, hup=54, err=54, live=800)
    found = _classify(fds=1900, samples=_ramp(2, 50, 1000), profile=last, first_profile=first)
    assert found.verdict is Verdict.LEAK


def test_connections_half_closed_are_dead() -> None:
    first, last = FdProfile(fds=100), FdProfile(fds=200, close_wait=90)
    found = _classify(samples=_ramp(2, 50), profile=last, first_profile=first)
    assert found.verdict is Verdict.LEAK
    assert "90 of its 200 descriptors are connections that the peer has closed and this process has not" in " ".join(
        found.evidence
    )


@pytest.mark.parametrize("last", [_dead(300, self_pairs=95), _dead(300, close_wait=190)])
def test_what_a_start_opens_is_no_leak(last: FdProfile) -> None:
    """Queues between threads, and clients that have closed their side: for ten minutes they are only growth."""
    first = FdProfile(fds=100)
    found = _classify(fds=300, samples=_ramp(5 / 60, 2400, every_s=1), profile=last, first_profile=first)
    assert found.verdict is Verdict.GROWING
    assert not any("of no use" in sentence for sentence in found.evidence)
    longer = _ramp(12 / 60, 1000, every_s=1)
    assert _classify(fds=300, samples=longer, profile=last, first_profile=first).verdict is Verdict.LEAK


def test_seen_once_beside_a_trend() -> None:
    samples = _ramp(4, 100, 1000)
    assert _classify(samples=samples, profile=_dead(1400, hup=300)).verdict is Verdict.LEAK
    assert _classify(samples=samples, profile=_dead(1400, hup=60)).verdict is Verdict.GROWING
    assert _classify(samples=samples, match=Match(**{**_fields(MATCH), "dead": 300})).verdict is Verdict.LEAK
    assert _classify(samples=samples, match=MATCH).verdict is Verdict.GROWING


def _fields(match: Match) -> dict[str, object]:
    return {name: getattr(match, name) for name in match.__slots__}


def test_a_day_of_growth_is_a_leak() -> None:
    assert _classify(samples=_ramp(23, 20)).verdict is Verdict.GROWING
    found = _classify(samples=_ramp(24, 20))
    assert found.verdict is Verdict.LEAK
    assert not any("one day" in sentence for sentence in found.evidence)


def test_a_day_that_rose_twice_is_not_yet_a_leak() -> None:
    counts = [min(400, 20 * at) + (400 if at > 60 else 0) + at // 10 for at in range(110)]
    found = _classify(samples=[Sample(at_s=900.0 * at, fds=fds) for at, fds in enumerate(counts)])
    assert found.verdict is Verdict.GROWING
    assert found.evidence[1] == "it did not rise steadily: a warm-up and one later step would look the same"


def test_jobs_that_leave_some_behind_are_a_leak() -> None:
    found = _classify(jobs=_jobs(90, 2))
    assert found.verdict is Verdict.LEAK
    assert found.evidence[0] == "every job leaves 2 descriptors open (over 80 jobs after the warm-up)"


def test_what_may_be_a_cache_is_named_and_no_leak() -> None:
    found = _classify(jobs=_jobs(60, 2))
    assert found.verdict is Verdict.OK
    assert "86 descriptors more are open after 50 jobs: a cache or a pool that fills would look the same" in (
        found.evidence
    )


def test_one_snapshot_is_enough_where_most_are_dead() -> None:
    found = _classify(fds=63_912, profile=INCIDENT, uptime_s=5.9 * 86400)
    assert found.verdict is Verdict.LEAK
    assert found.evidence[2] == (
        "seen once; 451 an hour on average since its start 5 d 21 h ago: "
        "at that rate its limit is reached in 3 h 36 min"
    )
    assert found.forecasts == ()


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(_dead(100, hup=25, err=25), id="half and not more"),
        pytest.param(_dead(5, hup=1, err=2), id="stdin, stdout and stderr of a process whose parent died"),
        pytest.param(_dead(1000, hup=200, err=200), id="less than half"),
        pytest.param(_dead(200, self_pairs=80), id="only pipes between threads"),
        pytest.param(_dead(200, close_wait=190), id="idle connections of a pool, or clients that wait for the answer"),
        pytest.param(_dead(1100, close_wait=1000, hup=60), id="too few of each"),
        pytest.param(_dead(200, live=180), id="alive"),
        pytest.param(_dead(200, unknown=180), id="unknown"),
    ],
)
def test_one_snapshot_is_not_enough(profile: FdProfile) -> None:
    assert _classify(profile=profile, uptime_s=1000).verdict is Verdict.OK


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(_dead(100, hup=31, err=32), id="fewer than 64"),
        pytest.param(_dead(110, hup=99), id="a batch of processes that waits for the last of them"),
        pytest.param(_dead(280, self_pairs=4, hup=128, err=127), id="used up iterators of a trainer with four loaders"),
        pytest.param(_dead(20, self_pairs=2, hup=6, err=6), id="one loader"),
    ],
)
def test_mostly_dead_pipes_are_suspicious(profile: FdProfile) -> None:
    """Too few to prove a leak, too many for an OK, unless they are a cache of a fixed size."""
    found = _classify(fds=profile.fds, profile=profile, uptime_s=1000, match=MATCH)
    assert found.verdict is Verdict.GROWING
    assert "are pipes whose other end is closed in every process" in found.evidence[0]
    assert found.advice[0] == "drop the iterator"
    samples = _ramp(5 / 60, 0, every_s=5)
    flat = _classify(fds=profile.fds, profile=profile, samples=samples, uptime_s=1000, match=MATCH)
    assert flat.verdict is Verdict.OK
    assert "are pipes whose other end is closed in every process" in flat.evidence[1]


def test_dead_and_not_growing_now() -> None:
    found = _classify(samples=_ramp(1 / 60, 0, every_s=0.5), profile=_dead(400, hup=300))
    assert found.verdict is Verdict.LEAK
    assert "not growing while it was watched: watch it under load to see how fast it grows" in found.evidence


# ---- EXHAUSTED ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("soft", "left"), [(65536, 64), (1024, 10), (256, 8), (20, 5), (10**6, 64), (1024, 0), (1024, -3)]
)
def test_exhausted(soft: int, left: int) -> None:
    assert is_exhausted(soft - left, soft)
    assert _classify(fds=soft - left, soft=soft).verdict is Verdict.EXHAUSTED


@pytest.mark.parametrize(("soft", "left"), [(65536, 65), (1024, 11), (256, 9), (20, 6), (math.inf, math.inf)])
def test_not_exhausted(soft: float, left: float) -> None:
    assert not is_exhausted(100 if soft == math.inf else int(soft - left), soft)


def test_exhausted_says_the_way_out_first() -> None:
    found = _classify(fds=1024, soft=1024, hard=4096, samples=_ramp(5, 180), match=MATCH, pid=9)
    assert found.evidence[0] == "it holds 1,024 descriptors and its soft limit is 1,024: it can open nothing more"
    assert found.evidence[1].startswith("its baseline rose by")
    assert found.advice[:2] == ("raise its limit while it runs: prlimit --pid 9 --nofile=4096:", "drop the iterator")
    stuck = _classify(fds=1024, soft=1024, hard=1024)
    assert "as root: prlimit --pid PID --nofile=SOFT:HARD" in stuck.advice[0]
    assert "LimitNOFILE=" in stuck.advice[-1]


# ---- forecast ----------------------------------------------------------------------------------------------


def test_the_lines_ahead() -> None:
    last = FdProfile(fds=2000, kinds={Kind.PIPE: 1800}, self_pairs=600)
    first = FdProfile(fds=1000, kinds={Kind.PIPE: 800}, self_pairs=100)
    found = _classify(
        fds=2000,
        soft=4000,
        samples=_ramp(5, 200, 1000),
        profile=last,
        first_profile=first,
        cap=3000,
        pipe_limit=1700,
    )
    lines = {one.line: (one.at, one.eta_s) for one in found.forecasts}
    assert lines["soft limit"] == (4000, (pytest.approx(36_000), pytest.approx(36_000)))
    assert lines["guard cap"] == (3000, (pytest.approx(18_000), pytest.approx(18_000)))
    # 500 of 1,000 new descriptors made a new pipe: 100 an hour, and there are 1,200 of them.
    assert lines["pipe shrink"] == (1700, (pytest.approx(18_000), pytest.approx(18_000)))
    assert "in 5 h or more its user has 1,700 pipes: from then on new ones buffer 8 KiB instead of 64" in found.evidence


def test_a_line_that_is_crossed() -> None:
    last = FdProfile(fds=5000, kinds={Kind.PIPE: 4000})
    found = _classify(fds=5000, samples=_ramp(5, 200, 4000), profile=last, pipe_limit=1024)
    assert found.forecasts[-1].eta_s == (0, 0)
    assert any("its user has 1,024 pipes or more" in sentence for sentence in found.evidence)


def test_no_line_without_a_limit() -> None:
    found = _classify(soft=math.inf, hard=math.inf, samples=_ramp(5, 200), pipe_limit=1024, profile=FdProfile(fds=200))
    assert found.verdict is Verdict.GROWING
    assert found.forecasts == ()
    assert not any("prlimit" in sentence for sentence in found.advice)
    endless = _classify(soft=1024, hard=math.inf, samples=_ramp(5, 100))
    assert "--nofile=1048576:" in endless.advice[-1]


def test_a_pace_that_may_be_nothing_never_arrives() -> None:
    assert eta_s(100, -1, 50) == (7200, math.inf)
    assert eta_s(100, -2, -1) == (math.inf, math.inf)
    assert eta_s(0, -1, 5) == eta_s(-7, 1, 5) == (0, 0)


@settings(deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_an_eta_is_a_range_and_never_negative(room: float, low: float, width: float) -> None:
    earliest, latest = eta_s(room, low, low + width)
    assert 0 <= earliest <= latest


def test_pipes_are_counted_not_ends() -> None:
    assert count_pipes(FdProfile(fds=10, kinds={Kind.PIPE: 7}, self_pairs=3)) == 4


# ---- all together ------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    fds=st.none() | st.integers(0, 10**6),
    soft=st.none() | st.just(math.inf) | st.integers(0, 10**6),
    per_hour=st.integers(-500, 500),
    dead=st.integers(0, 2000),
    uptime_s=st.none() | st.floats(0, 1e8),
)
def test_any_case_has_a_verdict_in_whole_sentences(
    seed: int, fds: int | None, soft: float | None, per_hour: int, dead: int, uptime_s: float | None
) -> None:
    chance = random.Random(seed)
    samples = [
        Sample(at_s=one.at_s, fds=max(0, one.fds + chance.randint(0, 50)))
        for one in _ramp(chance.choice((0, 0.01, 3)), per_hour, 1000)
    ]
    profile = _dead(max(fds or 0, dead), hup=dead) if chance.random() < 0.7 else None
    found = classify(
        fds=fds,
        soft=soft,
        hard=soft,
        samples=samples,
        jobs=_jobs(chance.randint(0, 200), chance.randint(0, 1)),
        profile=profile,
        first_profile=_dead(10) if profile and chance.random() < 0.5 else None,
        match=MATCH if chance.random() < 0.5 else None,
        cap=chance.choice((None, 500)),
        pipe_limit=chance.choice((None, 1024)),
        uptime_s=uptime_s,
    )
    assert found.evidence
    assert all(
        len(sentence.split()) > 3 for sentence in (*found.evidence, *found.advice) if sentence not in MATCH.advice
    )
    assert not any(word in sentence for sentence in found.evidence for word in ("inf", "nan", "None"))
    assert all(0 <= one.eta_s[0] <= one.eta_s[1] for one in found.forecasts)
    assert found.advice or found.verdict is Verdict.OK
