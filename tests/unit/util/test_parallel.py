"""The same work for many things, on some threads."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from holdfast._util.parallel import Stop, StoppedError, run_all


@pytest.mark.parametrize("jobs", [1, 2, 50])
def test_results_come_in_order(jobs: int) -> None:
    assert run_all(lambda n: n * n, range(30), jobs, Stop()) == [n * n for n in range(30)]
    assert run_all(lambda n: n, [], jobs, Stop()) == []


def test_the_work_is_done_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=30)
    run_all(lambda _: barrier.wait(), range(3), 3, Stop())


def test_the_first_failure_stops_the_rest() -> None:
    stop, failed, stopped = Stop(), threading.Event(), []

    def work(n: int) -> None:
        if n == 0:
            failed.set()
            raise KeyError("first")
        failed.wait(30)
        try:
            while True:
                stop.check()
        except StoppedError:
            stopped.append(n)
            raise

    with pytest.raises(KeyError, match="first"):
        run_all(work, range(100), 2, stop)
    assert len(stopped) < 3  # those under way; the others were never begun


def test_a_signal_while_threads_start_leaves_no_work_running() -> None:
    """The first work interrupts the main thread, which still waits for the start of that thread."""
    stop, running = Stop(), threading.Event()

    def work(n: int) -> None:
        running.set()
        os.kill(os.getpid(), signal.SIGINT)
        try:
            while True:
                stop.check()
        finally:
            running.clear()

    try:
        with pytest.raises(KeyboardInterrupt):
            run_all(work, range(2), 2, stop)
        assert not running.is_set()
    finally:
        stop.set()
