"""The benchmark of looks runs to its end and tells all its rows. How fast anything is, is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SCRIPT = TOP / "benchmarks" / "look.py"

# Work, and whom it is compared with.
ROWS = {
    ("look", "lsof -nP +E"),
    ("look", "lsof -nP"),
    ("look", "psutil open_files (files alone)"),
    ("count", "psutil num_fds"),
    ("vitals", "a bound"),
    ("vitals", "psutil, the same"),
    ("large", "a bound"),
    ("large", "lsof -nP +E"),
    ("large", "lsof -nP"),
    ("leak", "a bound"),
    ("leak", "lsof -nP +E"),
    ("leak", "lsof -nP"),
}


def run_benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.needs("lsof")
@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the Python package matplotlib")
def test_a_quick_run_tells_every_row(tmp_path: Path) -> None:
    done = run_benchmark("--quick", "--rounds", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "look.json").read_text())
    assert {(row["key"], row["peer"]) for row in report["rows"]} == ROWS
    skipped = {row["peer"] for row in report["rows"] if "skipped" in row}
    assert all(peer.startswith("psutil") for peer in skipped), done.stderr
    found = {row["key"]: row["ours"]["count"] for row in report["rows"]}
    assert found == {"look": 600, "count": 300, "vitals": 300, "large": 900, "leak": 900}
    page = (tmp_path / "look.md").read_text()
    for row in report["rows"]:
        for told in (row["work"], row["peer"]):
            assert told in done.stdout
            assert told in page
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_an_unknown_row_is_refused() -> None:
    done = run_benchmark("--only", "look,nothing")
    assert done.returncode == 2
    assert "got nothing" in done.stderr
