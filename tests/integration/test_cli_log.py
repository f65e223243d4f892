"""`holdfast log export --tensorboard`, read back by TensorFlow, and by TensorBoard where it is installed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_process import holdfast
from log_cases import ENV, TIMEOUT_S

import holdfast as hold

# Prints, for each folder of one run, what each reader found: by tag, [step, value, time] of every point.
READ_BACK = """
import json, os, sys
import tensorflow as tf
try:
    from tensorboard.backend.event_processing import event_accumulator
except ImportError:
    event_accumulator = None

def by_tensorflow(folder):
    found = {}
    [name] = os.listdir(folder)
    first, *events = tf.compat.v1.train.summary_iterator(os.path.join(folder, name))
    assert first.file_version == "brain.Event:2"
    for event in events:
        for value in event.summary.value:
            found.setdefault(value.tag, []).append([event.step, value.simple_value, event.wall_time])
    return found

def by_tensorboard(folder):
    run = event_accumulator.EventAccumulator(folder, size_guidance={event_accumulator.SCALARS: 0})
    run.Reload()
    return {tag: [[one.step, one.value, one.wall_time] for one in run.Scalars(tag)] for tag in run.Tags()["scalars"]}

readers = [by_tensorflow] + [by_tensorboard] * (event_accumulator is not None)
print(json.dumps([reader(folder) for folder in sys.argv[1:] for reader in readers]))
"""


def _read_back(*folders: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", READ_BACK, *map(str, folders)],
        env=os.environ | ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    losses = [0.5, math.inf, -1e300, 1e-3, 0.0]
    run, merged = tmp_path / "run.hold", tmp_path / "all.h5"
    with hold.log(tmp_path, rank=0) as log:
        log(7, loss=0.25)
    with hold.log(tmp_path, rank=3, every_rows=2) as log:
        for at, loss in enumerate(losses):
            late = {"val_loss": float("nan")} if at == 3 else {}
            log(100 * at, loss=loss, n=at - 2, grad=np.ones(3), note="x", **late)
    assert holdfast("merge", run, "-o", merged).returncode == 0
    for source, board in ((run, "a"), (run, "a"), (merged, "b")):  # another export replaces the first
        done = holdfast("log", "export", source, "--tensorboard", tmp_path / board, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        told = json.loads(done.stdout)
        assert (told["values"], told["left_out"]) == (12, ["grad", "note"])
        assert told["files"] == sorted(str(path) for path in (tmp_path / board).rglob("events*"))
        assert [Path(path).parent.name for path in told["files"]] == ["worker-00000", "worker-00003"]
    [times] = [batch["time_ns"].tolist() for batch in hold.read(run).batch(10)]
    with np.errstate(over="ignore"):
        rounded = np.array(losses).astype(np.float32).tolist()
    for found in _read_back(tmp_path / "a" / "worker-00003", tmp_path / "b" / "worker-00003"):
        assert sorted(found) == ["loss", "n", "val_loss"]
        assert found["loss"] == [[100 * at, rounded[at], times[1 + at] / 1e9] for at in range(5)]
        assert [point[:2] for point in found["n"]] == [[100 * at, at - 2] for at in range(5)]
        assert [(step, math.isnan(value)) for step, value, _ in found["val_loss"]] == [(300, True)]
    assert all(found == {"loss": [[7, 0.25, times[0] / 1e9]]} for found in _read_back(tmp_path / "a" / "worker-00000"))


@pytest.mark.parametrize("name", ["a.tfrecord", "missing.hold"])
def test_what_is_no_log(tmp_path: Path, name: str) -> None:
    with hold.TFRecordWriter(tmp_path / "a.tfrecord", {"x": hold.Int64()}) as writer:
        writer.append(x=1)
    done = holdfast("log", "export", tmp_path / name, "--tensorboard", tmp_path / "board")
    assert done.returncode == (2 if name == "a.tfrecord" else 3)
    assert ("expected a log" if name == "a.tfrecord" else "No such file") in done.stderr
    assert not (tmp_path / "board").exists()
