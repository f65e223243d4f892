"""LogHook and LogCallback in one process: checkpoints, sessions, runs that are no step, exceptions."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from log_cases import TIMEOUT_S, await_end, logged, started, steps

import holdfast as hold
from holdfast.data.runlog.logger import log

CHILD = Path(__file__).with_name("log_tensorflow_child.py")


def told(*arguments: object) -> Any:
    with started(CHILD, *arguments) as child:
        return json.loads(await_end(child).splitlines()[-1])


def test_a_hook_commits_before_each_checkpoint(tmp_path: Path) -> None:
    """Behind a kill, training goes on from step 12: no earlier row may be missing then, and no later one be doubled."""
    with started(CHILD, "hook", tmp_path) as child:
        said = child.communicate(timeout=TIMEOUT_S)[0]
        assert child.returncode == -signal.SIGKILL, said
    assert steps(tmp_path) == {0: [*range(1, 13)]}
    told("hook", tmp_path)
    [rows] = logged(tmp_path).values()
    assert rows["step"] == [*range(1, 21)]
    assert rows["twice"] == [2.0 * step for step in range(1, 21)]
    assert rows["pair"] == [[2.0 * step, 2.0 * step + 1] for step in range(1, 21)]


@pytest.mark.parametrize("saver", ["listed", "own"])
def test_a_hook_beside_the_sessions_own_checkpoints(tmp_path: Path, saver: str) -> None:
    """It commits after each of them; where it does not see them, the restart says which rows are missing."""
    with started(CHILD, "session", tmp_path, saver) as child:
        said = child.communicate(timeout=TIMEOUT_S)[0]
        assert child.returncode == -signal.SIGKILL, said
    with started(CHILD, "session", tmp_path, saver) as child:
        text = await_end(child)
    missing = "training goes on after step 10, but it has no row: the rows of steps 5 to 10 are missing"
    assert (missing in text) == (saver == "own"), text
    assert ("RuntimeWarning" in text) == (saver == "own"), text
    assert steps(tmp_path) == {0: [15, 20] if saver == "own" else [5, 10, 15, 20]}


def test_hooks_and_callbacks(tmp_path: Path) -> None:
    log(tmp_path, name="served", rank=0, schema={"twice": hold.Float32()}).close()
    with pytest.MonkeyPatch.context() as patched, hold.write(tmp_path / "served.hold").server():
        patched.delenv("TF_CONFIG", raising=False)
        with started(CHILD, "rest", tmp_path) as child:
            said = await_end(child)
        found = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert "logs as worker" not in said
    assert steps(tmp_path / "restarted") == {0: [*range(1, 10)]}
    assert "expected a graph with a global step" in found["refused"][0]
    assert "expected tensors by the names of their columns" in found["refused"][1]
    assert "every_steps must be a positive integer, got 0" in found["refused"][2]
    assert 'expected every to be "epoch" or "batch"' in found["refused"][3]

    # The second session begins anew: its steps are replays.
    assert steps(tmp_path / "sparse") == {7: [3, 6, 9]}
    assert logged(tmp_path, "served")[0]["twice"] == [2.0 * step for step in range(1, 7)]

    epochs, batches = logged(tmp_path, "epochs")[0], logged(tmp_path, "batches")[0]
    assert epochs["step"] == [0, 1, 2]
    for name, values in found["history"].items():
        assert epochs[name][:2] == pytest.approx(values)
    assert sorted(found["history"]) == ["loss", "mae", "val_loss", "val_mae"]
    assert batches["step"] == [*range(1, 11)]
    assert batches["kernel"][5] == [[pytest.approx(found["kernel"])]]
