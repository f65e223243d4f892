"""The benchmark runs to its end and tells all its rows. How fast anything is, is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]

# Work, and whom it is compared with.
ROWS = {
    ("columns-small", "tf.data interleave + parse_example"),
    ("columns-small", "tf.data files in turn + parse_example"),
    ("columns-small", "raw readinto"),
    ("columns-small", "PyPI tfrecord (rows, no CRC)"),
    ("columns-big", "tf.data interleave + parse_example"),
    ("columns-big", "tf.data files in turn + parse_example"),
    ("columns-big", "raw readinto"),
    ("records", "tf.data raw batches"),
    ("records", "pure Python framing + google-crc32c"),
    ("records", "PyPI tfrecord (no CRC)"),
    ("verify-small", "raw readinto"),
    ("verify-big", "raw readinto"),
    ("index-small", "raw readinto"),
    ("index-big", "raw readinto"),
    ("write-tmpfs", "TFRecordWriter + SerializeToString"),
    ("write-disk", "TFRecordWriter + SerializeToString"),
    ("memory-columns-small", "its own start"),
    ("memory-columns-big", "its own start"),
    ("memory-records-small", "its own start"),
}


def run_benchmark(*arguments: str, tmp: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOP / "benchmarks" / "tfrecord.py"), *arguments]
    tmp.mkdir(exist_ok=True)
    # TensorFlow compiles what it writes there, and leaves that.
    env = {**os.environ, "TMPDIR": str(tmp), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs the Python package tensorflow-cpu")
@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the Python package matplotlib")
def test_a_quick_run_tells_every_row(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_benchmark("--quick", "--rounds", "1", "--out", str(out), tmp=tmp_path / "tmp")
    assert done.returncode == 0, done.stderr

    report = json.loads((out / "tfrecord.json").read_text())
    assert {(row["key"], row["peer"]) for row in report["rows"]} == ROWS
    assert {row["row"] for row in report["rows"]} == {"1", "2", "3", "4", "5", "6"}
    skipped = {row["peer"] for row in report["rows"] if "skipped" in row}
    assert all(peer.startswith("PyPI tfrecord") for peer in skipped), done.stderr
    for row in report["rows"]:
        assert {"ratio", "growth_bytes", "skipped"} & row.keys(), row
        assert "met" in row or "wanted" not in row or "skipped" in row, row
    assert report["machine"]["cores"] >= 1
    assert "holdfast" in report["versions"]

    page = (out / "tfrecord.md").read_text()
    for key, peer in ROWS:
        work = next(row["work"] for row in report["rows"] if row["key"] == key)
        assert work in done.stdout
        assert work in page
        assert peer in done.stdout
        assert peer in page
    assert (out / "tfrecord.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert list((tmp_path / "tmp").iterdir()) == []  # the data files are gone


def test_an_unknown_row_is_refused(tmp_path: Path) -> None:
    done = run_benchmark("--only", "1,9", tmp=tmp_path)
    assert done.returncode == 2
    assert "wanted rows from 1 to 6, got 9" in done.stderr
