"""Bars, sparklines, columns and times."""

from __future__ import annotations

import io
import math
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from holdfast._util.terminal import TableColumn, bar, make_table, sparkline
from holdfast.process.doctor.render import clock, draw_stems, short_when, when
from holdfast.procfs.limits import NAMES, Limit, amount, finite, name_of, percent, quantity

NOW = datetime(2026, 3, 4, 18, 31)


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (0, "░░░░"),
        (1e-9, "▏░░░"),
        (0.5, "██░░"),
        (0.54, "██▏░"),
        (0.9999, "███▉"),
        (1, "████"),
        (7, "████"),
        (-1, "░░░░"),
    ],
)
def test_a_bar(ratio: float, shown: str) -> None:
    assert bar(ratio, 4) == shown


@given(st.floats(0, 2), st.integers(1, 60))
def test_a_bar_is_as_wide_as_asked_and_full_only_when_nothing_is_left(ratio: float, width: int) -> None:
    assert len(bar(ratio, width)) == width
    assert (bar(ratio, width) == "█" * width) == (ratio >= 1)


def test_a_sparkline_goes_from_its_lowest_to_its_highest() -> None:
    assert sparkline([], 8) == ""
    assert sparkline([5, 5, 5], 8) == "▁▁▁"
    assert sparkline([0, 7, 14], 8) == "▁▅█"
    assert sparkline(range(80), 8) == "▁▂▃▄▅▆▇█"


@given(st.lists(st.integers(0, 10**6), min_size=1), st.integers(1, 20))
def test_a_sparkline_is_never_too_long(values: list[int], width: int) -> None:
    assert len(sparkline(values, width)) == min(len(values), width)


TIMES = {
    (7260.0, 8340.0): "in about 2 h 10 min (20:41 ± 9 min)",
    (3600.0, 32400.0): "in 1 h to 9 h (19:31 to Thu 03:31)",
    (7200.0, math.inf): "in 2 h at the earliest (20:31)",
    (math.inf, math.inf): "",
    (8e5, 9e5): "in about 9 d 20 h (14 Mar ± 14 h)",
    (1e11, 2e11): "",
}


@pytest.mark.parametrize(("eta_s", "said"), TIMES.items())
def test_when(eta_s: tuple[float, float], said: str) -> None:
    assert when(eta_s, NOW) == said


def test_when_in_short() -> None:
    assert [short_when(eta) for eta in ((7260.0, 8340.0), (7200.0, math.inf), (math.inf, math.inf))] == [
        "~2 h 10 min",
        ">2 h",
        "",
    ]


def test_the_clock_is_as_exact_as_it_needs_to_be() -> None:
    spans = (60, 86400, 10 * 86400, 2000 * 86400)
    assert [clock(NOW, span) for span in spans] == ["18:32", "Thu 18:31", "14 Mar", "Aug 2031"]


def test_amounts() -> None:
    assert [quantity(value) for value in (None, math.inf, 4711)] == ["?", "unlimited", "4,711"]
    shm = Limit(name="dev_shm_bytes", used=1)
    assert (amount(shm, 12_300_000_000), name_of(shm)) == ("12.3 GB", "/dev/shm")
    assert name_of(Limit(name="new_one")) == "new_one"
    assert [percent(ratio) for ratio in (0, 0.034, 0.975, 0.99999, 1, 2.02)] == [
        "0.0 %",
        "3.4 %",
        "97.5 %",
        "99.9 %",
        "100 %",
        "202 %",
    ]
    assert [finite(value) for value in (None, math.inf, math.nan, 3.0, 2.5)] == [None, None, None, 3, 2.5]


def test_every_limit_has_a_name() -> None:
    from holdfast.procfs.limits import process_limits, shared_limits
    from holdfast.procfs.procfs import REAL

    own = REAL.own_pid() or 0
    limits = [*process_limits(REAL, own, 0, 0), *shared_limits(REAL, own)]
    assert {limit.name for limit in limits} <= NAMES.keys()


def test_a_tree_is_drawn_beside_the_pids() -> None:
    rows = [(1, 0), (2, 1), (3, 2), (4, 1), (9, 7), (10, 9)]
    assert draw_stems(rows) == ["", "├─ ", "│  └─ ", "└─ ", "", "└─ "]
    deep = draw_stems([(pid, pid - 1) for pid in range(1, 20)])
    assert max(map(len, deep)) == len(deep[4]) == 12


def test_what_may_be_cut_gives_way() -> None:
    columns = (TableColumn("pid"), TableColumn("fds", right=True), TableColumn("command", cut=True))
    rows = [[Text("4711"), Text("12,345"), Text("python train.py --epochs 90")]]
    wide, narrow = _lines(columns, rows, 80), _lines(columns, rows, 24)
    assert wide == ["pid      fds  command", "4711  12,345  python train.py --epochs 90"]
    assert narrow[1] == "4711  12,345  python tr…"


def _lines(columns: tuple[TableColumn, ...], rows: list[list[Text]], width: int) -> list[str]:
    console = Console(width=100, file=io.StringIO())
    with console.capture() as page:
        console.print(make_table(columns, rows, width))
    return [line.rstrip() for line in page.get().splitlines()]
