"""The benchmark of the guard runs and reports its rows. No speed is tested."""

from __future__ import annotations

import json
from pathlib import Path

from benchmark_process import check_unknown_row, is_png, needs, run_benchmark


@needs("matplotlib", "psutil")
def test_a_quick_run_reports_its_rows(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = ["--only", "jobs,idle,calls,supervise,watch"]
    done = run_benchmark("guard", "--quick", "--rounds", "1", "--out", str(out), *rows, tmp=tmp_path / "tmp")
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "guard.json").read_text())
    found = [(row["key"], row["peer"]) for row in report["rows"]]
    assert found[:5] == [
        ("jobs", "hold.Guard"),
        ("jobs", "nothing"),
        ("jobs", "psutil after each job"),
        ("idle", "hold.Guard"),
        ("idle", "psutil every second"),
    ]
    assert found[-2:] == [("supervise", "holdfast"), ("watch", "holdfast")]
    assert "with guard.job(…)" in (out / "guard.md").read_text()
    assert is_png(out / "guard.png")


def test_an_unknown_row_is_an_error(tmp_path: Path) -> None:
    check_unknown_row("guard", tmp_path, "jobs,jobs_many,idle,idle_many,calls,calls_many,supervise,watch,watch_many")
