"""The board of `top` on real processes, and one target after the other judged by its worst process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.process.doctor.diagnose import Examination, suspects
from holdfast.process.doctor.model import Verdict
from holdfast.process.doctor.top_model import TopModel

LEAKER = """
import os, sys
keep = [os.pipe() for _ in range(int(sys.argv[1]))]
for _, writer in keep:
    os.close(writer)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def leaker(pipes: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", LEAKER, str(pipes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            assert process.stdin
            process.stdin.close()
            process.wait(60)


def test_a_board_shows_the_tree_and_forgets_who_ended() -> None:
    model = TopModel([os.getpid()])
    with leaker(300) as child:
        rows = {row.pid: row for row in model.refresh().rows}
        assert rows.keys() >= {os.getpid(), child.pid}
        assert rows[child.pid].diagnosis.verdict is Verdict.LEAK
        assert rows[child.pid].fds == 300 + 3
        assert rows[child.pid].history == (303,)
        pid = child.pid
    assert pid not in {row.pid for row in model.refresh().rows}


def test_a_board_of_nobody_is_empty() -> None:
    assert TopModel([2**22 + 1]).refresh().rows == ()


def test_without_pids_the_busy_are_shown() -> None:
    with leaker(300) as child:
        assert child.pid in {row.pid for row in TopModel(None).refresh().rows}


def test_an_examination_watches_all_at_once_and_keeps_the_errors() -> None:
    with leaker(300) as one, leaker(0) as other:
        examination = Examination([one.pid, other.pid, 2**22 + 1, one.pid], role="worker")
        heard: list[float] = []
        examination.watch(0.3, heard.append)
        first, second = examination.conclude()
    assert examination.errors == [f"there is no process {2**22 + 1}"]
    assert (first.pid, first.verdict, first.role) == (one.pid, Verdict.LEAK, "worker")
    assert (second.pid, second.verdict) == (other.pid, Verdict.OK)
    assert first.watched_s >= 0.3
    assert heard
    assert len(suspects(first.worst)) == 300
    assert suspects(second.worst) == []


def test_an_interrupted_watch_is_no_loss() -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with leaker(300) as child:
        examination = Examination([child.pid])
        with pytest.raises(KeyboardInterrupt):
            examination.watch(3600, interrupt)
        [target] = examination.conclude()
    assert target.verdict is Verdict.LEAK


def test_no_process_to_inspect() -> None:
    examination = Examination([2**22 + 1])
    examination.watch(3600)
    assert examination.conclude() == []


def test_a_count_that_has_moved_far_is_inspected_again_at_once() -> None:
    """The clock moves by a second only, far less than the time between two looks."""
    now = [0.0]
    model = TopModel([os.getpid()], clock=lambda: now[0])
    model.refresh()
    pipes = [os.pipe() for _ in range(100)]
    try:
        now[0] += 1.0
        model.refresh()  # sees the count, and that it moved
        now[0] += 1.0
        [row] = [row for row in model.refresh().rows if row.pid == os.getpid()]
        assert len(row.snapshot.descriptors or ()) >= 200
    finally:
        for pair in pipes:
            for fd in pair:
                os.close(fd)
