"""Keras logs from two workers of a MultiWorkerMirroredStrategy; one is killed, and both are started again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from log_cases import EXAMPLES, await_end, await_text, free_ports, logged, merged, started, steps


def test_every_step_of_every_worker_once_after_a_kill(tmp_path: Path) -> None:
    """The strategy's other worker cannot go on alone, and is ended with it."""

    def workers(opened: ExitStack, *more: object) -> list[object]:
        command = [EXAMPLES / "log_keras.py", tmp_path, "--ports", *free_ports(2), *more]
        return [opened.enter_context(started(*command, "--worker", index)) for index in (0, 1)]

    with ExitStack() as opened:
        for worker in workers(opened, "--stand-still-at", 18):
            await_text(worker, "standing still at step 18")
    # Three rows at a time, and all at the end of an epoch of ten: steps 17 and 18 are what a kill can lose.
    assert steps(tmp_path) == {0: [*range(1, 17)], 1: [*range(1, 17)]}

    with ExitStack() as opened:
        ends = [await_end(worker) for worker in workers(opened)]
    assert steps(tmp_path) == {0: [*range(1, 31)], 1: [*range(1, 31)]}
    rows = logged(tmp_path)
    assert merged(tmp_path) == rows
    assert rows[0]["weights"] == rows[1]["weights"]  # they are mirrored: the values are of the steps they stand at
    final = [float(one) for one in ends[0].split("weights ")[1].split()]
    assert rows[1]["weights"][-1] == pytest.approx(final)
    assert rows[0]["loss"][-1] < rows[0]["loss"][0] / 10
