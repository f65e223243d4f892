"""Attaching records a process that runs already, with gdb, and the process goes on unharmed."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_stack_oracle import interpreters

from holdfast.errors import InputError, TraceUnavailableError
from holdfast.process.fdtrace import attach, recording
from holdfast.process.fdtrace.attach import record_attached
from holdfast.process.fdtrace.image import read_image
from holdfast.process.fdtrace.recording import LIBRARY, TraceOptions
from holdfast.process.fdtrace.sites import Statistics
from holdfast.process.fdtrace.trace_file import Trace, load
from holdfast.procfs.processes import read_status
from holdfast.procfs.procfs import REAL
from traced_process import needs_library

pytestmark = [needs_library, pytest.mark.needs("gdb")]

# Leaks a descriptor a round until it is told to end, then says how many it made.
CHILD = """
import os, sys, threading, time
kept, how = [os.dup(0)], sys.argv[1]
def leak(): kept.append(os.dup(0))
def wait(): time.sleep(0.01)
def spin():
    for _ in range(20_000): pass
def rounds(pause):
    while not os.path.exists(sys.argv[2]):
        pause(); leak()
        if len(kept) > 400: os.close(kept.pop())
if how == "threads":
    others = [threading.Thread(target=rounds, args=(spin,)) for _ in range(3)]
    for other in others: other.start()
print("ready", flush=True)
rounds(spin if how == "busy" else wait)
print("fine", len(kept) > 2, flush=True)
"""


@contextmanager
def child(folder: Path, how: str = "sleep", python: str = sys.executable, **options: object) -> Iterator[Child]:
    process = Child(folder, [python, "-c", CHILD, how, str(folder / "stop")], **options)
    try:
        yield process
    finally:
        process.end()


class Child:
    def __init__(self, folder: Path, command: list[str], **options: object) -> None:
        self._stop = folder / "stop"
        self._stop.unlink(missing_ok=True)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
        self.pid = self.process.pid
        assert self.process.stdout.readline() == b"ready\n"

    def says_that_it_is_fine(self) -> bool:
        self._stop.touch()
        out, _ = self.process.communicate(timeout=20)
        return out == b"fine True\n" and self.process.returncode == 0

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)


def leaked(trace: Trace) -> int:
    return sum(site.born for site in Statistics(trace).sites if site.frame.function == "leak")


@pytest.mark.parametrize("version", interpreters())
def test_every_python(version: str, tmp_path: Path) -> None:
    for how in ("sleep", "busy"):
        with child(tmp_path, how, interpreters()[version]) as running:
            trace = record_attached(running.pid, for_s=0.3)
            assert leaked(trace) >= 3, (version, how)
            [process] = trace.processes
            assert (process.pid, process.python, process.ended) == (running.pid, version, "running")
            assert running.says_that_it_is_fine()


def test_busy_threads_and_a_second_recording(tmp_path: Path) -> None:
    with child(tmp_path, "threads") as running:
        for _ in range(2):
            trace = record_attached(running.pid, for_s=0.3)
            assert leaked(trace) >= 10
            assert trace.open["flags"].count(5) >= 3  # what was open before
        assert running.says_that_it_is_fine()


def test_it_ends_while_it_is_traced(tmp_path: Path) -> None:
    with child(tmp_path) as running:
        timer = threading.Timer(1.5, running.process.kill)
        timer.start()
        began = time.monotonic()
        trace = record_attached(running.pid, for_s=60)
        timer.join()
    assert time.monotonic() - began < 30
    assert trace.processes[0].ended == "killed"
    assert leaked(trace) >= 3


def test_one_recording_at_a_time(tmp_path: Path) -> None:
    with child(tmp_path) as running:
        over = threading.Event()
        traces: list[Trace] = []
        ready = threading.Event()

        def is_over() -> bool:
            ready.set()
            return over.is_set()

        first = threading.Thread(target=lambda: traces.append(record_attached(running.pid, is_over=is_over)))
        first.start()
        assert ready.wait(30)
        with pytest.raises(TraceUnavailableError, match="the process is traced already"):
            record_attached(running.pid, for_s=1)
        over.set()
        first.join()
        assert leaked(traces[0]) >= 1
        assert running.says_that_it_is_fine()


def test_no_such_process_and_this_one() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(InputError, match=f"expected the number of a running process, got {ended.pid}"):
        record_attached(ended.pid)  # it waits for its parent
    ended.wait()
    for pid in (ended.pid, 0, -1):
        with pytest.raises(InputError, match="expected the number of a running process"):
            record_attached(pid)
    with pytest.raises(InputError, match="use hold.Tracer"):
        record_attached(os.getpid())


def test_without_gdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TraceUnavailableError, match="attaching needs gdb, which is not on PATH; install it"):
        record_attached(os.getppid())


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_NATIVE", "0")
    with pytest.raises(TraceUnavailableError, match="attaching needs the tracing library"):
        record_attached(os.getppid())


def built(source: str, folder: Path, *options: str) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (folder / "a.c").write_text(source)
    subprocess.run([compiler, *options, "-o", folder / "a.out", folder / "a.c"], check=True)
    return str(folder / "a.out")


SAYS_READY = '#include <unistd.h>\nint main(void) { write(1, "ready\\n", 6); '


def test_a_static_program(tmp_path: Path) -> None:
    running = Child(tmp_path, [built(SAYS_READY + "pause(); }", tmp_path, "-static")])
    try:
        with pytest.raises(TraceUnavailableError, match="statically linked: no library can be loaded into it"):
            record_attached(running.pid)
    finally:
        running.end()


def test_a_program_that_is_not_python(tmp_path: Path) -> None:
    waits = "for (;;) { usleep(1000); close(dup(0)); } }"
    for body, works in ((waits, True), ("for (volatile int i = 0;; i++) { } }", False)):
        running = Child(tmp_path, [built(SAYS_READY + body, tmp_path)])
        try:
            if works:
                assert sum(record_attached(running.pid, for_s=0.2).counts["born"]) > 10
            else:
                with pytest.raises(TraceUnavailableError, match="it is busy and runs no Python"):
                    record_attached(running.pid)
            assert running.process.poll() is None
        finally:
            running.end()


def test_python_that_never_leaves_a_call_into_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up, and neither a breakpoint nor a signal is left in the process."""
    script = Path(record_attached.__code__.co_filename).with_name("attach_gdb.py").read_text()
    assert "_WAITS_S = 10" in script
    quick = tmp_path / "attach_gdb.py"
    quick.write_text(script.replace("_WAITS_S = 10", "_WAITS_S = 1"))
    monkeypatch.setattr("holdfast.process.fdtrace.attach.Path.with_name", lambda path, name: quick)
    spin = built("#include <unistd.h>\nvoid spin(char *p) { while (access(p, 0)) { } }", tmp_path, "-shared", "-fPIC")
    code = (
        "import ctypes, sys\nspin = ctypes.PyDLL(sys.argv[1]).spin  # keeps the GIL\nprint('ready', flush=True)\n"
        "spin(sys.argv[2].encode())\nassert callable(spin)\nprint('fine True')"
    )
    running = Child(tmp_path, [sys.executable, "-c", code, spin, str(tmp_path / "stop")])
    try:
        with pytest.raises(TraceUnavailableError, match="it ran no Python code for 1 s"):
            record_attached(running.pid, for_s=0.1)
        assert running.says_that_it_is_fine()
    finally:
        running.end()


def attach_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", "trace", *arguments]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_recording_only(tmp_path: Path, number: signal.Signals) -> None:
    output = tmp_path / "run.hft"
    with child(tmp_path) as running:
        with subprocess.Popen(
            attach_command("--attach", str(running.pid), "-o", str(output)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as command:
            wait_for(
                lambda: (
                    records(running.pid) and not Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text()
                )
            )
            command.send_signal(number)
            out, err = command.communicate(timeout=30)
        assert (command.returncode, out) == (0, ""), err
        assert "saved" in err
        assert leaked(load(output)) >= 1
        assert running.says_that_it_is_fine()


def records(pid: int) -> bool:
    """Returns whether the log of a process has a descriptor that it has opened."""
    return any(
        sum(read_image(log).counters["born"]) for log in Path("/dev/shm").glob(f"holdfast-trace-*/fd.{pid}.*.log")
    )


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
NOBODY = 65534


@pytest.fixture
def readable_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of the library that every user can read, wherever holdfast is installed."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        copy = Path(shutil.copy(LIBRARY, folder))
        for module in (attach, recording):
            monkeypatch.setattr(module, "LIBRARY", copy)
        yield


@as_root
@pytest.mark.usefixtures("readable_library")
def test_root_traces_the_process_of_another_user(tmp_path: Path) -> None:
    # Debian's Python: one in the home of a user might be closed to others.
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    with child(tmp_path, python=python, user=NOBODY, group=NOBODY, cwd="/") as running:
        assert leaked(record_attached(running.pid, TraceOptions(owners=False), for_s=0.3)) >= 1


@as_root
@pytest.mark.usefixtures("readable_library")
def test_the_process_of_another_user_is_a_clear_error() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            record_attached(os.getppid())
        except BaseException as error:  # noqa: BLE001 - told to the parent
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as said:
        error = said.read()
    os.waitpid(pid, 0)
    expected = f"TraceUnavailableError: cannot attach to process {os.getpid()}: Permission denied; run as its"
    assert error.startswith(expected), error


# Waits until the tracer has made its log, and then puts links and pipes beside it that lead to a file of root.
PLANTS = """
import os, sys, time
secret, stop = sys.argv[1:]
kept = []
print("ready", flush=True)
def logs():
    try:
        maps = open("/proc/self/maps").read().split()
    except OSError:
        return []
    return [word for word in maps if "/fd." in word and word.endswith(".log")]
while not (found := logs()): time.sleep(0.01)
folder = os.path.dirname(found[0])
for place in (f"{folder}/fd.1.1.log", f"{found[0]}.maps", f"{folder}/owners.1.json"): os.symlink(secret, place)
os.mkfifo(f"{folder}/fd.2.2.log")
os.mkfifo(f"{folder}/owners.2.json")
os.mkdir(f"{folder}/fd.3.3.log")
open(f"{folder}/lost.1.99999999999999999999", "w").close()
compiled = compile("def leak():\\n  kept.append(os.dup(0))", f"{folder}/owners.2.json", "exec")
exec(compiled)
open(f"{folder}/planted", "w").close()
while not os.path.exists(stop): leak(); time.sleep(0.01)
print("fine True", flush=True)
"""


@as_root
@pytest.mark.usefixtures("readable_library")
def test_what_the_user_of_the_process_puts_into_the_folder_harms_nobody(tmp_path: Path) -> None:
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(1024))
    secret.chmod(0o600)
    running = Child(
        tmp_path, [python, "-c", PLANTS, str(secret), str(tmp_path / "stop")], user=NOBODY, group=NOBODY, cwd="/"
    )
    folders: set[Path] = set()

    def is_over() -> bool:
        folders.update(path.parent for path in Path("/dev/shm").glob("holdfast-trace-*/logs/planted"))
        return bool(folders)

    done: list[Trace] = []
    tracer = threading.Thread(
        target=lambda: done.append(record_attached(running.pid, TraceOptions(native=True), is_over=is_over)),
        daemon=True,
    )
    tracer.start()
    tracer.join(60)
    try:
        assert done, "the tracer hangs"
        assert secret.read_bytes() == bytes(1024)
        [process] = done[0].processes
        assert process.pid == running.pid
        left_out = sorted(line for line in done[0].warnings if "was left out" in line)
        assert [line.split()[2] for line in left_out] == ["fd.1.1.log", "fd.2.2.log", "fd.3.3.log"]
        assert not any(folder.exists() for folder in folders)
    finally:
        running.end()


def test_a_process_that_makes_nothing_is_attached_again_after_a_detach(tmp_path: Path) -> None:
    """It notices that a recording is over only when it makes a descriptor."""
    code = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
    running = Child(tmp_path, [sys.executable, "-c", code])
    try:
        for _ in range(2):
            [process] = record_attached(running.pid, for_s=0.01).processes
            assert process.pid == running.pid
    finally:
        running.end()


def test_a_process_is_attached_again_after_its_tracer_was_killed(tmp_path: Path) -> None:
    with child(tmp_path) as running:
        with subprocess.Popen(
            attach_command("--attach", str(running.pid), "-o", str(tmp_path / "lost.hft")), stderr=subprocess.DEVNULL
        ) as command:
            wait_for(lambda: ".log" in Path(f"/proc/{running.pid}/maps").read_text())
            with pytest.raises(TraceUnavailableError, match="the process is traced already"):
                record_attached(running.pid, for_s=0.1)
            command.kill()
        trace = record_attached(running.pid, for_s=0.3)
        assert leaked(trace) >= 1
        assert running.says_that_it_is_fine()


def test_a_process_without_a_free_descriptor(tmp_path: Path) -> None:
    """Its limit is raised while the library is loaded, and is as before when it is recorded."""
    code = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
kept = []
def leak():
    try:
        kept.append(os.dup(0))
    except OSError:
        time.sleep(0.01)
for _ in range(100): leak()
print("ready", flush=True)
while True: leak()
"""
    may_raise = bool(int(read_status(REAL, os.getpid())["CapEff"], 16) >> 24 & 1)  # CAP_SYS_RESOURCE
    for hard in (4096, 64):
        running = Child(tmp_path, [sys.executable, "-c", code, str(hard)])
        try:
            if hard == 64 and not may_raise:
                with pytest.raises(TraceUnavailableError, match="Too many open files; its hard limit leaves no room"):
                    record_attached(running.pid, for_s=0.3)
                continue
            trace = record_attached(running.pid, for_s=0.3)
            [failed] = Statistics(trace).failed
            assert (failed.frame.function, failed.error) == ("leak", "EMFILE")
        finally:
            assert resource.prlimit(running.pid, resource.RLIMIT_NOFILE) == (64, hard)
            running.end()
