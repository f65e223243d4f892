"""The library does no harm: no crash in a signal handler, no lock that a fork leaves held, no broken select()."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.process.fdtrace.log_format import BIRTH, NO_REUSE
from traced_process import LIBRARY, as_array, interpreters, live_numbers, needs_library, run

pytestmark = [needs_library, pytest.mark.needs("gcc")]


def build(folder: Path, source: str, *, program: bool = False) -> Path:
    """Compile C code into a library, or a program."""
    folder.mkdir(exist_ok=True)
    (folder / "code.c").write_text(source)
    kind = [] if program else ["-shared", "-fPIC"]
    subprocess.run(["gcc", "-O1", *kind, "-o", folder / "code", folder / "code.c"], check=True, timeout=60)
    return folder / "code"


# The next signal comes 20 µs after the handler has ended, wherever the interpreter then is.
HANDLER = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
volatile long handled;
static timer_t timer;
static const struct itimerspec soon = {{0, 0}, {0, 20000}};
static void handler(int number) {
    (void)number;
    close(open("/dev/null", O_RDONLY));
    handled++;
    timer_settime(timer, 0, &soon, 0);
}
void start(int own_stack) {
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    if (own_stack)
        sigaltstack(&stack, 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | (own_stack ? SA_ONSTACK : 0)};
    sigaction(SIGPROF, &action, 0);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF};
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &soon, 0);
}
"""
INTERRUPTED = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
handled = ctypes.c_long.in_dll(library, "handled")
def leaf(x): return x
class Box:
    def __init__(self, x): self.x = leaf(x)
    def __eq__(self, other): return leaf(self.x) == leaf(other.x)
def generate(n):
    for i in range(n): yield leaf(i)
def work():
    for i in range(100):
        list(map(leaf, range(5)))
        sorted([Box(1), Box(2)], key=lambda box: leaf(box.x))
        Box(1) == Box(2)
        sum(generate(5))
        exec(compile("def f(a):\\n  return leaf(a)\\nmax([1, 2], key=f)", "<x>", "exec"), {"leaf": leaf})
library.start(int(sys.argv[2]))
while handled.value < 15000: work()
os._exit(0)
"""


@pytest.mark.parametrize("own_stack", ["0", "1"])
def test_a_c_signal_handler_that_opens_a_file_while_python_runs(tmp_path: Path, own_stack: str) -> None:
    library = build(tmp_path / "c", HANDLER)
    for version, python in interpreters().items():
        recording, _ = run([python, "-c", INTERRUPTED, library, own_stack], tmp_path / version)
        image = recording.image()
        births = as_array(image.events, action=BIRTH)
        stacks = [recording.frames(image, event) for event in births[-2000:]]
        # Most signals come while Python code runs, and its frames are read there as well.
        assert sum(any(frame.function == "work" for frame in stack) for stack in stacks) > 1000, version


# A thread that holds the lock of the dynamic loader, as one does in dlopen or while a C++ exception is thrown.
LOADER_LOCK = r"""
#define _GNU_SOURCE
#include <link.h>
#include <unistd.h>
static int hold(struct dl_phdr_info *info, size_t size, void *pipes) {
    (void)info, (void)size;
    int *fds = pipes;
    char byte = 1;
    return write(fds[0], &byte, 1) != 1 || read(fds[1], &byte, 1) != 1 || 1;
}
void hold_lock(int say, int wait) {
    int fds[2] = {say, wait};
    dl_iterate_phdr(hold, fds);
}
"""


def test_a_child_opens_files_though_another_thread_held_the_loaders_lock_at_the_fork(tmp_path: Path) -> None:
    code = """
import ctypes, os, signal, sys, threading, time
library, holder = map(ctypes.CDLL, sys.argv[1:3])
said, say = os.pipe()
waits, go = os.pipe()
assert library.hf_trace_attach(sys.argv[3].encode(), 0, 0) == 0
thread = threading.Thread(target=holder.hold_lock, args=(say, waits))
thread.start()
os.read(said, 1)
for turn in range(3):
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        for again in range(3):
            time.sleep(0.025)
            os.close(os.open("/dev/null", 0))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "the child hung"
os.write(go, b"x")
thread.join()
"""
    holder = build(tmp_path / "c", LOADER_LOCK)
    logs = tmp_path / "logs"
    logs.mkdir()
    subprocess.run([sys.executable, "-c", code, LIBRARY, holder, logs], check=True, timeout=120)


def test_no_fork_begins_while_a_tracer_starts(tmp_path: Path) -> None:
    code = """
import _ctypes, ctypes, glob, os, signal, sys, sysconfig, threading, time, warnings
warnings.simplefilter("ignore")
library = ctypes.CDLL(sys.argv[1])
paths = glob.glob(sysconfig.get_path("stdlib") + "/lib-dynload/*.so")[:6]
stop = False
def start_and_stop():
    while not stop:
        assert library.hf_trace_attach(sys.argv[2].encode(), 0, 0) == 0
        library.hf_trace_stop()
def load():
    while not stop:
        for path in paths: _ctypes.dlclose(_ctypes.dlopen(path, os.RTLD_NOW))
        time.sleep(0.002)
threads = [threading.Thread(target=target) for target in (start_and_stop, load)]
for thread in threads: thread.start()
hung = 0
for turn in range(60):
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        for path in paths: os.close(os.open(path, 0)), _ctypes.dlclose(_ctypes.dlopen(path, os.RTLD_NOW))
        os._exit(0)
    hung += os.waitpid(pid, 0)[1] != 0
    if hung: break
stop = True
for thread in threads: thread.join()
assert not hung
"""
    logs = tmp_path / "logs"
    logs.mkdir()
    subprocess.run([sys.executable, "-c", code, LIBRARY, logs], check=True, timeout=120)


CLONES = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static char stack[65536] __attribute__((aligned(16))), own[65536] __attribute__((aligned(64)));
static int child(void *fds) {
    for (int i = 0; i < 5; i++)
        close(((int *)fds)[i]);
    return 0;
}
int main(void) {
    int fds[5], status, flags[] = {CLONE_VFORK, 0, CLONE_VFORK | CLONE_SETTLS};
    for (int i = 0; i < 5; i++)
        fds[i] = open("/dev/null", O_RDONLY);
    char *thread_memory = own + 32768; // is found through its own address
    *(void **)thread_memory = *(void **)(thread_memory + 16) = thread_memory;
    for (int i = 0; i < 3; i++) {
        pid_t pid = clone(child, stack + sizeof stack, CLONE_VM | SIGCHLD | flags[i], fds, NULL, thread_memory);
        close(open("/dev/null", O_RDONLY));
        if (waitpid(pid, &status, 0) != pid || status)
            return 1;
    }
    for (int i = 0; i < 5; i++)
        printf("%d ", fds[i]);
    return 0;
}
"""


def test_what_a_child_that_shares_the_memory_closes_stays_open_in_its_parent(tmp_path: Path) -> None:
    recording, output = run([build(tmp_path / "c", CLONES, program=True)], tmp_path / "logs")
    image = recording.image()
    assert {int(word) for word in output.split()} <= live_numbers(image)
    assert image.header.end_kind == 1
    assert not image.header.counts["close_unseen"] | image.header.counts["birth_unseen"]


def test_without_reuse_numbers_stay_below_what_select_can_take(tmp_path: Path) -> None:
    code = """
import json, os, resource, select
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
seen = []
for turn in range(1500):
    fd = os.open("/dev/null", 0)
    seen.append(fd)
    select.select([fd], [], [], 0)
    os.close(fd)
kept = [os.open("/dev/null", 0) for _ in range(1300)]  # more than there are numbers
print(json.dumps([seen, kept]))
for fd in kept: os.close(fd)
"""
    recording, output = run([sys.executable, "-c", code], tmp_path, options=NO_REUSE)
    seen, kept = json.loads(output)
    assert max(seen) < 1024
    assert len(set(seen[:900])) == 900
    assert len(set(kept)) == 1300
    assert live_numbers(recording.image()) == {0, 1, 2}
