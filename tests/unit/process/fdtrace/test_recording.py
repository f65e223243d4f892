"""The folder of the logs, the environment of the program, and what is read from logs that are cut off."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from holdfast.errors import InputError, TraceUnavailableError
from holdfast.process.fdtrace import collector as collecting
from holdfast.process.fdtrace import recording
from holdfast.process.fdtrace.collector import Collector, assemble, is_alive
from holdfast.process.fdtrace.html_page import PageData
from holdfast.process.fdtrace.recording import LIBRARY, TraceOptions, check_command, environment, log_folder, record
from holdfast.process.fdtrace.render import Findings, ReportPage
from holdfast.process.fdtrace.sites import Statistics
from traced_process import as_array, needs_library

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


# ---- room for the logs

FULL = """
import os, sys
import holdfast as hold
def fill():
    with open("/dev/shm/filler", "wb", buffering=0) as file:
        try:
            while True: file.write(bytes(1 << 20))
        except OSError as error:
            assert error.errno == 28
        try:
            while True: file.write(bytes(4096))
        except OSError as error:
            assert error.errno == 28
def work():
    kept = []
    for turn in range(4000):
        kept.append(os.open("/dev/null", 0))
        if turn == 20: fill()
        if turn % 5: os.close(kept.pop())
        if turn % 1000 == 0:
            pid = os.fork()
            if not pid: os.close(os.open("/dev/null", 0)); os._exit(4)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    if sys.argv[1] == "Tracer": print(tracer.live()[0].frame.function)
if sys.argv[1] == "Tracer":
    with hold.Tracer() as tracer: work()
    print(tracer.trace.warnings)
else:
    work()
sys.exit(7)
"""


@needs_library
@pytest.mark.needs("unshare", "mount")
@pytest.mark.parametrize("way", ["trace", "Tracer"])
def test_a_full_dev_shm_ends_the_recording_and_not_the_program(tmp_path: Path, way: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system of 80 MB")
    script = tmp_path / "script.py"
    script.write_text(FULL)
    trace = [
        "-c",
        "import sys; from holdfast.cli import main; sys.exit(main())",
        "trace",
        "-o",
        str(tmp_path / "x.hft"),
    ]
    command = [sys.executable, *(trace if way == "trace" else []), str(script), way]
    small = 'mount -t tmpfs -o size=80m tmpfs /dev/shm && "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", small, "sh", *command], capture_output=True, text=True, timeout=120
    )
    said = done.stdout + done.stderr
    assert done.returncode == 7, said
    assert "no space was left for the log" in said
    if way == "Tracer":
        assert done.stdout.startswith("work\n")


@needs_library
def test_the_logs_of_ended_processes_are_folded_while_the_program_runs(tmp_path: Path) -> None:
    code = """
import os, sys
def leak(): return os.open("/dev/null", 0)
for batch in range(4):
    for turn in range(150):
        pid = os.fork()
        if not pid:
            leak()
            os.close(leak())
            os._exit(0)
        os.waitpid(pid, 0)
    print(flush=True)
    sys.stdin.readline()
"""
    collector = Collector(tmp_path)
    env = environment(tmp_path, TraceOptions(owners=False), os.environ)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], env=env, **pipes) as process:  # type: ignore[call-overload]
        for _ in range(4):
            process.stdout.readline()
            used = [sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())]
            collector.tick()
            used.append(sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir()))
            assert used[0] < 8_000_000
            assert used[1] < 400_000  # that of the parent
            process.stdin.write(b"\n")
            process.stdin.flush()
    trace = assemble(tmp_path, collector, ["x"], exit_code=0, options=TraceOptions())
    assert len(trace.processes) == 601
    assert {process.ended for process in trace.processes[1:]} == {"_exit"}
    leaks = [number for number, stack in enumerate(trace.stacks) if stack and trace.frames[stack[0]].function == "leak"]
    counts = as_array(trace.counts)[np.isin(as_array(trace.counts)["stack"], leaks)]
    assert (int(counts["born"].sum()), int(counts["closed"].sum())) == (1200, 600)
    assert not trace.warnings


@needs_library
def test_the_events_of_ended_processes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_MAX_FOLDED_EVENTS", 100)
    code = (
        "import os\nfor _ in range(5):\n  pid = os.fork()\n  if not pid:\n"
        "    [os.close(os.dup(0)) for _ in range(20)]\n    os._exit(0)\n  os.waitpid(pid, 0)\n"
    )
    env = environment(tmp_path, TraceOptions(owners=False), os.environ)
    collector = Collector(tmp_path)
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    collector.tick()
    assert not list(tmp_path.iterdir())
    trace = assemble(tmp_path, collector, ["x"], exit_code=0, options=TraceOptions())
    assert len(trace.events) <= 100
    assert len(trace.processes) == 6
    assert sum(process.dropped_events for process in trace.processes) >= 100
    assert sum(trace.counts["born"]) >= 100


# ---- the look at the owners, at the end of a program

AT_EXIT = """
import atexit, pickle, sys, threading
class Strange:
    def __call__(self): pass
    def __eq__(self, other): raise RuntimeError("compared")
    __hash__ = None
pickle.loads(pickle.dumps(atexit.register))(print, "handler")
assert type(atexit.register) is type(len)
kept = [open("/dev/null") for _ in range(20)]
atexit.register(lambda: [file.close() for file in kept])
for _ in range(5000): atexit.register(Strange())
late = threading.Timer(0.2, lambda: kept.append(open("/dev/zero")))
late.start()  # Python waits for it
"""


@needs_library
def test_the_owners_are_looked_for_before_the_program_s_own_exit_handlers(capfd: pytest.CaptureFixture[str]) -> None:
    outcome = record([sys.executable, "-c", AT_EXIT])
    assert (outcome.returncode, *capfd.readouterr()) == (0, "handler\n", "")
    lines = [line for lines in outcome.trace.owners.values() for line in lines]
    assert any("kept" in line for line in lines), lines


@needs_library
def test_the_search_for_owners_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # A search that may take no time at all finds nothing, and claims nothing.
    code = (
        "import holdfast.process.fdtrace.at_exit as at_exit\nat_exit._WITHIN_S = at_exit._MAX_S = 0\n"
        "kept = [open('/dev/null') for _ in range(20)]\n"
    )
    outcome = record([sys.executable, "-c", code])
    lines = [line for lines in outcome.trace.owners.values() for line in lines]
    assert lines
    assert all("not found within the search limits" in line for line in lines), lines


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


def test_a_process_in_the_background_is_named_before_it_has_a_log(tmp_path: Path) -> None:
    """A daemon that was forked a moment ago has not begun its log when the program ends."""
    env = {**os.environ, "HOLDFAST_FDTRACE_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE) as process:
        trace = assemble(tmp_path, Collector(tmp_path), ["x"], exit_code=0, options=TraceOptions())
        assert process.stdin is not None
        process.stdin.write(b"\n")
    assert any(f"went on in the background as process {process.pid} (" in warning for warning in trace.warnings)


def test_a_process_that_starts_during_the_snapshot_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon forks twice: the first child may end after /proc was listed, the second one is not in that list."""
    lists = iter([[os.getpid()]])
    list_pids = collecting.list_pids
    monkeypatch.setattr(collecting, "list_pids", lambda procfs: next(lists, None) or list_pids(procfs))
    env = {**os.environ, "HOLDFAST_FDTRACE_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE) as process:
        trace = assemble(tmp_path, Collector(tmp_path), ["x"], exit_code=0, options=TraceOptions())
        assert process.stdin is not None
        process.stdin.write(b"\n")
    assert any(f"went on in the background as process {process.pid} (" in warning for warning in trace.warnings)


def test_a_planted_name_makes_nobody_a_process_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "fd.1.1.log").symlink_to("/etc/hostname")
    (tmp_path / f"fd.{os.getppid()}.1.log").touch()
    collector = Collector(tmp_path)
    collector.tick()
    assert not collector.untraced


def test_samples_are_thinned_and_become_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_MAX_SAMPLES", 50)
    collector = Collector(tmp_path)
    for number in range(60):
        collector.samples.append((float(number), tmp_path, 1, number))
    collector.tick()
    assert collector._sample_every_s == 2.0
    assert [sample[0] for sample in collector.samples] == [*range(0, 60, 2), 59]


@needs_library
def test_a_tracer_in_a_program_that_is_traced_is_an_error() -> None:
    code = "import holdfast as h\ntry:\n  with h.Tracer(): pass\nexcept h.errors.TraceUnavailableError: exit(4)"
    assert record([sys.executable, "-c", code]).returncode == 4


@needs_library
def test_processes_that_are_not_traced_are_named(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys
commands = (["env", "-i", *sys.argv[1:]], ["env", "LD_PRELOAD=", *sys.argv[1:]], sys.argv[1:])
started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for command in commands]
for one in started: one.stdout.read(1)
print(*(one.pid for one in started), flush=True)
sys.stdin.read()
for one in started: one.communicate()
"""
    says = [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"]
    with log_folder([]) as folder:
        collector = Collector(folder)
        program = subprocess.Popen(
            [sys.executable, "-c", code, *says],
            env=environment(folder, TraceOptions(), os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with program:
            cleared, without, traced = map(int, program.stdout.readline().split())
            collector.tick()
            program.communicate()
        trace = assemble(folder, collector, ["a"], exit_code=0, options=TraceOptions())
    assert {pid for pid, _ in trace.untraced} == {cleared, without}
    assert traced in {process.pid for process in trace.processes}
    [warning] = [line for line in trace.warnings if line.startswith("not traced: process ")]
    assert str(cleared) in warning
    page = io.StringIO()
    Console(file=page, width=200).print(ReportPage(Findings(trace)))
    assert "% of all births in traced processes seen; 2 processes not traced" in page.getvalue()
    assert dict(PageData(trace, since=None, until=None).as_dict()["facts"])["Births seen"].endswith(
        " % in traced processes; 2 processes not traced"
    )


@needs_library
def test_processes_that_are_not_traced_are_named_however_soon_they_end(tmp_path: Path) -> None:
    """Nothing looks at the processes while these run, and each way to start one is used."""
    secure = tmp_path / "secure"
    shutil.copy("/bin/true", secure)
    is_secure = not os.geteuid() and not os.statvfs(tmp_path).f_flag & os.ST_NOSUID
    os.chown(secure, 65534 if is_secure else -1, -1)
    secure.chmod(0o4755)  # after the chown, which clears it
    code = f"""
import os, subprocess, sys
def says(*command, **more): print(subprocess.Popen(command, **more).pid, flush=True)
says("env", "-i", "/bin/true", "1")
says("env", "LD_PRELOAD=", "/bin/true", "2")
says("/bin/true", "3", env={{}})
says({str(secure)!r}, "4")
print(os.posix_spawn("/bin/true", ["true", "5"], {{}}), flush=True)
if not os.fork(): os.execvpe("true", ["true", "6"], {{"PATH": "/none:/bin"}})
for word in ("traced",) * 3: subprocess.run(["true", word], check=True)
os.waitpid(os.posix_spawn("/bin/true", ["true", "traced"], os.environ), 0)
try: subprocess.run("/no/such", env={{}})
except FileNotFoundError: pass
try:
    while os.wait(): pass
except ChildProcessError: pass
os.unsetenv("LD_PRELOAD")
os.system("exit 0 # 7")
"""
    with open(tmp_path / "pids", "w+b") as output, log_folder([]) as folder:
        collector = Collector(folder)
        env = environment(folder, TraceOptions(owners=False), os.environ)
        subprocess.run([sys.executable, "-I", "-c", code], env=env, stdout=output, check=True)
        trace = assemble(folder, collector, ["a"], exit_code=0, options=TraceOptions())
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    found = {command[-1]: pid for pid, command in trace.untraced}
    expected = set("1234567" if is_secure else "123567")
    assert set(found) == expected, trace.untraced
    assert all(found[str(number)] == pid for number, pid in enumerate(pids, 1) if str(number) in expected)
    [warning] = [line for line in trace.warnings if line.startswith("not traced: process ")]
    assert "/bin/true 1; the tracing library is not in its LD_PRELOAD)" in warning
    assert (f"{secure} 4; setuid or setgid)" in warning) == is_secure
    page = io.StringIO()
    Console(file=page, width=200).print(ReportPage(Findings(trace)))
    assert f"% of all births in traced processes seen; {len(expected)} processes not traced" in page.getvalue()
