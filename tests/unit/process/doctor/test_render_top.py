"""One frame of `top` from hand-made rows."""

from __future__ import annotations

import json
import math

import pytest
from diagnosis_cases import child, leak
from rich.console import Console

from holdfast.process.doctor.model import Verdict
from holdfast.process.doctor.render_top import (
    COLUMNS,
    WIDE,
    SortOrder,
    TopFrame,
    arrange,
    columns_for,
    detail,
    top_as_dict,
)
from holdfast.process.doctor.top_model import TopRow, TopSnapshot
from holdfast.procfs.limits import Limit


def row(case: object, fds: int, rss_bytes: int = 10**9) -> TopRow:
    return TopRow(
        snapshot=case.snapshot,  # type: ignore[attr-defined]
        diagnosis=case.diagnosis,  # type: ignore[attr-defined]
        fds=fds,
        rss_bytes=rss_bytes,
        threads=3,
        history=(1, 2, fds),
    )


ROWS = (
    row(child(5), 70),
    row(leak(), 63_912, 3),
    row(child(41300, verdict=Verdict.GROWING), 80, 5 * 10**9),
)
HOST = (
    Limit(name="file_max", used=1504, soft=9223372036854775807),
    Limit(name="pipe_user_pages", used=1600, soft=16384),
    Limit(name="dev_shm_bytes", used=10**9, soft=8 * 10**9),
)
PICTURE = TopSnapshot(rows=ROWS, host=HOST)


def frame(width: int, order: SortOrder = SortOrder.TREE) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as shown:
        console.print(TopFrame(PICTURE, order))
    return [line.rstrip() for line in shown.get().splitlines()]


@pytest.mark.parametrize("width", [20, 30, 57])
def test_the_narrowest_frame_has_the_verdicts(width: int) -> None:
    lines = frame(width, SortOrder.FDS)
    assert max(map(len, lines)) <= width
    assert any("41231" in line and "63,912" in line and "✗ LEAK" in line for line in lines)


def test_a_wide_frame() -> None:
    lines = frame(140)
    assert lines[0] == (
        "open files of the machine 1,504 of unlimited · pipes seen 100 of 1,024 · /dev/shm 1.00 GB of 8.00 GB"
    )
    assert lines[2].replace("full in", "full").split() == [column.head.split()[0] for column in COLUMNS]
    [row] = [line for line in lines if line.startswith("41231")]
    for part in ("63,912", "65,536", "███████▊", "+421", "~2 h 10 min", "63,840", "✗ LEAK", "▁▁█", "3 B"):
        assert part in row
    assert "└─ 41300" in lines[5]
    assert lines[-1] == "3 processes, 64,062 descriptors: 1 LEAK, 1 GROWING, 1 OK"


@pytest.mark.parametrize("width", [70, 80, 100, 120, 140])
def test_a_frame_fits(width: int) -> None:
    lines = frame(width)
    assert max(map(len, lines)) <= width
    assert any("python" in line for line in lines)


@pytest.mark.parametrize(
    ("order", "pids"),
    [
        (SortOrder.TREE, [5, 41231, 41300]),
        (SortOrder.FDS, [41231, 41300, 5]),
        (SortOrder.GROWTH, [41231, 5, 41300]),
        (SortOrder.MEMORY, [41300, 5, 41231]),
        (SortOrder.VERDICT, [41231, 41300, 5]),
    ],
)
def test_the_orders(order: SortOrder, pids: list[int]) -> None:
    assert [row.pid for row, _ in arrange(ROWS, order)] == pids


def test_columns_by_width() -> None:
    assert len(columns_for(WIDE)) == len(COLUMNS)
    assert {COLUMNS[at].head for at in columns_for(WIDE - 1)} >= {"pid", "fds", "verdict", "command"}


def test_the_detail_of_the_chosen_one() -> None:
    console = Console(width=100, no_color=True)
    with console.capture() as shown:
        console.print(detail(ROWS[1]))
    for part in ("41231  python -m ami.worker  ✗ LEAK", "pipe 63,871", "because", "cause", "drop the iterator"):
        assert part in shown.get()


def test_the_document() -> None:
    found = top_as_dict(TopSnapshot(rows=ROWS, host=(Limit(name="file_max", used=1, soft=math.inf),)))
    assert found["host"] == {"file_max": {"used": 1, "limit": None}}
    assert [one["verdict"] for one in found["processes"]] == ["OK", "LEAK", "GROWING"]
    assert found["processes"][1]["eta_s"] == [7260, 8340]
    json.dumps(found, allow_nan=False)
