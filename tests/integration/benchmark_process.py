"""Runs a benchmark as its users do, with little data, and checks what every report must contain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).resolve().parents[2]


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs the Python packages {', '.join(missing)}")


def run_benchmark(name: str, *arguments: str, tmp: Path) -> subprocess.CompletedProcess[str]:
    """`tmp` becomes its temporary folder."""
    tmp.mkdir(exist_ok=True)
    # TensorFlow compiles what it writes to the temporary folder, and leaves the bytecode there.
    env = {**os.environ, "TMPDIR": str(tmp), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, cwd=TOP)


def run_quickly(name: str, tmp_path: Path) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Runs all rows once. Every row must be on the screen and on the saved page."""
    out = tmp_path / "out"
    done = run_benchmark(name, "--quick", "--rounds", "1", "--out", str(out), tmp=tmp_path / "tmp")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    page = (out / f"{name}.md").read_text()
    for row in report["rows"]:
        for text in (row["work"], row["peer"]):
            assert text in done.stdout
            assert text in page
    assert is_png(out / f"{name}.png")
    assert report["machine"]["cores"] >= 1
    assert "holdfast" in report["versions"]
    return report, done


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def check_unknown_row(name: str, tmp: Path, rows: str) -> None:
    done = run_benchmark(name, "--only", f"{rows.split(',')[0]},nothing", tmp=tmp)
    assert done.returncode == 2
    assert f"expected some of the rows {rows.replace(',', ', ')}, got nothing" in done.stderr
