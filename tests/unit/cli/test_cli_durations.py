"""Times as people type them."""

from __future__ import annotations

import pytest

from holdfast._util.text import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("1h", 3600), ("90", 90), ("1.5h", 5400), (" 2 MIN ", 120), ("1d", 86400)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 weeks", "-3s", "1e3", "s"])
def test_what_is_no_time_says_what_was_wanted(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 30s, 5m or 1h, got "):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["0", "0s", "366d"])
def test_times_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time above zero and at most a year"):
        parse_seconds(text)
