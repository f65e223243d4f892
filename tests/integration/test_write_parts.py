"""Parts under fire: writers killed at every named place and at any moment, a full disk, forks, many at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
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
    for name, outcome in found.items():
        committed = name.split()[1] in ("claimed", "committed", "parts-synced", "cleaned")
        visible = committed and not name.endswith("claimed")
        assert outcome == {
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


@pytest.mark.needs("strace")
def test_every_open_sync_link_and_close_that_fails(tmp_path: Path) -> None:
    """The part is committed and on disk, or an exception says that it is not: never one for the other. The opens that
    may fail without a word are those that nothing depends on."""
    command = [sys.executable, TOOLS / "fail_calls.py", "--kind", "hdf5", "--error", "EIO", "--json"]
    command += ["--calls", "openat,fsync,link,close"]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=TIMEOUT_S, check=False)
    results = json.loads(done.stdout)["results"] if done.stdout else []
    wrong = [one for one in results if one["outcome"] not in ("committed", "refused", "in doubt")]
    assert (done.returncode, wrong) == (0, []), done.stderr
    assert Counter(one["outcome"] for one in results)["refused"] > 10
    passed_over = [call for one in results if one["outcome"] == "committed" for call in one["failed"]]
    assert [re.sub(r"AT_FDCWD<[^>]*>, |\) = .*", "", call) for call in passed_over if call.startswith("openat")] == [
        # A look for workspaces of the dead, which the next process that opens the folder takes again.
        'openat("run/tmp", O_RDONLY|O_NONBLOCK|O_CLOEXEC|O_DIRECTORY',
        # libhdf5 asks first whether the file is there, without O_CREAT, and takes every error for no. Then it makes the
        # file with O_CREAT|O_EXCL: an error of that open is one of the part, as is a file that is there after all.
        'openat("run/tmp/data.h5", O_RDWR',
        # The workspace is taken away after the commit; what stays of it goes with the next process.
        'openat("run/tmp/", O_RDONLY|O_NONBLOCK|O_CLOEXEC|O_DIRECTORY',
    ]
    refused = [call for one in results if one["outcome"] == "refused" for call in one["failed"]]
    assert any('data.h5", O_RDWR|O_CREAT|O_EXCL' in call for call in refused)
