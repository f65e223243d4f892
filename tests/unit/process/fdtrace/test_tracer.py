"""`hold.Tracer` records this process while a block of code runs, and leaves nothing of itself behind."""

from __future__ import annotations

import builtins
import gc
import io
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hold
from holdfast.errors import TraceUnavailableError, WriteError
from holdfast.process.fdtrace import trace_file
from holdfast.process.fdtrace.log_format import BIRTH, CLOSE, KINDS
from holdfast.process.fdtrace.recording import LIBRARY
from holdfast.process.fdtrace.sites import Statistics
from traced_process import as_array

HERE = os.path.basename(__file__)


@pytest.fixture(params=["library", "partial"], autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with the library, and with Python's own hooks."""
    if request.param == "partial":
        monkeypatch.setenv("HOLDFAST_NATIVE", "0")
    elif not LIBRARY.exists():
        pytest.skip("the tracing library was not built (no C compiler)")
    elif os.environ.get("HOLDFAST_NATIVE") == "0":
        pytest.skip("this run leaves all C code unused")
    return str(request.param)


@pytest.fixture
def closing() -> Iterator[list[int]]:
    """Descriptors that are closed after the test."""
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)


def line() -> int:
    frame = sys._getframe(1)
    return frame.f_lineno


def test_a_block_is_recorded_with_the_lines_that_opened_and_closed(
    mode: str, tmp_path: Path, closing: list[int]
) -> None:
    path = tmp_path / "run.hft"
    with hold.Tracer(path) as tracer:
        first, here = os.dup(0), line()
        closing.append(os.dup(0))
        assert tracer.trace is None
        os.close(first)
    trace = trace_file.load(path)
    assert tracer.trace is not None
    assert trace.frames == tracer.trace.frames
    assert trace.is_partial == (mode == "partial")
    assert trace.exit_code is None
    born = as_array(trace.events, action=BIRTH, fd=first)
    closed = as_array(trace.events, action=CLOSE, fd=first)
    assert [trace.frames_of(int(event["stack"]))[0].line for event in (born[0], closed[0])] == [here, here + 3]
    top = trace.frames_of(int(born[0]["stack"]))[0]
    assert (top.file, top.text.split(",")[0]) == (__file__, "first")
    assert top.function.endswith("recorded_with_the_lines_that_opened_and_closed")
    assert KINDS[born[0]["kind"]] == "dup"


def test_live_sites(closing: list[int]) -> None:
    with hold.Tracer() as tracer:
        assert [site for site in tracer.live() if HERE in site.where] == []
        for _ in range(12):
            closing.append(os.dup(0))
        here = line() - 1
        [site] = [site for site in tracer.live() if HERE in site.where]
        assert (site.frame.line, site.live, site.kinds) == (here, 12, {"dup": 12})
        for fd in closing:
            os.close(fd)
        closing.clear()
        assert [site for site in tracer.live() if HERE in site.where] == []
    with pytest.raises(RuntimeError, match="expected an active Tracer"):
        tracer.live()


def test_one_at_a_time_and_each_once() -> None:
    with pytest.raises(RuntimeError, match="expected an active Tracer; use it in a with statement"):
        hold.Tracer().live()
    with hold.Tracer() as tracer:
        with pytest.raises(RuntimeError, match="used already"):
            tracer.__enter__()
        with pytest.raises(TraceUnavailableError, match="expected a process that is not traced, got one that"):
            hold.Tracer().__enter__()
        os.close(os.dup(0))
    assert tracer.trace is not None
    with pytest.raises(RuntimeError, match="used already; make a new one"):
        tracer.__enter__()
    with hold.Tracer() as tracer:
        pass


def test_an_exception_passes_and_what_was_recorded_is_saved(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with hold.Tracer(tmp_path / "run.hft"):
            os.close(os.dup(0))
            1 / 0  # noqa: B018
    assert len(trace_file.load(tmp_path / "run.hft").events) >= 2


def test_a_recording_that_cannot_be_saved_is_an_error_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    with pytest.raises(hold.errors.WriteError, match="cannot write"):
        with hold.Tracer(tmp_path / "gone" / "run.hft") as tracer:
            (tmp_path / "gone").rmdir()
    assert tracer.trace is not None


def test_threads() -> None:
    ready, go = threading.Barrier(5), threading.Event()
    kept: list[int] = []

    def work() -> None:
        ready.wait()
        go.wait()
        for _ in range(200):
            os.close(os.dup(0))
        kept.append(os.dup(0))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    with hold.Tracer() as tracer:
        go.set()
        for thread in threads:
            thread.join()
    for fd in kept:
        os.close(fd)
    assert tracer.trace is not None
    sites = [site for site in Statistics(tracer.trace).sites if HERE in site.where]
    by_line = sorted((site.frame.line, site.born, site.closed, site.live) for site in sites)
    assert [counts for _, *counts in by_line] == [[800, 800, 0], [4, 0, 4]]


def test_it_may_be_entered_in_a_thread() -> None:
    traces = []

    def work() -> None:
        with hold.Tracer() as tracer:
            os.close(os.dup(0))
        traces.append(tracer.trace)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(traces[0].events) >= 2


def test_a_forked_child_is_recorded_and_leaves_the_recording_to_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "run.hft"
    child = 0
    with hold.Tracer(path) as tracer:
        mine = os.dup(0)
        child = os.fork()
        if not child:
            try:
                [os.dup(0) for _ in range(9)]
                tracer.__exit__(None, None, None)
            finally:
                os._exit(0 if not path.exists() else 1)
        here = line() - 4
        assert os.waitpid(child, 0)[1] == 0
        os.close(mine)
    assert tracer.trace is not None
    assert child in {process.pid for process in tracer.trace.processes}
    [site] = [site for site in Statistics(tracer.trace).sites if site.frame.line == here]
    assert (site.born, site.processes) == (9, (child,))


STANDARD = """
import os, socket, tempfile
def run():
    kept = []
    kept += [os.open("/dev/null", os.O_RDONLY)]
    kept += os.pipe()
    kept += [os.dup(0)]
    kept += [os.eventfd(0)]
    kept += [os.memfd_create("x")]
    kept += [os.pidfd_open(os.getpid())]
    kept += os.openpty()
    files = [open("/dev/null"), open("/dev/null", "wb")]
    sockets = [socket.socket()]
    sockets += socket.socketpair()
    for _ in range(3): os.close(os.dup(0))
    os.close(kept.pop(0))
    for _ in range(4):
        with open("/dev/null") as file: file.read()
    return kept, files, sockets
"""


def test_the_standard_calls_are_counted_alike_in_both_modes() -> None:
    """Closes of file objects are the exception: Python's own hooks see them late."""
    names: dict[str, object] = {}
    exec(compile(STANDARD, "/standard.py", "exec"), names)
    run = names["run"]
    assert callable(run)
    with hold.Tracer() as tracer:
        kept, files, sockets = run()
    for fd in kept:
        os.close(fd)
    for one in (*files, *sockets):
        one.close()
    assert tracer.trace is not None
    found = {
        site.frame.line: (site.born, site.live, dict(site.kinds))
        for site in Statistics(tracer.trace).sites
        if site.frame.file == "/standard.py"
    }
    assert found == {
        5: (1, 0, {}),
        6: (2, 2, {"pipe": 2}),
        7: (1, 1, {"dup": 1}),
        8: (1, 1, {"eventfd": 1}),
        9: (1, 1, {"memfd": 1}),
        10: (1, 1, {"pidfd": 1}),
        11: (2, 2, {"pty": 2}),
        12: (2, 2, {"file": 2}),
        13: (1, 1, {"socket": 1}),
        14: (2, 2, {"socket": 2}),
        15: (3, 0, {}),
        18: (4, 0, {}),
    }


def test_nothing_of_it_stays(mode: str) -> None:
    functions = (os.open, os.close, os.dup, os.pipe, builtins.open, io.open, socket.socket.__init__)
    before = set(os.listdir("/proc/self/fd")), threading.active_count()
    with hold.Tracer():
        os.close(os.dup(0))
        assert (os.close is not functions[1]) == (mode == "partial")
    assert functions == (os.open, os.close, os.dup, os.pipe, builtins.open, io.open, socket.socket.__init__)
    assert (set(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_fifty_in_a_row_take_no_more_memory_than_ten() -> None:
    def once() -> None:
        with hold.Tracer() as tracer:
            for _ in range(20):
                os.close(os.dup(0))
        assert tracer.trace is not None
        assert len(tracer.trace.events) >= 40

    def used() -> tuple[int, int]:
        gc.collect()
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        with open("/proc/self/maps") as file:
            return pages * 4096, len(file.readlines())

    for _ in range(10):
        once()
    memory, mappings = used()
    for _ in range(40):
        once()
    assert used()[1] <= mappings + 8
    assert used()[0] <= memory + (4 << 20)


def test_a_recording_that_could_not_be_saved_is_an_error_before_the_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("no/x.hft", "pipe", "."):
        with pytest.raises(WriteError), hold.Tracer(tmp_path / name):
            pytest.fail("the block ran")


def test_a_relative_name_is_that_of_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with hold.Tracer("run.hft"):
        monkeypatch.chdir("/")
    assert (tmp_path / "run.hft").exists()
