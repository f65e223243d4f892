"""Parts under fire: writers killed at every named place and at any moment, a full disk, forks, many at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("write_child.py")
TIMEOUT_S = 120


def ran(*arguments: str | Path, before: tuple[str, ...] = ()) -> Any:
    command = [*before, sys.executable, "-W", "error", str(CHILD), *map(str, arguments)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


def test_killed_at_every_failpoint(tmp_path: Path) -> None:
    found = ran("everywhere", tmp_path)
    assert len(found) == 22
    for name, fate in found.items():
        committed = name.split()[1] in ("claimed", "committed", "parts-synced", "cleaned")
        visible = committed and not name.endswith("claimed")
        assert fate == {
            "code": -9,
            "seen": [1] if visible else [],
            "done": committed,
            "swept": True,
            "files": 1,
            "whole": True,
        }, name


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    found = ran("randomly", tmp_path / "run", 25, seed)
    assert (found["killed"], found["ok"], found["reader"]) == (25, True, 0)
    assert found["parts"] >= found["acked"] > 0
    assert found["rows"] == 60 * found["parts"]
    assert found["leftovers"] == []


@pytest.mark.needs("unshare")
def test_a_full_disk_is_an_error_and_nothing_else(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=2M none "$0" && exec "$@"'
    found = ran("full", tmp_path, 44, before=("unshare", "-rm", "sh", "-c", mount, str(tmp_path)))
    assert found["codes"] == [0]  # libhdf5 would crash at exit
    assert found["refused"] > 10
    assert found["committed"] > 0


def test_many_at_once_make_one_folder_and_each_task_once(tmp_path: Path) -> None:
    found = ran("together", tmp_path / "run", 6)
    assert found["codes"] == [0] * 6
    assert found["tasks"] == list(range(6))
    assert found["files"] == 6
    assert found["said"].startswith("6 parts, 360 rows")
    assert found["said"].endswith("all as committed")


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])
def test_a_forked_child_does_no_harm(tmp_path: Path, kind: str) -> None:
    assert ran("fork", tmp_path / "run", kind) == {"child": 0, "seen": [1], "ok": True, "tmp": []}


def test_workers_started_in_any_way(tmp_path: Path) -> None:
    assert ran("ways", tmp_path / "run") == {"codes": [0, 0, 0], "tasks": [0, 1, 2], "ok": True}
