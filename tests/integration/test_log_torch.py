"""A plain loop logs from two ranks; one of them is killed, and all are started again."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from log_cases import EXAMPLES, TIMEOUT_S, await_end, await_text, logged, merged, started, steps

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, EXAMPLES / "log_torch.py"]


def test_every_step_of_every_rank_once_after_a_kill(tmp_path: Path) -> None:
    with started(*TORCHRUN, tmp_path, "--stand-still-at", 12) as first:
        said = await_text(first, "standing still", times=2)
        found = re.search(r"rank 1, process (\d+)", said)
        assert found, said
        os.kill(int(found[1]), signal.SIGKILL)
        first.communicate(timeout=TIMEOUT_S)
        assert first.returncode != 0
    # Five rows, three up to the checkpoint; the four since then are in no part: what a kill can lose.
    assert steps(tmp_path) == {0: [*range(1, 9)], 1: [*range(1, 9)]}

    with started(*TORCHRUN, tmp_path) as second:
        ends = re.findall(r"rank (\d): weights (.*)", await_end(second))
    assert steps(tmp_path) == {0: [*range(1, 31)], 1: [*range(1, 31)]}
    rows = logged(tmp_path)
    assert merged(tmp_path) == rows
    assert rows[0]["weights"] == rows[1]["weights"]
    assert rows[0]["loss"] != rows[1]["loss"]
    for worker, weights in ends:
        assert rows[int(worker)]["weights"][-1] == pytest.approx([float(one) for one in weights.split()])
    assert len(ends) == 2
