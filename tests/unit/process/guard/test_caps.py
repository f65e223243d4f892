"""Caps: every spelling that users try, and what they are told about the wrong ones."""

from __future__ import annotations

import math
from typing import Any

import pytest

import holdfast as hold
from holdfast.process.guard.caps import CHILDREN, FDS, RSS, THREADS, CappedResource, ResolvedCap, parse_amount


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (None, None),
        (1, 1),
        (1000, 1000),
        (1000.0, 1000),
        (0.5, 0.5),
        (1.0, 1.0),
        (1e-9, 1e-9),
        ("50%", 0.5),
        ("50 %", 0.5),
        (" 50% ", 0.5),
        ("0.5%", 0.005),
        ("100%", 1.0),
        ("0.5", 0.5),
        ("1.0", 1.0),
        ("1000", 1000),
        (" 1000 ", 1000),
        ("24GiB", 24 << 30),
        ("24 gib", 24 << 30),
        ("1.5k", 1500),
        ("512 MB", 512_000_000),
    ],
)
def test_amounts(value: Any, amount: float | None) -> None:
    found = parse_amount(value, "soft")
    assert found == amount
    assert type(found) is type(amount)


@pytest.mark.parametrize("value", [0, -1, 0.0, -0.5, math.nan, math.inf, -math.inf, True, False, [], b"50%", (1, 2)])
def test_what_is_no_amount_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected soft= above zero, such as 1000, 0.5 or '24GiB', got "):
        hold.Cap(soft=value)


@pytest.mark.parametrize("value", [1.5, 1000.5, "1.5", "2000.25"])
def test_neither_a_number_nor_a_part(value: Any) -> None:
    with pytest.raises(ValueError, match="expected hard= as a number, or a part of the limit between 0 and 1, got "):
        hold.Cap(hard=value)


@pytest.mark.parametrize("value", ["0%", "101%", "-5%", "nan%", "inf%", "x%", "%"])
def test_percent_out_of_range(value: str) -> None:
    with pytest.raises(ValueError, match=r"expected hard= between 0 and 100 %, got "):
        hold.Cap(hard=value)


@pytest.mark.parametrize("value", ["", "many", "24 GiBs", "-5", "1,000", "0x10", "5 min", "½"])
def test_text_that_is_no_size(value: str) -> None:
    with pytest.raises(
        ValueError,
        match="expected hard= as a number, a part such as 0.5 or 50%, or for memory a size such as 24GiB, got ",
    ):
        hold.Cap(hard=value)


def test_a_cap_needs_one_bound_and_the_soft_one_first() -> None:
    with pytest.raises(ValueError, match="expected a cap with soft=, hard= or both, got neither"):
        hold.Cap()
    with pytest.raises(ValueError, match="expected a soft cap of at most the hard one, got '60%' and 0.5"):
        hold.Cap(soft="60%", hard=0.5)
    with pytest.raises(ValueError, match="got '2GB' and '1GiB'"):
        hold.Cap(soft="2GB", hard="1GiB")
    assert hold.Cap(soft=5, hard=5) == hold.Cap(5, 5)
    hold.Cap(soft=1000, hard=0.5)  # comparable only when the limit is known


def test_caps_are_values() -> None:
    assert hold.Cap(soft=0.5) == hold.Cap(soft=0.5)
    assert len({hold.Cap(hard=5), hold.Cap(hard=5), hold.Cap(hard=5, tree=True)}) == 2
    with pytest.raises(AttributeError):
        hold.Cap(hard=5).hard = 6  # type: ignore[misc]


# ---- for one resource --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "value", "cap"),
    [
        (FDS, None, None),
        (FDS, 1000, hold.Cap(hard=1000)),
        (FDS, 0.5, hold.Cap(hard=0.5)),
        (FDS, "50%", hold.Cap(hard="50%")),
        (FDS, "1000", hold.Cap(hard="1000")),
        (RSS, "24GiB", hold.Cap(hard="24GiB")),
        (RSS, 0.9, hold.Cap(hard=0.9)),
        (THREADS, 2000, hold.Cap(hard=2000)),
        (CHILDREN, hold.Cap(soft=10, tree=True), hold.Cap(soft=10, tree=True)),
    ],
)
def test_a_plain_amount_is_a_hard_cap(what: CappedResource, value: Any, cap: hold.Cap | None) -> None:
    assert what.check(value) == cap


@pytest.mark.parametrize(
    ("what", "value", "said"),
    [
        (THREADS, 0.5, "expected threads= as a number of threads, got the part 0.5"),
        (CHILDREN, hold.Cap(soft="50%"), "expected children= as a number of child processes, got the part '50%'"),
        (FDS, "24GiB", "expected fds= as a number of descriptors or a part of their limit, got the size '24GiB'"),
        (THREADS, hold.Cap(hard="2k"), "expected threads= as a number of threads, got the size '2k'"),
        (FDS, -1, "fds=: expected hard= above zero"),
        (RSS, "lots", "rss=: expected hard= as a number"),
        (RSS, [], "rss=: expected hard= above zero"),
        (RSS, 24, "expected a size with its unit, such as 24GiB, got 24, which is 24 bytes"),
        (RSS, hold.Cap(soft="512"), "expected a size with its unit, such as 512GiB, got 512"),
    ],
)
def test_what_does_not_fit_the_resource(what: CappedResource, value: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        what.check(value)
    assert str(caught.value).startswith(said)


def test_parts_refer_to_the_limit_that_applies() -> None:
    cap = hold.Cap(soft=0.5, hard="85%")
    assert FDS.resolve(cap, 1024) == ResolvedCap(512, 870, 1024)
    assert FDS.resolve(cap, 1) == ResolvedCap(1, 1, 1)  # never 0, which would be exceeded by nothing at all
    assert FDS.resolve(cap, None) == ResolvedCap(None, None, None)
    assert FDS.resolve(hold.Cap(hard=100), None) == ResolvedCap(None, 100, None)


def test_a_cap_is_exceeded_when_it_is_reached() -> None:
    cap = ResolvedCap(10, 20)
    assert [cap.exceeded(used) for used in (0, 9, 10, 19, 20, 10**9)] == [None, None, "soft", "soft", "hard", "hard"]
    assert ResolvedCap(None, 20).exceeded(19) is None
    assert ResolvedCap(10, None).exceeded(10**9) == "soft"
    assert ResolvedCap(None, None).exceeded(10**9) is None
    assert ResolvedCap(30, 20).exceeded(25) == "hard"  # an absolute soft cap above a part of a small limit


def test_sentences() -> None:
    assert (
        FDS.sentence(12_000, ResolvedCap(10_000, 17_408, 20_480), "soft")
        == "it uses 12,000 descriptors, its soft cap is 10,000 (limit 20,480)"
    )
    assert (
        RSS.sentence(25 << 30, ResolvedCap(None, 24 << 30), "hard")
        == "it uses 26.8 GB of memory, its hard cap is 25.8 GB"
    )
    assert THREADS.sentence(2, ResolvedCap(None, 2), "hard") == "it uses 2 threads, its hard cap is 2"
    assert CHILDREN.sentence(3, ResolvedCap(2, None), "soft") == "it uses 3 child processes, its soft cap is 2"


# ---- arguments of Guard ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"jitter": 1}, "expected jitter= from 0 to below 1, got 1"),
        ({"jitter": -0.1}, "expected jitter= from 0 to below 1, got -0.1"),
        ({"jitter": math.nan}, "expected jitter= from 0 to below 1, got nan"),
        ({"jitter": "0.1"}, "expected jitter= from 0 to below 1, got '0.1'"),
        ({"max_jobs": 0}, "expected max_jobs= of at least 1, got 0"),
        ({"max_jobs": True}, "expected max_jobs= of at least 1, got True"),
        ({"max_jobs": 1.5}, "expected max_jobs= of at least 1, got 1.5"),
        ({"max_age": "soon"}, "max_age=: expected a time such as 30s, 5m or 1h, got 'soon'"),
        ({"max_age": 0}, "max_age=: expected a time above zero"),
        ({"eta": -1}, "eta=: expected a time above zero"),
        ({"progress_timeout": True}, "progress_timeout=: expected a time such as"),
        ({"drain_timeout": math.inf}, "drain_timeout=: expected a time above zero"),
        ({"every": "0s"}, "every=: expected a time above zero"),
        ({"reserve_fds": -1}, "expected reserve_fds= of at least 0, got -1"),
        ({"reserve_fds": True}, "expected reserve_fds= of at least 0, got True"),
        ({"reserve_fds": "64"}, "expected reserve_fds= of at least 0, got '64'"),
        ({"exit_code": 256}, "expected exit_code= from 0 to 255, got 256"),
        ({"exit_code": "75"}, "expected exit_code= from 0 to 255, got '75'"),
        ({"fds": "many"}, "fds=: expected hard= as a number"),
        ({"threads": hold.Cap(soft=0.5)}, "expected threads= as a number"),
        ({"name": None}, "expected name= as text, got None"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        hold.Guard(**arguments)
    assert str(caught.value).startswith(said)


def test_everything_can_be_switched_off() -> None:
    hold.Guard(fds=None, eta=None, progress_timeout=None, drain_timeout=None, reserve_fds=0, jitter=0)
