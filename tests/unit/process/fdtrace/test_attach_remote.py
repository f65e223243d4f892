"""Attaching through `sys.remote_exec`, which a shell script and a cooperating process stand in for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.errors import TraceUnavailableError
from holdfast.process.fdtrace import attach, attach_remote
from holdfast.process.fdtrace.attach import record_attached
from holdfast.process.fdtrace.attach_remote import find_interpreter
from holdfast.process.fdtrace.recording import TraceOptions, log_folder
from holdfast.process.fdtrace.sites import Statistics
from traced_process import needs_library

OWN = "/opt/python3.14"


def maps(*paths: str) -> str:
    return "".join(f"55d0c4a00000-55d0c4c00000 r-xp 00000000 08:01 1835 {path}\n" for path in paths)


@pytest.mark.parametrize(
    ("paths", "own", "expected"),
    [
        (["/usr/bin/python3.13", "/usr/lib/libpython3.13.so.1.0"], (3, 13), None),
        (["/usr/bin/python3.14"], (3, 14), OWN),
        (["/usr/bin/python3.14"], (3, 11), "/proc/{}/exe"),
        (["/usr/bin/python3.14", "/usr/lib/libpython3.14.so.1.0"], (3, 11), "/proc/{}/exe"),
        (["/usr/bin/python3.14t"], (3, 14), "/proc/{}/exe"),
        (["/usr/bin/python3.15"], (3, 14), "/proc/{}/exe"),
        (["/usr/lib/python3.14/lib-dynload/_ctypes.so", "/usr/bin/cat"], (3, 14), None),
        (["/usr/bin/python3.14", "/usr/lib/libpython3.15.so.1.0"], (3, 14), None),
        ([], (3, 14), None),
    ],
)
def test_the_version_decides(
    paths: list[str], own: tuple[int, int], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach_remote, "sys", SimpleNamespace(version_info=own, abiflags="", executable=OWN))
    assert find_interpreter(os.getpid(), maps(*paths)) == (expected and expected.format(os.getpid()))


def test_the_program_of_another_user_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach_remote, "sys", SimpleNamespace(version_info=(3, 11), abiflags="", executable=OWN))
    mine = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: mine + 1)
    assert find_interpreter(os.getpid(), maps("/usr/bin/python3.14")) is None


# Runs the script whose path it finds in a file, as Python 3.14 does when it is asked to, and leaks descriptors.
CHILD = """
import os, sys, time
kept = []
def leak(): kept.append(os.dup(0))
print("ready", flush=True)
while True:
    time.sleep(0.005)
    if len(kept) < 500: leak()
    if sys.argv[2] == "runs" and os.path.exists(sys.argv[1]):
        with open(sys.argv[1]) as asked: path = asked.read()
        os.unlink(sys.argv[1])
        with open(path) as script: source = script.read()
        exec(source, {})
"""


class Target:
    """A process that is traced, and the program that asks it to run a script."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = folder / "asked"
        self._interpreter = folder / "interpreter"
        self.asks()
        monkeypatch.setattr(attach_remote, "find_interpreter", lambda pid, maps: str(self._interpreter))
        monkeypatch.setattr("shutil.which", lambda name: None)

    def asks(self, *, fails: str = "") -> None:
        body = (
            f"echo '{fails}' >&2; exit 1"
            if fails
            else f'printf %s "$4" >{self.asked}.new; mv {self.asked}.new {self.asked}'
        )
        self._interpreter.write_text(f"#!/bin/sh\n{body}\n")
        self._interpreter.chmod(0o755)

    def start(self, how: str) -> int:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, self.asked, how], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        return self.process.pid

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    target = Target(tmp_path, monkeypatch)
    yield target
    target.end()


@needs_library
def test_the_process_loads_the_library_itself(target: Target, tmp_path: Path) -> None:
    pid = target.start("runs")
    for _ in range(2):
        trace = record_attached(pid, for_s=0.3)
        assert sum(site.born for site in Statistics(trace).sites if site.frame.function == "leak") >= 3
        assert [process.pid for process in trace.processes] == [pid]
    with log_folder([]) as folder:
        assert attach_remote.load(pid, str(tmp_path / "interpreter"), folder, folder, TraceOptions(), 10) == ""
        said = f"cannot attach to process {pid}: the process is traced already"
        with pytest.raises(TraceUnavailableError, match=said):
            record_attached(pid, for_s=1)


@needs_library
def test_a_folder_that_the_process_cannot_write(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = target.start("runs")
    monkeypatch.setattr(attach_remote, "_SCRIPT", attach_remote._SCRIPT.replace("{folder!r}", "b'/nowhere'"))
    failure = attach_remote.load(pid, str(tmp_path / "interpreter"), tmp_path, tmp_path, TraceOptions(), 10)
    assert failure == "the process cannot write its log: No such file or directory"


@needs_library
def test_a_library_that_cannot_be_loaded(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = target.start("runs")
    monkeypatch.setattr(attach_remote, "LIBRARY", "/nowhere.so")
    with pytest.raises(TraceUnavailableError, match="cannot load the tracing library: /nowhere.so: cannot open"):
        record_attached(pid)


@needs_library
def test_a_process_that_runs_no_python_code(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script is taken back: the process would look for it in vain when it goes on."""
    monkeypatch.setattr(attach, "_REMOTE_S", 0.2)
    with pytest.raises(TraceUnavailableError, match="its main thread ran no Python code for 0 s; install gdb"):
        record_attached(target.start("waits"))
    assert target.asked.read_text() == os.devnull


@needs_library
@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        (
            "RuntimeError: Remote debugging is not enabled in the remote process",
            "it was started with PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug; install gdb",
        ),
        ("PermissionError: [Errno 1] Operation not permitted", "Operation not permitted; "),
        ("Traceback\nRuntimeError: version mismatch", "RuntimeError: version mismatch"),
    ],
)
def test_refusals(target: Target, fails: str, expected: str) -> None:
    target.asks(fails=fails)
    pid = target.start("runs")
    with pytest.raises(TraceUnavailableError, match=f"cannot attach to process {pid}: {expected}"):
        record_attached(pid)


@needs_library
def test_gdb_is_tried_where_the_process_refuses(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(attach, "_inject_with_gdb", lambda pid, folder, options, limits: tried.append(pid))
    target.asks(fails="RuntimeError: Remote debugging is not enabled in the remote process")
    pid = target.start("runs")
    record_attached(pid, for_s=0)
    assert tried == [pid]
