"""The folder of the logs, the environment of the program, and what is read from logs that are cut off."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.errors import InputError, TraceUnavailableError
from holdfast.fdtrace import collector as collecting
from holdfast.fdtrace import recording
from holdfast.fdtrace.collector import Collector, assemble, is_alive
from holdfast.fdtrace.recording import LIBRARY, TraceOptions, check_command, environment, log_folder, record
from holdfast.fdtrace.sites import Statistics
from traced_process import needs_library

LEAK = "import os\nkept = [os.dup(0) for _ in range(30)]\n"


# ---- the folder


def test_a_folder_is_private_locked_and_removed() -> None:
    warnings: list[str] = []
    with log_folder(warnings) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        fd = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
        with log_folder(warnings) as other:
            assert other != folder
            assert folder.exists()
    assert not folder.exists()
    assert warnings == []


def test_only_own_abandoned_folders_are_removed(tmp_path: Path) -> None:
    for name in ("holdfast-trace-abandoned", "holdfast-trace-live", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "fd.1.2.log").write_bytes(b"x")
    (tmp_path / "holdfast-trace-link").symlink_to(tmp_path / "mine")
    (tmp_path / "holdfast-trace-file").write_text("")
    lock = os.open(tmp_path / "holdfast-trace-live", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    others = tmp_path / "holdfast-trace-others"
    others.mkdir()
    if os.geteuid() == 0:
        os.chown(others, 65534, 65534)
    recording._remove_abandoned(tmp_path)
    os.close(lock)
    left = {path.name for path in tmp_path.iterdir()} - ({others.name} if os.geteuid() == 0 else set())
    assert left == {"holdfast-trace-live", "mine", "holdfast-trace-link", "holdfast-trace-file"}
    assert (tmp_path / "mine" / "fd.1.2.log").exists()
    assert others.exists() == (os.geteuid() == 0)


def test_many_commands_at_once_do_not_remove_each_other_s_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = time.monotonic() + 0.5
    problems: list[str] = []

    def work() -> None:
        while time.monotonic() < end:
            recording._remove_abandoned(tmp_path)
            folder, lock = recording._make_folder(tmp_path)
            recording._remove_abandoned(tmp_path)
            if not folder.exists():
                problems.append(folder.name)
            os.close(lock)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_no_folder_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_LEAST_FREE", 1 << 62)
    monkeypatch.setattr(recording.tempfile, "gettempdir", lambda: str(tmp_path / "no"))
    with pytest.raises(TraceUnavailableError, match="cannot make a folder for the logs in .*: No such file"):
        with log_folder([]):
            pass


# ---- the program


def test_the_environment_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_NATIVE", raising=False)
    base = {"LD_PRELOAD": "/x.so", "PYTHONPATH": "/mine", "A": "1"}
    made = environment(tmp_path, TraceOptions(no_reuse=True, arm_above=7), base)
    assert made["A"] == "1"
    assert made["PYTHONPATH"].split(os.pathsep)[1:] == ["/mine"]
    if LIBRARY.exists():
        assert made["LD_PRELOAD"] == f"{LIBRARY}:/x.so"
    assert (made["HOLDFAST_FDTRACE_OPTIONS"], made["HOLDFAST_FDTRACE_ARM_ABOVE"]) == ("6", "7")
    assert base == {"LD_PRELOAD": "/x.so", "PYTHONPATH": "/mine", "A": "1"}
    without = environment(tmp_path, TraceOptions(owners=False), {})
    assert ("PYTHONPATH" in without) == (not LIBRARY.exists())


def test_programs_that_cannot_be_traced(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a program, got 'no-such', which is not on PATH"):
        check_command(["no-such"])
    script = tmp_path / "script"
    script.write_text("echo no interpreter line\n")
    script.chmod(0o755)
    check_command([str(script)])
    with pytest.raises(InputError, match="cannot run .*: Exec format error"):
        record([str(script)])


@needs_library
def test_a_static_program_cannot_be_traced(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int main(void) { return 0; }")
    subprocess.run(["cc", "-static", "-o", tmp_path / "a.out", tmp_path / "a.c"], check=True)
    with pytest.raises(TraceUnavailableError, match="statically linked: no library can be loaded into it"):
        check_command([str(tmp_path / "a.out")])


def test_a_process_that_waits_for_its_parent_is_not_alive() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process.pid)
    process.wait()
    assert not is_alive(process.pid)
    assert is_alive(os.getpid())


# ---- putting the trace together


@needs_library
def test_history_comes_from_the_samples_when_the_ring_is_too_small() -> None:
    code = (
        "import os, time\nkept = []\nend = time.monotonic() + 2.6\n"
        "while time.monotonic() < end:\n"
        "    kept.append(os.dup(0))\n"
        "    for _ in range(1000): os.close(os.dup(0))\n"
        "    time.sleep(0.01)\n"
    )
    outcome = record([sys.executable, "-c", code], TraceOptions(owners=False))
    [process] = outcome.trace.processes
    assert process.dropped_events > 10_000
    [site] = [site for site in Statistics(outcome.trace).sites if site.frame.line == 5]
    assert site.live == site.born > 20  # also those after the last sample
    assert len(outcome.trace.samples) >= 2


@needs_library
def test_logs_that_are_cut_off_or_foreign(tmp_path: Path) -> None:
    collector = Collector(tmp_path)
    env = environment(tmp_path, TraceOptions(owners=False), os.environ)
    subprocess.run([sys.executable, "-c", LEAK], env=env, check=True)
    [log] = tmp_path.glob("fd.*.log")
    data = log.read_bytes()
    (tmp_path / "fd.9.9.log").write_bytes(data[:100])
    (tmp_path / "fd.8.8.log").write_bytes(b"no log" * 2000)
    (tmp_path / "owners.7.json").write_text('{"pid": 7')
    (tmp_path / "owners.6.json").write_text("[]")
    (tmp_path / f"lost.5.{errno.ENOSPC}").touch()
    (tmp_path / "lost.4.x").touch()
    log.write_bytes(data[: len(data) // 2])
    collector.tick()
    trace = assemble(tmp_path, collector, ["x"], exit_code=0, options=TraceOptions(native=True))
    assert len(trace.processes) == 1
    text = "\n".join(trace.warnings)
    assert "expected a descriptor log, got 100 bytes" in text
    assert "expected a log of version 1" in text
    assert "no log could be made for 1 process: No space left on device" in text
    assert Statistics(trace).verdict()


def test_a_folder_without_logs_says_so(tmp_path: Path) -> None:
    trace = assemble(tmp_path, Collector(tmp_path), ["x"], exit_code=0, options=TraceOptions())
    assert trace.warnings == ("nothing was recorded: no process of the program wrote a log",)
    assert Statistics(trace).sites == []


def test_samples_are_thinned_and_become_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_MOST_SAMPLES", 50)
    collector = Collector(tmp_path)
    for number in range(60):
        collector.samples.append((float(number), tmp_path, 1, number))
    collector.tick()
    assert collector.interval_s == 2.0
    assert [sample[0] for sample in collector.samples] == [*range(0, 60, 2), 59]


@needs_library
def test_a_tracer_in_a_program_that_is_traced_is_an_error() -> None:
    code = "import holdfast as h\ntry:\n  with h.Tracer(): pass\nexcept h.errors.TraceUnavailableError: exit(4)"
    assert record([sys.executable, "-c", code]).returncode == 4
