"""What the log holds of programs with threads and children, however these begin and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from holdfast.process.fdtrace.log_format import INHERITED, LIVE, TIME_HOOKS
from traced_process import Recording, as_array, assert_adds_up, environment, live_numbers, needs_library, read, run

pytestmark = needs_library


def python(code: str, folder: Path, *arguments: str, **more: object) -> tuple[Recording, str]:
    return run([sys.executable, "-c", code, *arguments], folder, **more)  # type: ignore[arg-type]


OPEN_NUMBERS = """
def open_numbers():
    found = []
    for number in range(3000):
        try:
            fcntl.fcntl(number, fcntl.F_GETFD)
        except OSError:
            continue
        found.append(number)
    return found
"""

CHURN = (
    """
import fcntl, json, os, random, socket, subprocess, sys, tempfile, threading
"""
    + OPEN_NUMBERS
    + """
kept, lock = [], threading.Lock()
def work(seed):
    choose = random.Random(seed)
    for turn in range(80):
        what = choose.randrange(6)
        if what == 0:
            new = [os.open("/dev/null", 0)]
        elif what == 1:
            new = list(os.pipe())
        elif what == 2:
            a, b = socket.socketpair()
            new = [a.detach(), b.detach()]
        elif what == 3:
            new = [os.dup(0)]
        elif what == 4:
            assert subprocess.run(["true"], capture_output=bool(turn % 2)).returncode == 0
            continue
        else:
            with tempfile.TemporaryFile() as file:
                file.write(b"x")
            continue
        with lock:
            kept.extend(new)
            gone = [kept.pop(choose.randrange(len(kept))) for _ in range(min(len(kept), choose.randrange(3)))]
        for fd in gone:
            os.close(fd)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([os.getpid(), open_numbers()]), flush=True)
os._exit(0)
"""
)


def test_the_table_equals_the_kernels_after_threads_and_subprocesses(tmp_path: Path) -> None:
    recording, output = python(CHURN, tmp_path)
    pid, numbers = json.loads(output)
    image = recording.image(pid)
    assert live_numbers(image) == set(numbers)
    assert_adds_up(image)
    counts = image.header.counts
    assert not counts["close_unseen"] | counts["birth_unseen"] | counts["bad"]
    assert not recording.problems


def test_every_child_of_a_fork_continues_the_table_of_its_parent(tmp_path: Path) -> None:
    code = f"""
import fcntl, json, os, sys
{OPEN_NUMBERS}
def born_in_parent(): return os.open("/dev/null", 0)
def born_in_child(): return os.open("/dev/null", 0)
def report(): print(json.dumps([os.getpid(), open_numbers()]), flush=True)
kept = [born_in_parent() for _ in range(5)]
if os.fork() == 0:
    os.close(kept[0])
    own = born_in_child()
    os.close(kept[1])
    if os.fork() == 0:
        os.close(own)
        report()
        os._exit(0)
    os.wait()
    report()
    os._exit(0)
os.wait()
report()
"""
    recording, output = python(code, tmp_path)
    reports = dict(map(json.loads, output.splitlines()))
    assert len(reports) == 3
    grandchild, child, parent = map(recording.image, reports)
    for image in (grandchild, child, parent):
        assert live_numbers(image) == set(reports[image.header.pid])
        assert_adds_up(image)
    assert (grandchild.header.parent, child.header.parent, parent.header.parent) == (child.key, parent.key, None)

    def functions(image: object) -> list[str]:
        live = as_array(image.entries)[as_array(image.entries)["flags"] & LIVE > 0][3:]  # type: ignore[attr-defined]
        return [recording.frames(image, entry)[0].function for entry in live]  # type: ignore[arg-type]

    assert functions(parent) == ["born_in_parent"] * 5
    assert functions(child) == ["born_in_child", *["born_in_parent"] * 3]  # the number of the one that it closed first
    assert functions(grandchild) == ["born_in_parent"] * 3
    inherited = as_array(child.counters)[as_array(child.counters)["inherited_closed"] > 0]
    assert int(inherited["inherited_closed"].sum()) == 2
    assert np.all(as_array(parent.entries)["flags"] & (LIVE | INHERITED) != LIVE | INHERITED)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing_are_recorded(tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import multiprocessing, os
def leak(queue):
    queue.put((os.getpid(), [os.open("/dev/null", 0) for _ in range(7)]))
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    queue = context.SimpleQueue()
    workers = [context.Process(target=leak, args=(queue,)) for _ in range(2)]
    for worker in workers: worker.start()
    for worker in workers: print(*queue.get()[:1])
    for worker in workers: worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
""")
    recording, output = run([sys.executable, script], tmp_path / "logs")
    for pid in map(int, output.split()):
        image = recording.image(pid)
        leaked = [
            entry
            for entry in as_array(image.entries)[as_array(image.entries)["flags"] & LIVE > 0]
            if (frames := recording.frames(image, entry)) and any(frame.function.startswith("leak") for frame in frames)
        ]
        assert len(leaked) == 7
        assert image.header.end_kind in (1, 2)
    assert not recording.problems


def test_what_a_child_of_vfork_closes_stays_open_in_its_parent(tmp_path: Path) -> None:
    code = """
import os, subprocess, json
assert getattr(subprocess, "_USE_VFORK", True)
kept = [os.open("/dev/null", 0) for _ in range(20)]
for _ in range(20):
    subprocess.run(["true"], close_fds=True, check=True)
    try:
        subprocess.run(["/nonexistent"])
    except FileNotFoundError:
        pass
print(json.dumps([os.getpid(), kept]))
"""
    recording, output = python(code, tmp_path)
    pid, kept = json.loads(output)
    image = recording.image(pid)
    assert set(kept) <= live_numbers(image)
    assert image.header.end_kind == 1  # not the _exit of a child that could not call exec
    assert image.header.counts["close_unseen"] == image.header.counts["birth_unseen"] == 0


def test_an_exec_begins_a_new_image_with_what_it_inherits(tmp_path: Path) -> None:
    code = """
import os, sys
if len(sys.argv) < 3:
    passed, closed = os.dup(0), os.open("/dev/null", 0)
    os.set_inheritable(passed, True)
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], sys.argv[1], str(passed)])
print(os.getpid(), sys.argv[2])
"""
    recording, output = python(code, tmp_path, code)
    pid, passed = map(int, output.split())
    first, second = sorted(recording.images.values(), key=lambda image: image.header.start_ns)
    assert first.header.pid == second.header.pid == pid
    assert (first.header.end_ns, second.header.end_kind) == (0, 1)
    assert live_numbers(second) == {0, 1, 2, passed}
    assert second.header.command[-1] == str(passed)


@pytest.mark.parametrize("victim", ["child", "parent"])
def test_the_log_of_a_killed_process_holds_everything(tmp_path: Path, victim: str) -> None:
    code = r"""
import os, signal, sys
def leak(count): return [os.open("/dev/null", 0) for _ in range(count)]
kept = leak(11)
pid = os.fork()
if pid == 0:
    kept += leak(13)
    os.write(1, b"ready %d\n" % os.getpid())
    if sys.argv[1] == "child": os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
    os._exit(0)
os.write(1, b"parent %d\n" % os.getpid())
if sys.argv[1] == "parent":
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(pid, 0)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, victim], env=environment(tmp_path), stdin=-1, stdout=-1, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        lines = dict(process.stdout.readline().split() for _ in range(2))
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(30) == (0 if victim == "child" else -signal.SIGKILL)
        process.stdout.read()  # until the child has ended too
    recording = read(tmp_path)
    parent, child = recording.image(int(lines["parent"])), recording.image(int(lines["ready"]))
    for image, count in ((parent, 11), (child, 24)):
        live = as_array(image.entries)[as_array(image.entries)["flags"] & LIVE > 0]
        found = [recording.frames(image, entry) for entry in live]
        assert sum(any(frame.function.startswith("leak") for frame in frames) for frames in found) == count
        assert_adds_up(image)
    killed = child if victim == "child" else parent
    assert killed.header.end_ns == 0


def test_exits_with_daemon_threads_in_the_middle_of_calls(tmp_path: Path) -> None:
    code = """
import os, threading, sys
def work():
    while True:
        os.close(os.open("/dev/null", 0))
for _ in range(4): threading.Thread(target=work, daemon=True).start()
os.close(os.open("/dev/null", 0))
"""
    # -S -E: a start of Python is what the time goes into.
    end = time.monotonic() + 15
    done = 0
    running: list[subprocess.Popen[bytes]] = []
    while done < 300 and time.monotonic() < end:
        folder = tmp_path / str(done)
        folder.mkdir()
        running.append(subprocess.Popen([sys.executable, "-SEc", code], env=environment(folder), stderr=-1))
        done += 1
        if len(running) == 3:
            _check_end(running.pop(0))
    for process in running:
        _check_end(process)
    assert done >= 20
    for number in range(done):
        image = read(tmp_path / str(number)).image()
        assert image.header.end_kind == 1
        assert image.header.finalizing_ns or image.header.live <= 8


def _check_end(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")


def test_threads_that_call_exit_at_once_end_the_log_once(tmp_path: Path) -> None:
    code = """
import os, threading
def work(barrier):
    os.open("/dev/null", 0)
    barrier.wait()
    os._exit(3)
barrier = threading.Barrier(4)
for _ in range(4): threading.Thread(target=work, args=(barrier,)).start()
"""
    recording, _ = python(code, tmp_path, status=3)
    image = recording.image()
    assert image.header.end_kind == 2
    assert sum(any(f.function == "work" for f in recording.frames(image, e)) for e in as_array(image.events)) == 4


SIGNALS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int handled, forked;
static void handler(int number) {
    (void)number;
    int fd = open("/dev/null", O_RDONLY);
    int other = dup(fd);
    close(fd);
    close(other);
    if (++handled % 50 == 0) {
        pid_t pid = fork();
        if (!pid) {
            close(open("/dev/null", O_RDONLY));
            _exit(0);
        }
        waitpid(pid, 0, 0);
        forked++;
    }
}
int main(void) {
    signal(SIGALRM, handler);
    struct itimerval every = {{0, 50}, {0, 50}};
    setitimer(ITIMER_REAL, &every, 0);
    for (long i = 0; handled < 2000 && i < 5000000; i++) {
        close(open("/dev/null", O_RDONLY));
    }
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, 0);
    printf("%d %d\n", handled, forked);
    return 0;
}
"""


@pytest.mark.needs("gcc")
def test_a_signal_handler_that_opens_closes_and_forks_inside_a_hook(tmp_path: Path) -> None:
    (tmp_path / "signals.c").write_text(SIGNALS)
    subprocess.run(["gcc", "-O1", "-o", tmp_path / "signals", tmp_path / "signals.c"], check=True, timeout=60)
    recording, output = run([tmp_path / "signals"], tmp_path / "logs", options=TIME_HOOKS)
    handled, forked = map(int, output.split())
    assert handled >= 2000
    image = min(recording.images.values(), key=lambda image: image.header.start_ns)
    assert live_numbers(image) == {0, 1, 2}
    counts = image.header.counts
    assert not counts["close_unseen"] | counts["birth_unseen"] | counts["bad"] | counts["reentrant"]
    assert len(recording.images) == 1 + forked
    for child in recording.images.values():
        assert_adds_up(child)


CHILDREN = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static int fd;
static void child(int kind) {
    close(fd);
    int status = open("/dev/null", O_RDONLY) == fd ? 10 + kind : 1;
    if (kind == 1) {
        _exit(status);
    }
    syscall(SYS_exit_group, status);
}
int main(void) {
    fd = open("/dev/null", O_RDONLY);
    for (int kind = 0; kind < 3; kind++) {
        pid_t pid = vfork();
        if (!pid) {
            close(fd);
            _exit(3);
        }
        int status;
        waitpid(pid, &status, 0);
        // Neither of the first two runs what pthread_atfork has registered.
        pid = kind == 0 ? _Fork() : kind == 1 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        if (!pid) {
            child(kind);
        }
        waitpid(pid, &status, 0);
        printf("%d %d\n", pid, WEXITSTATUS(status));
    }
    printf("%d 0\n", getpid());
    return 0;
}
"""


@pytest.mark.needs("gcc")
def test_children_are_distinguished_from_their_parent_however_they_are_made(tmp_path: Path) -> None:
    (tmp_path / "children.c").write_text("#include <signal.h>\n" + CHILDREN)
    subprocess.run(["gcc", "-O1", "-o", tmp_path / "children", tmp_path / "children.c"], check=True, timeout=60)
    recording, output = run([tmp_path / "children"], tmp_path / "logs")
    *children, (pid, _) = [tuple(map(int, line.split())) for line in output.splitlines()]
    assert [status for _, status in children] == [10, 11, 12]
    parent = recording.image(pid)
    assert live_numbers(parent) == {0, 1, 2, 3}
    assert parent.header.end_kind == 1
    for child, _ in children:
        image = recording.image(child)
        assert image.header.parent == parent.key
        assert live_numbers(image) == {0, 1, 2, 3}
        assert sum(image.counters["born"]) == sum(image.counters["inherited_closed"]) == 1
        assert set(image.events["tid"]) == {child}


def test_a_thread_that_forks_while_others_open(tmp_path: Path) -> None:
    code = f"""
import fcntl, json, os, threading, warnings
warnings.simplefilter("ignore")
{OPEN_NUMBERS}
stop = False
def work():
    while not stop:
        fds = [os.open("/dev/null", 0) for _ in range(3)]
        for fd in fds: os.close(fd)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for turn in range(25):
    pid = os.fork()
    if not pid:
        os.close(os.open("/dev/null", 0))
        print(json.dumps([os.getpid(), open_numbers()]), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
for thread in threads: thread.join()
"""
    recording, output = python(code, tmp_path)
    for pid, numbers in map(json.loads, output.splitlines()):
        image = recording.image(pid)
        # A call that another thread had begun but not ended at the fork is open in the one and not in the other.
        assert len(live_numbers(image) ^ set(numbers)) <= 3
        assert image.header.live == len(live_numbers(image))
    parent = min(recording.images.values(), key=lambda image: image.header.start_ns)
    assert_adds_up(parent)
    assert os.path.basename(sys.executable) in parent.header.command[0]
