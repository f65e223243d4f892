"""How sure a verdict is, and how long a watch would settle it."""

from __future__ import annotations

import math
import random

import pytest
from factories_series import flat, make_samples
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.process.doctor.model import Diagnosis, FdProfile, Sample
from holdfast.process.doctor.verdict import classify, confidence_of

MINUTE_S = 60.0


def _watched(seconds: float, per_hour: float = 0, soft: float = 65536, every_s: float = 5) -> Diagnosis:
    samples = [
        Sample(at_s=at * every_s, fds=200 + int(per_hour * at * every_s / 3600))
        for at in range(int(seconds / every_s) + 1)
    ]
    return classify(fds=samples[-1].fds, soft=soft, hard=soft, samples=samples)


CASES = [
    pytest.param(_watched(10), False, "1 min is the minimum", id="too short"),
    pytest.param(_watched(300, 417), True, "a watch of 2 h rules out the first, of 1 d the second", id="grows"),
    pytest.param(_watched(3 * 3600, 417, every_s=60), True, "a watch of 1 d would settle it", id="grows for hours"),
    pytest.param(_watched(300), True, "grows by at most 1,440 a day: its limit is not reached within", id="calm"),
    pytest.param(_watched(300, soft=math.inf), True, "sure (95 %)", id="no limit"),
    pytest.param(_watched(300, soft=1024), False, "a watch of 1 h 1 min would show whether", id="small limit"),
    pytest.param(_watched(300, soft=201), True, "certain", id="no room"),
    pytest.param(
        classify(fds=300, soft=1024, hard=1024, profile=FdProfile(fds=300, hup=300)), True, "certain", id="proven"
    ),
]


@pytest.mark.parametrize(("found", "conclusive", "sentence"), CASES)
def test_how_sure(found: Diagnosis, conclusive: bool, sentence: str) -> None:
    got = confidence_of(found)
    assert got.conclusive is conclusive
    assert sentence in got.sentence


def test_a_warm_up_may_end_or_not() -> None:
    samples = [Sample(at_s=60.0 * n, fds=int(1000 - 900 * 0.985**n)) for n in range(361)]
    got = confidence_of(classify(fds=1000, soft=65536, hard=65536, samples=samples))
    assert (got.conclusive, got.sentence) == (False, "not sure whether it will end: a watch of 12 h would settle it")


def _told_after(chance: random.Random) -> float:
    """Minutes until a watch of 15 minutes at most can tell."""
    samples = make_samples(flat(chance), 0.25, every_s=5, seed=chance.randrange(1 << 30))
    for at, last in enumerate(samples):
        if (
            last.at_s >= MINUTE_S
            and confidence_of(classify(fds=last.fds, soft=65536, hard=65536, samples=samples[: at + 1])).conclusive
        ):
            return last.at_s / 60
    return math.inf


def test_most_flat_counts_are_reported_within_a_quarter_of_an_hour() -> None:
    conclusive = sorted(_told_after(random.Random(seed)) for seed in range(8))
    assert conclusive[5] <= 15


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 5000), min_size=2, max_size=60),
    st.none() | st.just(math.inf) | st.integers(0, 10**6),
    st.floats(0.1, 1e5),
)
def test_any_watch_has_a_sentence(counts: list[int], soft: float | None, every_s: float) -> None:
    samples = [Sample(at_s=at * every_s, fds=fds) for at, fds in enumerate(counts)]
    got = confidence_of(classify(fds=counts[-1], soft=soft, hard=soft, samples=samples))
    assert len(got.sentence.split()) > 3
    assert not any(word in got.sentence.split() for word in ("inf", "nan", "None"))
