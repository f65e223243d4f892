"""Functions in worker processes: the same results, and never a silent end."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from read_child import SCHEMA, work

import holdfast as hold

CHILD = Path(__file__).with_name("read_child.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    with hold.TFRecordWriter(made / "a.tfrecord", SCHEMA) as writer:
        writer.extend({"id": np.arange(5000)})
    return made


@contextmanager
def child(folder: Path, timeout_s: float = 300, **environment: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(folder), str(timeout_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def line_of(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found
    assert process.stderr is not None
    raise AssertionError(f"it ended without {pattern!r}: {process.stderr.read()}")


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pids: list[int]) -> None:
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([fd], [], [], 20)[0] or is_gone(pid), f"{pid} lives on"
        finally:
            os.close(fd)


def session_of(process: subprocess.Popen[str]) -> list[int]:
    """All processes the child started: they share its session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields and int(fields[3]) == process.pid and int(entry.name) != process.pid:
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_the_same_batches_in_the_same_order(folder: Path, start: str) -> None:
    ds = hold.read(folder, SCHEMA).shuffle(seed=1)
    want = [batch["id"].tolist() for batch in ds.map(work).batch(64)]
    got = [batch["id"].tolist() for batch in ds.map(work, 2, "processes", start=start).batch(64)]  # type: ignore[arg-type]
    assert got == want


def test_descriptors_do_not_depend_on_the_batches_that_are_kept(folder: Path) -> None:
    counts, kept = [], []
    with hold.read(folder, SCHEMA).map(work, 2, "processes").batch(10).iterate() as it:
        for batch in it:
            kept.append(batch)
            counts.append(len(os.listdir("/proc/self/fd")))
    assert len(kept) == 500
    assert len(set(counts[5:])) == 1


def test_a_killed_worker_is_named_with_its_sample(folder: Path) -> None:
    with child(folder, HANG="1") as process:
        pid = int(line_of(process, r"at 500 in (\d+)")[1])
        os.kill(pid, signal.SIGKILL)
        said = line_of(process, r"WorkerDiedError: (.*)")[1]
        assert process.wait(30) == 3
    assert str(pid) in said
    assert "a.tfrecord, record 500" in said


def test_a_worker_that_hangs_or_is_stopped_is_named_in_time(folder: Path) -> None:
    for stop in (False, True):
        with child(folder, timeout_s=2, HANG="1") as process:
            pid = int(line_of(process, r"at 500 in (\d+)")[1])
            if stop:
                os.kill(pid, signal.SIGSTOP)
            said = line_of(process, r"WorkerTimeoutError: (.*)")[0]
            assert process.stdout is not None
            said += process.stdout.read()
            assert process.wait(30) == 3
        assert str(pid) in said
        assert "a.tfrecord, record 500" in said
        assert ("stopped" if stop else "time.sleep(1000)") in said


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(folder: Path, how: signal.Signals) -> None:
    with child(folder, HANG="1") as process:
        line_of(process, r"at 500 in")
        workers = session_of(process)
        assert workers
        process.send_signal(how)
        process.wait(30)
        wait_until_gone(workers)


def test_ctrl_c_is_clean(folder: Path) -> None:
    with child(folder, HANG="1") as process:
        line_of(process, r"at 500 in")
        workers = session_of(process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        error = process.stderr.read()
        process.wait(30)
        wait_until_gone(workers)
    assert process.returncode in (130, -signal.SIGINT)
    assert error.count("Traceback") <= 1  # Python's own, of the main process
    assert error.rstrip().endswith("KeyboardInterrupt")


def test_leaving_in_the_middle_leaves_nothing(folder: Path) -> None:
    for batch in hold.read(folder, SCHEMA).map(work, 2, "processes").batch(10).prefetch("1MB"):
        assert len(batch["id"]) == 10
        break
