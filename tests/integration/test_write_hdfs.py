"""Parts in HDFS, over WebHDFS: a server on loopback that speaks it, and real writers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BOUND_S = 120
ROWS = 3000


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    command = [sys.executable, HERE / "webhdfs_server.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"webhdfs://127.0.0.1:{process.stdout.readline().strip()}"
            process.stdin.close()
            process.wait(BOUND_S)
        finally:
            process.kill()


def start(scratch: Path, *work: tuple[str, list[Any], dict[str, Any]]) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(scratch), "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-W", "error", HERE / "write_remote_child.py", json.dumps(work)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ran(scratch: Path, *work: tuple[str, list[Any], dict[str, Any]]) -> list[Any]:
    with start(scratch, *work) as process:
        said, wrong = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, wrong
    found: list[Any] = json.loads(said)
    return found


def test_written_read_and_brought_here(server: str, tmp_path: Path) -> None:
    url = f"{server}/whole/run.hold"
    found = ran(
        tmp_path,
        ("put", [url, 0], {}),
        ("put", [url, 1, "tfrecord"], {}),
        ("put", [url, 0], {}),
        ("check", [url, str(tmp_path / "cache")], {}),
        ("fetch", [url, str(tmp_path / "run")], {}),
    )
    assert found[:3] == ["committed", "committed", "done before"]
    assert (found[3]["tasks"], found[3]["rows"], found[3]["ok"]) == (["task0", "task1"], 2 * ROWS, True)
    assert (found[3]["data"], found[3]["leftovers"]) == (2, 0)
    assert found[4][0] == 2 * ROWS


def test_of_several_attempts_at_once_one_wins(server: str, tmp_path: Path) -> None:
    url = f"{server}/race/run.hold"
    running = [start(tmp_path, ("put", [url, 0], {})) for _ in range(3)]
    outcomes = []
    for one in running:
        with one:
            said, wrong = one.communicate(timeout=BOUND_S)
        lost = "was committed meanwhile by attempt" in wrong
        outcomes.append(json.loads(said)[0] if not one.returncode else "lost" if lost else wrong)
    assert outcomes.count("committed") == 1, outcomes
    assert set(outcomes) <= {"committed", "lost", "done before"}
    [found] = ran(tmp_path, ("check", [url, str(tmp_path / "cache")], {}))
    assert (found["tasks"], found["rows"], found["data"], found["ok"]) == (["task0"], ROWS, 1, True)
