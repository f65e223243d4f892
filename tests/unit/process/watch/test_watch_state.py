"""The state document: pure functions and the samples that the page's tests use."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import state_samples
from holdfast.process.doctor.model import Trend
from holdfast.process.watch.state import (
    MAX_POINTS,
    BaselineState,
    Point,
    StateDocument,
    TargetState,
    kind_series,
    summary_of,
    thin,
    trend_lines,
    worst_of,
)


@pytest.mark.parametrize("make", state_samples.ALL)
def test_samples_are_json_and_complete(make: Callable[[], StateDocument]) -> None:
    document = make()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document.keys() == StateDocument.__annotations__.keys()
    for one in document["targets"]:
        assert one.keys() == TargetState.__annotations__.keys()
        assert len({len(column) for column in one["series"].values()}) == 1
        assert len(one["series"]["t"]) <= MAX_POINTS


def test_sentence_names_the_worst_target() -> None:
    document = state_samples.leaking()
    assert document["verdict"] == "LEAK"
    assert document["sentence"].startswith("worker leaks by 290 an hour, out of descriptors in ")
    assert document["sentence"].endswith("; 1 of 3 targets")


def test_sentence_names_a_failing_target_beside_the_verdict() -> None:
    sentence = state_samples.exhausted()["sentence"]
    assert sentence.startswith("worker is out of descriptors: 1,024 of 1,024; worker: it is failing")


def test_ended_targets_do_not_decide_the_verdict_of_living_ones() -> None:
    gone = state_samples.target("old", verdict="LEAK", alive=False)
    alive = state_samples.target("new")
    assert worst_of([gone, alive]) == "OK"
    assert summary_of([gone, alive]) == "new is OK; 1 ended"
    assert worst_of([gone]) == "LEAK"
    assert summary_of([gone]) == "old has ended"
    assert summary_of([]) == "no process to watch yet"


def test_thin_keeps_the_extremes() -> None:
    points = [Point(at, 100, 90, at, 3, 1) for at in range(5000)]
    points[777] = Point(777, 400, 90, None, None, None)
    points[778] = Point(778, 100, 3, None, None, None)
    thinned = thin(points)
    assert len(thinned) <= MAX_POINTS
    assert max(one.fds for one in thinned) == 400
    assert min(one.low for one in thinned) == 3
    assert thinned[-1].t == points[-1].t
    assert [one.t for one in thinned] == sorted(one.t for one in thinned)


def test_thin_keeps_the_last_hour_of_a_month() -> None:
    times = [
        *range(0, 28 * 86400, 900),
        *range(28 * 86400, 30 * 86400 - 3600, 60),
        *range(30 * 86400 - 3600, 30 * 86400, 5),
    ]
    thinned = [one.t for one in thin([Point(t, 1, 1) for t in times])]
    assert len(thinned) <= MAX_POINTS
    for age_s in (3600, 6 * 3600, 2 * 86400, 30 * 86400):
        assert sum(t >= times[-1] - age_s for t in thinned) >= 240


def test_thin_leaves_few_points_alone_and_bears_equal_times() -> None:
    assert thin([]) == []
    same = [Point(5.0, 1, 1)] * 3000
    assert len(thin(same)) <= MAX_POINTS


def test_kind_series_fills_missing_kinds_and_keeps_the_last() -> None:
    made = kind_series([(at, {"pipe": at} if at % 2 else {"file": 1}) for at in range(4001)])
    assert len(made["t"]) <= MAX_POINTS
    assert made["t"][-1] == 4000
    assert {len(values) for values in made["kinds"].values()} == {len(made["t"])}


def trend(per_hour: float, span_s: float = 3600) -> Trend:
    return Trend(
        per_hour=per_hour,
        low=per_hour / 2,
        high=per_hour * 2,
        rise=per_hour,
        span_s=span_s,
        bins=12,
        grows=True,
        settles=False,
    )


def test_trend_lines_end_where_the_limit_is_reached() -> None:
    baseline = BaselineState(t=[150.0 + 300 * at for at in range(12)], fds=[100 + 10 * at for at in range(12)])
    found = trend_lines(baseline, trend(120.0), 3600.0, 300)
    assert found is not None
    assert found["fit"][1] == pytest.approx(300, abs=1)
    assert found["t"][1] == pytest.approx(150 + 6000)
    assert found["low"][1] < found["fit"][1] < found["high"][1]


def test_trend_lines_are_bounded_and_absent_without_growth() -> None:
    baseline = BaselineState(t=[150.0 + 300 * at for at in range(12)], fds=[100 + at // 6 for at in range(12)])
    found = trend_lines(baseline, trend(1.0), 3600.0, None)
    assert found is not None
    assert found["t"][1] <= 3600 + 3 * 3600
    assert trend_lines(baseline, trend(-5.0), 3600.0, 300) is None
    assert trend_lines(baseline, None, 3600.0, 300) is None
    assert trend_lines(BaselineState(t=[], fds=[]), trend(5.0), 3600.0, 300) is None
