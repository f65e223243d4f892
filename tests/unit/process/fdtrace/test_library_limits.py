"""A program goes on unharmed where its log cannot: full and missing file systems, limits, and tables that overflow."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from holdfast.process.fdtrace.image import Image
from holdfast.process.fdtrace.log_format import BIRTH, CLOSE, FAIL, LIVE, NATIVE, NO_REUSE
from traced_process import Recording, as_array, assert_adds_up, environment, live_numbers, needs_library, read, run

pytestmark = needs_library


def python(code: str, folder: Path, *arguments: str, **more: object) -> tuple[Recording, str]:
    return run([sys.executable, "-c", code, *arguments], folder, **more)  # type: ignore[arg-type]


def _births(recording: Recording, image: Image, function: str) -> list[np.void]:
    """Return the births whose innermost frame is of a function."""
    births = as_array(image.events, action=BIRTH)
    return [event for event in births if (stack := recording.frames(image, event)) and stack[0].function == function]


@pytest.mark.needs("unshare", "mount")
def test_a_full_file_system_stops_the_recording_and_not_the_program(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system of 1 MB")
    code = """
import os, sys, threading
def work(out):
    total = 0
    for turn in range(15000):
        r, w = os.pipe()
        os.write(w, b"x")
        total += len(os.read(r, 1))
        os.close(r); os.close(w)
    out.append(total)
out = []
threads = [threading.Thread(target=work, args=(out,)) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for turn in range(3):
    pid = os.fork()
    if not pid: os.close(os.open("/dev/null", 0)); os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
print(out)
"""
    logs, kept = tmp_path / "logs", tmp_path / "kept"
    logs.mkdir()
    # The small file system is this process tree's alone; the logs are copied out of it.
    script = f'mount -t tmpfs -o size=1m tmpfs {logs} && "$@"; status=$?; cp -r {logs} {kept}; exit $status'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", "env", *_assignments(logs), sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[15000, 15000, 15000]\n", "")
    image = read(kept).image()
    assert image.header.stopped == errno.ENOSPC
    assert image.header.ring_head > 1000  # what fitted was kept


def _assignments(folder: Path) -> list[str]:
    ours = environment(folder)
    return [f"{name}={ours[name]}" for name in ours if name == "LD_PRELOAD" or name.startswith("HOLDFAST_FDTRACE")]


def test_calls_that_fail_for_want_of_descriptors_are_recorded(tmp_path: Path) -> None:
    code = """
import os, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
def fill(): return os.open("/dev/null", 0)
kept = []
try:
    while True: kept.append(fill())
except OSError as error:
    print(error.errno, len(kept))
def make_socket(): return socket.socket()
for failing in (make_socket, os.pipe, lambda: os.dup(0)):
    try:
        failing()
    except OSError as error:
        print(error.errno)
pid = os.fork()
if not pid: os._exit(0)
os.waitpid(pid, 0)
os.close(kept.pop())
fill()
"""
    recording, output = python(code, tmp_path)
    first, *others = output.split("\n")
    assert first.split()[0] == "24"
    assert others == ["24"] * 3 + [""]
    image = recording.image()
    failed = as_array(image.events, action=FAIL)
    assert [recording.frames(image, event)[0].function for event in failed][:2] == ["fill", "socket.__init__"]
    assert [image.header.calls[event["aux"]] for event in failed] == ["open64", "socket", "pipe2", "fcntl64"]
    assert set(failed["error"]) == {errno.EMFILE}
    assert image.header.counts["failed"] == 4
    assert image.header.counts["lost_children"] == 1
    assert len(_births(recording, image, "fill")) == int(first.split()[1]) + 1


def test_a_small_limit_of_file_sizes_leaves_the_program_alone(tmp_path: Path) -> None:
    code = "import os; os.close(os.dup(0)); print('done')"
    command = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", sys.executable, "-c", code]
    recording, output = run(command, tmp_path)
    assert output == "done\n"
    assert all(image.header.exe.endswith("sh") for image in recording.images.values())  # before the limit
    assert [path.name.split(".")[2] for path in tmp_path.glob("lost.*")] == [str(errno.EFBIG)]


def test_a_folder_that_is_removed_loses_the_children_and_nothing_else(tmp_path: Path) -> None:
    code = """
import os, shutil, sys, subprocess
shutil.rmtree(sys.argv[1])
for turn in range(3000): os.close(os.open("/dev/null", 0))
pid = os.fork()
if not pid:
    os.close(os.open("/dev/null", 0)); os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(subprocess.check_output(["echo", "done"], text=True).strip())
"""
    _, output = python(code, tmp_path / "logs", str(tmp_path / "logs"))
    assert output == "done\n"
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("folder", ["/proc", "/nonexistent/folder", "/dev/null", "x" * 600])
def test_a_folder_that_cannot_be_written_leaves_the_program_alone(tmp_path: Path, folder: str) -> None:
    code = "import os; os.close(os.dup(0)); print('done')"
    ours = {**environment(tmp_path), "HOLDFAST_FDTRACE_DIR": folder}
    done = subprocess.run([sys.executable, "-c", code], env=ours, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_live_descriptors_outlast_the_ring(tmp_path: Path) -> None:
    code = """
import os
def first(): return os.open("/dev/null", 0)
kept = [first() for _ in range(9)]
def churn():
    for turn in range(20000): os.close(os.open("/dev/null", 0))
churn()
"""
    recording, _ = python(code, tmp_path)
    image = recording.image()
    assert image.dropped_events > 5000
    assert len(image.events) == image.header.ring_events
    assert np.all(np.diff(as_array(image.events)["t_ns"].astype(np.int64)) >= 0)
    assert not _births(recording, image, "first")
    live = as_array(image.entries)[as_array(image.entries)["flags"] & LIVE > 0]
    assert (
        sum(bool(frames) and frames[0].function == "first" for frames in (recording.frames(image, e) for e in live))
        == 9
    )
    assert_adds_up(image)
    # Python rewrites a call that ran often to another instruction, so one line may have two stacks.
    churned = [c for c in as_array(image.counters) if (f := recording.frames(image, c)) and f[0].function == "churn"]
    assert (
        sum(int(counter["born"]) for counter in churned) == sum(int(counter["closed"]) for counter in churned) == 20000
    )


def test_code_made_by_exec_without_end_keeps_the_line_that_ran_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import os
kept = []
def run_generated(turn):
    code = f"def f{turn}():\\n  kept.append(os.open('/dev/null', 0))\\nf{turn}()"
    exec(compile(code, f"<generated {turn}>", "exec"), {"os": os, "kept": kept})
def after(): return os.open("/dev/null", 0)
for turn in range(20000):
    run_generated(turn)
    os.close(kept.pop())
os.close(after())
os._exit(0)
""")
    recording, _ = run([sys.executable, script], tmp_path / "logs")
    image = recording.image()
    assert image.header.counts["lost_stacks"] == 0
    births = as_array(image.events, action=BIRTH)
    last = [recording.stacks.resolve(image, int(event["stack"])) for event in births[-2:]]
    assert [stack.frames[0].function for stack in last] == ["run_generated", "after"]
    assert [stack.is_cut for stack in last] == [True, False]
    assert image.header.live == len(live_numbers(image)) == 3
    assert sum(image.counters["live"]) == 0


def test_a_leak_has_its_line_when_the_tables_of_stacks_and_code_are_full(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text(
        "import os\ndef deep(n):\n  return deep(n - 1) if n else os.open('/dev/null', 0)\n"
    )
    script = tmp_path / "script.py"
    script.write_text("""
import os, sys
sys.path.insert(0, sys.argv[1])
import library
def a(path): b(path) if path else os.close(os.open("/dev/null", 0))
def b(path): (a if path & 1 else c)(path >> 1)
def c(path): (b if path & 1 else a)(path >> 1)
for path in range(1 << 15, (1 << 15) + 32000): b(path)  # a stack each, and one for the close
line = "os.close(os.dup(0))"
code = compile(line, "/some/file.py", "exec")
for turn in range(32000): exec(code.replace(co_filename=f"/some/{turn}.py"), {"os": os})
def leak(): return library.deep(30)
kept = [leak() for _ in range(50)]
os._exit(0)
""")
    recording, _ = run([sys.executable, script, packages], tmp_path / "logs")
    image = recording.image()
    assert image.header.counts["lost_stacks"] == 0
    assert image.header.counts["short_stacks"] > 10_000
    live = as_array(image.entries, flags=LIVE)
    stacks = {recording.stacks.resolve(image, int(entry["stack"])) for entry in live}
    assert len(live) == 50
    assert [[frame.function for frame in stack.frames] for stack in stacks] == [["deep", "leak"]]
    assert [stack.is_cut for stack in stacks] == [True]
    log = next((tmp_path / "logs").glob("fd.*.log"))
    assert log.stat().st_blocks * 512 < 60_000_000


def test_high_numbers_are_recorded(tmp_path: Path) -> None:
    high = min(100_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 1)
    code = f"""
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({high} + 1, {high} + 1))
def high(number): return os.dup2(0, number)
for number in ({high}, {high} - 1, {high} - 300): high(number)
os.close({high} - 300)
os.closerange({high} - 1, {high})
"""
    recording, _ = python(code, tmp_path)
    image = recording.image()
    assert live_numbers(image) == {0, 1, 2, high}
    assert_adds_up(image)


def test_numbers_beyond_the_table_are_counted(tmp_path: Path) -> None:
    code = """
import os, resource, sys
if len(sys.argv) == 2:  # the table has the size of the limit at the start of an image
    os.dup2(0, 900)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], "", ""])
os.close(900)
os.close(os.dup(0))
"""
    recording, _ = python(code, tmp_path, code)
    last = max(recording.images.values(), key=lambda image: image.header.start_ns)
    assert last.header.counts["beyond"] == 1
    assert live_numbers(last) == {0, 1, 2}
    assert_adds_up(last)


def test_without_reuse_every_number_is_new_and_works(tmp_path: Path) -> None:
    code = """
import fcntl, json, os, resource, select, socket, subprocess
resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))
seen = []
for turn in range(100):
    fd = os.open("/dev/null", os.O_CLOEXEC); seen.append(fd)
    assert fcntl.fcntl(fd, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
    os.close(fd)
r, w = os.pipe(); os.write(w, b"x"); assert os.read(r, 1) == b"x"
a, b = socket.socketpair(); socket.send_fds(a, [b"x"], [r]); received = socket.recv_fds(b, 1, 1)[1][0]
assert os.fstat(received).st_ino == os.fstat(r).st_ino
assert select.select([r], [w], [], 0) == ([], [w], [])
assert fcntl.fcntl(0, fcntl.F_DUPFD, 500) >= 500
assert os.dup2(0, 30) == 30
assert subprocess.check_output(["echo", "x"]) == b"x\\n"
inherited = os.open("/dev/null", 0); os.set_inheritable(inherited, True)
subprocess.run(["test", "-e", f"/proc/self/fd/{inherited}"], close_fds=False, check=True)
for turn in range(2000): os.close(os.open("/dev/null", 0))  # the numbers run out and begin again
kept = []
try:
    while True: kept.append(os.open("/dev/null", 0))
except OSError as error:
    assert error.errno == 24
for fd in kept: os.close(fd)
print(json.dumps([os.getpid(), seen]))
"""
    recording, output = python(code, tmp_path, options=NO_REUSE)
    pid, seen = json.loads(output)
    assert len(set(seen)) == 100
    image = recording.image(pid)
    assert_adds_up(image)
    assert not image.header.counts["close_unseen"] | image.header.counts["birth_unseen"] | image.header.counts["bad"]


def test_stacks_are_taken_only_above_the_number_that_arms_them(tmp_path: Path) -> None:
    code = "import os\ndef leak(): return os.open('/dev/null', 0)\nkept = [leak() for _ in range(100)]\n"
    recording, _ = python(code, tmp_path, extra={"HOLDFAST_FDTRACE_ARM_ABOVE": "50"})
    image = recording.image()
    assert len(_births(recording, image, "leak")) in range(45, 55)
    assert_adds_up(image)
    closes = as_array(image.events, action=CLOSE)
    assert not np.any(closes["stack"])


def test_native_stacks_name_the_c_functions_by_address(tmp_path: Path) -> None:
    recording, _ = python("import os\ndef leak(): os.open('/dev/null', 0)\nleak()", tmp_path, options=NATIVE)
    image = recording.image()
    (event,) = _births(recording, image, "leak")
    stack = recording.stacks.resolve(image, int(event["stack"]))
    assert len(stack.addresses) > 4
    maps = next(tmp_path.glob("fd.*.log.maps")).read_text().splitlines()
    ranges = [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in maps if "r-xp" in line]
    assert all(any(first <= address < last for first, last in ranges) for address in stack.addresses)


def test_a_log_is_of_its_owner_alone_and_sparse(tmp_path: Path) -> None:
    python("import os; os.dup(0)", tmp_path)
    (log,) = tmp_path.glob("fd.*.log")
    assert log.stat().st_mode & 0o777 == 0o600
    if shutil.which("df") and log.stat().st_blocks:
        assert log.stat().st_blocks * 512 < 600_000
