"""The benchmark of writing runs to its end and reports all its rows. No speed is tested."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmark_process import check_unknown_row, needs, run_quickly

# Work, and the peers it is compared with.
CATS = ("cat, then fsync", "cat alone")
DIRECT = ("direct chunk copy, every CRC compared", "direct chunk copy")
COMMITS = ("fsync of a plain file", "write and fsync of it", "the same, of the whole `with` block")
HELD = ("the server", "each producer, beyond its process's own")
VIEWS = ("hold.read(view)", "hold.read(folder)", "h5py.File(view)")
WRITERS = ("h5py, one process", "mp.Queue, h5py writer")
PEERS = {
    "consolidate-plain": (*CATS, "h5py, numpy slabs"),
    "consolidate-gzip": (*CATS, "h5py, numpy slabs"),
    "consolidate-lzf": CATS,
    "consolidate-disk": CATS,
    "central-plain": WRITERS,
    "central-gzip": WRITERS,
    "ack-disk": ('ack="process"',),
    "part-plain": ("h5py, one process, then fsync",),
    "part-gzip": ("h5py, one process, then fsync",),
    "merge-plain": DIRECT,
    "merge-gzip": DIRECT,
    "merge-verified": DIRECT[:1],
    "merge-built": ("h5py, numpy slabs",),
    "commit-4 KiB": COMMITS,
    "commit-1 MiB": COMMITS,
    "descriptors-1": HELD,
    "descriptors-4": HELD,
    "view": VIEWS,
}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@needs("h5py", "matplotlib")
def test_a_quick_run_reports_every_row(tmp_path: Path) -> None:
    report, done = run_quickly("write", tmp_path)
    assert [(row["key"], row["peer"]) for row in report["rows"]] == [
        (key, peer) for key, peers in PEERS.items() for peer in peers
    ]
    assert {row["row"] for row in report["rows"]} == {"1", "2", "3", "4", "5", "6", "7"}
    for row in report["rows"]:
        assert "skipped" not in row, (row, done.stderr)
        assert "value" in row, row
        assert ("met" in row) == ("target" in row), row

    # Counts are the same on any machine.
    counted = {(row["key"], row["peer"]): row for row in report["rows"] if row["row"] == "5"}
    assert all(row["met"] for row in counted.values() if "met" in row), counted
    assert counted["view", "hold.read(folder)"]["more"]["few"]["outcome"] == "right data"
    # The limit had an effect, and there was something to read.
    assert counted["view", "h5py.File(view)"]["value"] > 0
    assert counted["view", "h5py.File(view)"]["more"]["many"]["outcome"] == "right data"
    assert list((tmp_path / "tmp").iterdir()) == []  # all files are gone


@needs("h5py")
def test_an_unknown_row_is_an_error(tmp_path: Path) -> None:
    check_unknown_row("write", tmp_path, "1,2,3,7,6,4,5")
