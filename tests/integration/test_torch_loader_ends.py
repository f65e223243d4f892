"""Workers do not outlive their trainer, and a stopped worker does not keep it from ending."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")

TRAINER = Path(__file__).with_name("loader_trainer.py")
PATIENCE_S = 60


@contextmanager
def _trainer(context: str, then: str) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """The trainer and a pidfd of each of its workers."""
    command = [sys.executable, str(TRAINER), context, then]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        pidfds: list[int] = []
        try:
            assert process.stdout is not None
            pidfds.extend(os.pidfd_open(pid) for pid in json.loads(process.stdout.readline()))
            yield process, pidfds
        finally:
            process.kill()
            for pidfd in pidfds:
                os.close(pidfd)


def _all_end(pidfds: list[int]) -> bool:
    return all(select.select([pidfd], [], [], PATIENCE_S)[0] for pidfd in pidfds)


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_end_with_a_killed_trainer(context: str) -> None:
    with _trainer(context, "wait") as (process, pidfds):
        process.kill()
        assert _all_end(pidfds)


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_trainer_ends_with_a_stopped_worker(context: str) -> None:
    with _trainer(context, "stop") as (process, pidfds):
        process.communicate(b"\n", timeout=PATIENCE_S)
        assert process.returncode == 0
        assert _all_end(pidfds)
