from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast._util.text import span_words
from holdfast.process.doctor.messages import number_words, range_words, share_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "less than 1 s"),
        (1, "1 s"),
        (40.4, "40 s"),
        (90, "1 min 30 s"),
        (720, "12 min"),
        (3600, "1 h"),
        (19_200, "5 h 20 min"),
        (43_200, "12 h"),
        (86_400, "1 d"),
        (5.9 * 86_400, "5 d 21 h"),
        (40 * 86_400, "40 d"),
    ],
)
def test_spans(seconds: float, words: str) -> None:
    assert span_words(seconds) == words


@settings(deadline=None)
@given(st.floats(0, 1e10))
def test_every_span_has_words(seconds: float) -> None:
    assert span_words(seconds)


def test_numbers() -> None:
    assert [number_words(one) for one in (0, 2, 4.24, 42.4, 2105, -0.5)] == ["0", "2", "4.2", "42", "2,105", "-0.5"]
    assert range_words(396.2, 446.9) == "396–447"
    assert range_words(-3, 12) == "-3 to 12"


def test_shares() -> None:
    shares = [share_words(part, 1000) for part in (0, 3, 42, 899, 975, 999, 1000, 1100)]
    assert shares == ["0 %", "under 1 %", "4 %", "90 %", "97.5 %", "99.9 %", "100 %", "110 %"]
    assert share_words(99_999, 100_000) == "99.9 %"
    assert share_words(0, 0) == "100 %"
