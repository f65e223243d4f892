"""TF1-style sessions log from two tasks that share their variables; one is killed, and started again."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from log_cases import EXAMPLES, await_end, await_text, free_ports, logged, merged, started

RUNS = 40


def test_every_run_of_every_task_once_after_a_kill(tmp_path: Path) -> None:
    command = [EXAMPLES / "log_mts.py", tmp_path, "--ports", *free_ports(2), "--runs", RUNS, "--task"]
    with started(*command, 0) as chief:
        await_text(chief, "task 0 trains")
        with started(*command, 1, "--stand-still-at", 13) as worker:
            await_text(worker, "standing still at run 13")
        with started(*command, 1) as worker:
            assert "task 1: 40 runs" in await_end(worker)
        await_end(chief)
    rows = logged(tmp_path)
    assert merged(tmp_path) == rows
    assert sorted(rows) == [0, 1]
    # Five rows at a time: of the killed one's fourteen runs the last four are what a kill can lose.
    assert rows[0]["run"] == [*range(RUNS)]
    assert rows[1]["run"] == [*range(10), *range(RUNS)]
    for columns in rows.values():
        steps = columns["step"]
        assert all(one < other for one, other in itertools.pairwise(steps)), steps
        for loss, errors in zip(columns["loss"], columns["error"], strict=True):
            assert loss == pytest.approx(sum(error * error for error in errors) / len(errors), rel=1e-4)
    assert max(rows[1]["step"]) == RUNS + 14 + RUNS
