"""The benchmark of tracing runs and reports its rows. No speed is tested."""

from __future__ import annotations

import json
from pathlib import Path

from benchmark_process import check_unknown_row, is_png, needs, run_benchmark

from traced_process import needs_library


@needs_library
@needs("matplotlib")
def test_a_quick_run_reports_its_rows(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = ["--only", "deep,pipe,memory,log"]
    done = run_benchmark("trace", "--quick", "--rounds", "1", "--out", str(out), *rows, tmp=tmp_path / "tmp")
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "trace.json").read_text())
    assert [(row["key"], row["peer"]) for row in report["rows"]] == [
        ("deep", "holdfast"),
        ("deep", "audit hook"),
        ("deep", "wrapped calls"),
        ("pipe", "holdfast"),
        ("pipe", "wrapped calls"),
        ("memory", "holdfast"),
        ("log", "holdfast"),
    ]
    assert all(row["ratio"] > 0 for row in report["rows"] if row["key"] != "memory")
    assert "pipe and two closes" in (out / "trace.md").read_text()
    assert is_png(out / "trace.png")


def test_an_unknown_row_is_an_error(tmp_path: Path) -> None:
    check_unknown_row("trace", tmp_path, "loader,files,deep,pipe,hooks,memory,log,attach")
