"""Workers that are killed, stopped, hung or crashed: each is named with its sample, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pool_work
import pytest

from holdfast.data.loader.workers import ProcessPool, Task
from holdfast.errors import WorkerDiedError, WorkerError, WorkerTimeoutError

NAMES = ["first", "second", "third"]


def run_deed(what: str, value: Any = None, **options: Any) -> Any:
    with ProcessPool(pool_work.act, 2, **options) as pool:
        tasks = [Task(("give", 0), NAMES)] * 4 + [Task((what, value), NAMES)] + [Task(("give", 0), NAMES)] * 4
        return list(pool.run(tasks))


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
@pytest.mark.parametrize(
    ("what", "value", "told"),
    [
        ("kill", signal.SIGKILL, r"worker \d+ was killed by SIGKILL \(out of memory.*\); it was at third"),
        ("kill", signal.SIGTERM, r"was killed by SIGTERM; it was at third"),
        ("exit", 7, r"ended with exit code 7; it was at third"),
        ("exit", 0, r"ended with exit code 0; it was at third"),
        ("crash", None, r"(?s)was killed by SIGSEGV; it was at third.*in _crash\n +ctypes.string_at\(0\)"),
    ],
)
def test_a_death_is_reported(context: Any, what: str, value: Any, told: str) -> None:
    with pytest.raises(WorkerDiedError, match=told) as caught:
        run_deed(what, value, context=context, stall_s=None)
    assert caught.value.sample == "third"
    assert caught.value.pid


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("hang", r"(?s)made no progress for 0.5 s and is waiting; it was at third\n.*in _hang_here\n +threading.Event"),
        ("hold", r"(?s)is waiting; it was at third\n.*in _hold_the_interpreter"),
        ("stop", r"(?s)is stopped by a signal \(SIGCONT resumes it\); it was at third\n.*cannot dump it"),
    ],
)
def test_a_stall_is_reported(what: str, told: str) -> None:
    with ProcessPool(pool_work.act, 2, stall_s=0.5) as pool:
        pool._dispatcher._stall_s = 60  # for their start, on a machine that is busy
        assert list(pool.run([Task(("give", 1))] * 4)) == [1] * 4
        pool._dispatcher._stall_s = 0.5
        with pytest.raises(WorkerTimeoutError, match=told) as caught:
            list(pool.run([Task((what, None), NAMES)]))
        assert caught.value.sample == "third"
        with pytest.raises(WorkerError, match="was ended by WorkerTimeoutError"):
            pool.run([])


def test_workers_killed_at_random() -> None:
    chance = random.Random(4)
    for _ in range(12):
        with ProcessPool(pool_work.echo, 2, stall_s=None) as pool:
            victim_after = chance.randrange(1, 60)

            def tasks(pool: ProcessPool = pool, after: int = victim_after) -> Iterator[Task]:
                for number in range(100_000):
                    if number >= after and len(pool.pids) == 2:
                        os.kill(chance.choice(pool.pids), signal.SIGKILL)
                        after = 1_000_000
                    yield Task(number)

            with pytest.raises(WorkerDiedError, match="was killed by SIGKILL"):
                for wanted, got in enumerate(pool.run(tasks())):
                    assert got == wanted


def test_a_worker_that_died_idle_is_reported_at_the_next_use() -> None:
    with ProcessPool(pool_work.echo, 2) as pool:
        assert list(pool.run([Task(1)] * 4)) == [1] * 4
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="was killed by SIGKILL.*at no sample"):
            list(pool.run(Task(number) for number in range(100_000)))


def test_the_death_of_the_process_that_starts_workers_is_reported() -> None:
    with ProcessPool(pool_work.echo, 2) as pool:
        assert list(pool.run([Task(1)])) == [1]
        os.kill(pool._processes.forkserver_pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="that starts the workers was killed by SIGKILL"):
            list(pool.run(Task(number) for number in range(100_000)))
