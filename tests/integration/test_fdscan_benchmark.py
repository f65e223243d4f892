"""The benchmark of process scans runs to its end and reports all its rows. No speed is tested."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_process import check_unknown_row, needs, run_quickly

# Work, and the peer it is compared with.
ROWS = {
    ("scan", "lsof -nP +E"),
    ("scan", "lsof -nP"),
    ("scan", "psutil open_files (only files)"),
    ("count", "psutil num_fds"),
    ("vitals", "a limit"),
    ("vitals", "psutil, the same"),
    ("large", "a limit"),
    ("large", "lsof -nP +E"),
    ("large", "lsof -nP"),
    ("leak", "a limit"),
    ("leak", "lsof -nP +E"),
    ("leak", "lsof -nP"),
}


@pytest.mark.needs("lsof")
@needs("matplotlib")
def test_a_quick_run_reports_every_row(tmp_path: Path) -> None:
    report, done = run_quickly("fdscan", tmp_path)
    assert {(row["key"], row["peer"]) for row in report["rows"]} == ROWS
    skipped = {row["peer"] for row in report["rows"] if "skipped" in row}
    assert all(peer.startswith("psutil") for peer in skipped), done.stderr
    found = {row["key"]: row["ours"]["count"] for row in report["rows"]}
    assert found == {"scan": 600, "count": 300, "vitals": 300, "large": 900, "leak": 900}


def test_an_unknown_row_is_an_error(tmp_path: Path) -> None:
    check_unknown_row("fdscan", tmp_path, "scan,count,vitals,large,leak")
