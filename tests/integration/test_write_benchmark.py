"""The benchmark of writing runs to its end and tells all its rows. How fast anything is, is not tested."""

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
CATS = ("cat, then fsync", "cat alone")
COMMITS = ("fsync of a plain file", "write and fsync of it", "the same, of the whole `with` block")
HELD = ("the server", "each producer, beyond its process's own")
VIEWS = ("hold.read(view)", "hold.read(folder)", "h5py.File(view)")
WRITERS = ("h5py, one process", "mp.Queue, h5py writer")
PEERS = {
    "consolidate-plain": (*CATS, "h5py, numpy slabs"),
    "consolidate-gzip": (*CATS, "h5py, numpy slabs"),
    "consolidate-lzf": CATS,
    "merge-gzip": (*CATS, "h5py, numpy slabs"),
    "merge-built": ("h5py, numpy slabs",),
    "consolidate-disk": CATS,
    "central-plain": WRITERS,
    "central-gzip": WRITERS,
    "ack-disk": ('ack="process"',),
    "commit-4 KiB": COMMITS,
    "commit-1 MiB": COMMITS,
    "descriptors-1": HELD,
    "descriptors-4": HELD,
    "view": VIEWS,
}


def run_benchmark(*arguments: str, tmp: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOP / "benchmarks" / "write.py"), *arguments]
    tmp.mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(tmp)}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.skipif(find_spec("h5py") is None, reason="needs the Python package h5py")
@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the Python package matplotlib")
def test_a_quick_run_tells_every_row(tmp_path: Path) -> None:
    out, tmp = tmp_path / "out", tmp_path / "tmp"
    done = run_benchmark("--quick", "--rounds", "1", "--out", str(out), tmp=tmp)
    assert done.returncode == 0, done.stderr

    report = json.loads((out / "write.json").read_text())
    assert [(row["key"], row["peer"]) for row in report["rows"]] == [
        (key, peer) for key, peers in PEERS.items() for peer in peers
    ]
    assert {row["row"] for row in report["rows"]} == {"1", "2", "3", "4", "5"}
    for row in report["rows"]:
        assert "skipped" not in row, (row, done.stderr)
        assert "value" in row, row
        assert ("met" in row) == ("wanted" in row), row

    # What is counted, and not timed, holds on any machine.
    counted = {(row["key"], row["peer"]): row for row in report["rows"] if row["row"] == "5"}
    assert all(row["met"] for row in counted.values() if "met" in row), counted
    assert counted["view", "hold.read(folder)"]["more"]["few"]["outcome"] == "right data"
    # So the limit did bite, and there was something to get right.
    assert counted["view", "h5py.File(view)"]["value"] > 0
    assert counted["view", "h5py.File(view)"]["more"]["many"]["outcome"] == "right data"

    page = (out / "write.md").read_text()
    for row in report["rows"]:
        for told in (row["work"], row["peer"]):
            assert told in done.stdout
            assert told in page
    assert (out / "write.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert list(tmp.iterdir()) == []  # all files are gone


def test_an_unknown_row_is_refused(tmp_path: Path) -> None:
    done = run_benchmark("--only", "1,9", tmp=tmp_path)
    assert done.returncode == 2
    assert "wanted rows from 1 to 5, got 9" in done.stderr
