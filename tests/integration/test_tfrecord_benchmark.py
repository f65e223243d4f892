"""The TFRecord benchmark runs to its end and reports all its rows. No speed is tested."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmark_process import check_unknown_row, needs, run_quickly

# Work, and the peer it is compared with.
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


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@needs("tensorflow", "matplotlib")
def test_a_quick_run_reports_every_row(tmp_path: Path) -> None:
    report, done = run_quickly("tfrecord", tmp_path)
    assert {(row["key"], row["peer"]) for row in report["rows"]} == ROWS
    assert {row["row"] for row in report["rows"]} == {"1", "2", "3", "4", "5", "6"}
    skipped = {row["peer"] for row in report["rows"] if "skipped" in row}
    assert all(peer.startswith("PyPI tfrecord") for peer in skipped), done.stderr
    for row in report["rows"]:
        assert {"ratio", "growth_bytes", "skipped"} & row.keys(), row
        assert "met" in row or "target" not in row or "skipped" in row, row
    assert list((tmp_path / "tmp").iterdir()) == []  # the data files are gone


def test_an_unknown_row_is_an_error(tmp_path: Path) -> None:
    check_unknown_row("tfrecord", tmp_path, "1,2,3,4,5,6")
