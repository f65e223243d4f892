"""The stacks of another process: by py-spy, and by the signal that the process has armed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.process.guard import stacks
from holdfast.process.guard.heartbeat import Heartbeat, read_heartbeat
from holdfast.process.guard.stacks import dump_stacks, is_python
from process_tree import children
from python_child import python

# Arms what its arguments say, and waits in a function with a name to look for.
PROGRAM = """
import faulthandler, signal, sys
from holdfast.process.guard.heartbeat import HeartbeatPage
page = HeartbeatPage("w")
log, armed = sys.argv[1], sys.argv[2]
if log != "-":
    page.set_text("log", log)
page.set(stacks_signal=signal.SIGUSR2)
if armed == "armed":
    faulthandler.register(signal.SIGUSR2, open(log, "a") if log != "-" else sys.stderr, all_threads=True)
def waits_for_the_test():
    print("ready", flush=True)
    sys.stdin.read()
waits_for_the_test()
page.close()
"""

needs_py_spy = pytest.mark.skipif(
    not Path(sys.executable).with_name("py-spy").exists(), reason="needs the Python package py-spy"
)


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@contextmanager
def waiting(log: str = "-", armed: str = "armed", stderr: int | None = None) -> Iterator[tuple[int, Heartbeat]]:
    command = [sys.executable, "-c", PROGRAM, log, armed]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"ready\n"
            page = read_heartbeat(child.pid)
            assert page is not None
            yield child.pid, page
        finally:
            child.stdin.close()
            child.wait(60)
    assert child.returncode == 0


@pytest.fixture
def no_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_spy", lambda: None)


@needs_py_spy
def test_py_spy_beside_this_python_shows_them() -> None:
    with waiting() as (pid, page):
        found = dump_stacks(pid, page)
    assert (found.source, found.problem) == ("py-spy", "")
    assert "waits_for_the_test" in found.text
    assert found.text.startswith("Thread ")


@needs_py_spy
@pytest.mark.parametrize("may_touch", [True, False])
def test_a_stopped_process_is_read_without_a_pause_and_stays_stopped(may_touch: bool) -> None:
    with waiting() as (pid, page):
        os.kill(pid, signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
            found = dump_stacks(pid, page, may_touch=may_touch)
            assert Path(f"/proc/{pid}/stat").read_text().split()[2] == "T"
        finally:
            os.kill(pid, signal.SIGCONT)
    assert "waits_for_the_test" in found.text


@pytest.mark.usefixtures("no_spy")
def test_without_py_spy_the_process_writes_them_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "guard.log"
    log.write_text("an old line about waits_for_nothing\n" * 100)
    with waiting(str(log)) as (pid, page):
        found = dump_stacks(pid, page)
    assert found.source == "faulthandler"
    assert "in waits_for_the_test" in found.text
    assert "waits_for_nothing" not in found.text


@pytest.mark.usefixtures("no_spy")
def test_or_to_its_stderr_if_that_is_a_file(tmp_path: Path) -> None:
    with open(tmp_path / "stderr.txt", "ab") as stderr, waiting(stderr=stderr.fileno()) as (pid, page):
        found = dump_stacks(pid, page)
    assert "in waits_for_the_test" in found.text


@pytest.mark.usefixtures("no_spy")
def test_where_they_cannot_be_read_it_says_where_they_went(tmp_path: Path) -> None:
    with open(os.devnull, "w") as null, waiting(stderr=null.fileno()) as (pid, page):
        found = dump_stacks(pid, page)
    assert found.source == ""
    assert found.problem == (
        "py-spy is not installed (pip install py-spy); it was asked with SIGUSR2 to write its stacks, "
        "which are in /dev/null: that is not a plain file of its user"
    )


@pytest.mark.usefixtures("no_spy")
def test_no_signal_is_sent_where_none_is_armed_whatever_the_page_says() -> None:
    """The page says SIGUSR2, but the process has no handler: it would end."""
    with waiting(armed="not") as (pid, page):
        found = dump_stacks(pid, page)
        assert found.problem.endswith("it has no handler for SIGUSR2, which would end it")
        assert not dump_stacks(pid, None).source


@pytest.mark.usefixtures("no_spy")
def test_nor_in_a_dry_run_nor_to_a_stopped_process(tmp_path: Path) -> None:
    log = tmp_path / "guard.log"
    with waiting(str(log)) as (pid, page):
        assert "nothing may be changed" in dump_stacks(pid, page, may_touch=False).problem
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        assert "it is stopped" in dump_stacks(pid, page).problem
        os.kill(pid, signal.SIGCONT)
    assert log.read_text() == ""


GUARDED = """
import sys
import holdfast as hold
with hold.Guard("w", log=sys.argv[1]) as guard:
    def waits_for_the_test():
        print("ready", flush=True)
        sys.stdin.read()
    waits_for_the_test()
"""


@pytest.mark.usefixtures("no_spy")
def test_a_real_guard_writes_the_stacks_of_all_threads(tmp_path: Path) -> None:
    log = tmp_path / "guard.log"
    with python(GUARDED, log) as child:
        found = dump_stacks(child.pid, read_heartbeat(child.pid))
    assert found.source == "faulthandler"
    assert "in waits_for_the_test" in found.text
    assert "in _run" in found.text  # the guard's own thread


def test_another_program_is_no_python() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            assert not is_python(child.pid)
            assert dump_stacks(child.pid, None).problem == "it is not a Python process"
        finally:
            child.kill()
    assert is_python(os.getpid())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'Error: Permission Denied: Try it with elevated permissions' >&2; exit 1",
            "Permission Denied",
        ),
        ("exit 3", "it gave no reason"),
        ("echo nothing of use", "it gave no reason"),
    ],
)
def test_a_py_spy_that_fails_is_quoted(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\n{script}\n")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "find_spy", lambda: str(spy))
    found = dump_stacks(os.getpid(), None)
    assert reason in found.problem
    assert found.problem.endswith("and it has no Guard that could write them itself")


def test_a_py_spy_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\nexec sleep 600\n")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "find_spy", lambda: str(spy))
    monkeypatch.setattr(stacks, "_SPY_S", 0.2)
    before = children(os.getpid())
    assert dump_stacks(os.getpid(), None).problem.startswith("py-spy got no answer within")
    assert children(os.getpid()) == before


def test_py_spy_is_also_found_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\n")
    spy.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert stacks.find_spy() == str(spy)
    monkeypatch.setenv("PATH", "/nowhere")
    assert stacks.find_spy() is None
