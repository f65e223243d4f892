"""The comparison with other loaders runs with a peer of this environment. Tests no speed, and installs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from benchmark_process import is_png, needs, run_benchmark

from benchmarks.common.contenders import ContenderError
from benchmarks.common.environments import has_requirements
from benchmarks.peers.__main__ import PeersBench
from benchmarks.peers.tasks import CONTENDERS
from benchmarks.read.data import DataSet
from benchmarks.read.tasks import Peer, Task


@needs("h5py", "PIL", "matplotlib")
def test_rows_of_4_kb_beside_h5py_by_hand(tmp_path: Path) -> None:
    options = ("--quick", "--rounds", "1", "--only", "4,5", "--peers", "h5py", "--out", str(tmp_path / "out"))
    done = run_benchmark("peers", *options, tmp=tmp_path / "tmp")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "peers.json").read_text())
    assert [(row["key"], row["peer"]) for row in report["rows"]] == [
        ("hdf5", "h5py, blocks by hand"),
        ("hdf5-gzip", "h5py, blocks by hand"),
    ]
    assert all(row["ratio"] > 0 for row in report["rows"]), done.stderr
    assert "h5py, blocks by hand" in (tmp_path / "out" / "peers.md").read_text()
    assert is_png(tmp_path / "out" / "peers.png")


def test_every_peer_but_h5py_has_an_environment() -> None:
    assert [name for name in CONTENDERS if not has_requirements(name)] == ["h5py"]


@pytest.mark.parametrize(
    ("pipeline", "got"),
    [
        ("small", {"records": 9, "id": 45, "emb": 7}),
        ("small", {"records": 10, "id": 45, "emb": 8}),
        ("resized", {"records": 10, "id": 45, "emb": 7, "colours": [50.0, 60.0, 90.0]}),
    ],
)
def test_other_values_are_noticed(tmp_path: Path, pipeline: str, got: dict[str, Any]) -> None:
    bench = PeersBench(cast(Any, None), cast(Any, None), 1, tmp_path, print)
    bench.data["small"] = DataSet([], records=10, bytes=0)
    task, peer = Task("1", "small", "", "small", pipeline, ()), Peer("other", pipeline, "another loader")
    expected = {"records": 10, "id": 45, "emb": 7, **({"colours": [90.0, 60.0, 50.0]} if pipeline == "resized" else {})}
    bench.check_sums(task, peer, expected)
    bench.check_sums(task, peer, dict(expected))
    with pytest.raises(ContenderError, match="another loader does not read the same"):
        bench.check_sums(task, peer, got)


def test_an_unknown_peer_is_an_error(tmp_path: Path) -> None:
    done = run_benchmark("peers", "--peers", "h5py,nothing", tmp=tmp_path)
    assert done.returncode == 2
    assert "expected some of the peers tensorflow, grain, " in done.stderr
