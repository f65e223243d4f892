"""The collector on real processes, round by round, with a clock that the tests move."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InputError
from holdfast.process.guard.heartbeat import read_heartbeat
from holdfast.process.watch.collector import WatchCollector
from holdfast.process.watch.documents import load_state
from holdfast.process.watch.finder import Selection
from holdfast.process.watch.probe import check_health, check_readiness
from holdfast.process.watch.state import EventState, StateDocument, TargetState
from holdfast.process.watch.store import Store
from holdfast.procfs.processes import Identity, read_stat
from holdfast.procfs.procfs import REAL

EVERY_S = 5.0

# Obeys lines on stdin: "leak N", "guard NAME", "ok", "fail N", "job N", "drain", "child", "spawn N", "exit".
WORKER = """
import os, subprocess, sys, time
keep, page, children = [], None, []
print("ready", flush=True)
for line in sys.stdin:
    word, _, value = line.strip().partition(" ")
    if word == "leak":
        for _ in range(int(value)):
            reader, writer = os.pipe()
            os.close(writer)
            keep.append(reader)
    elif word == "guard":
        from holdfast.process.guard.heartbeat import GuardState, HeartbeatPage
        page = HeartbeatPage(value)
        page.set(state=GuardState.RUNNING, fd_soft_cap=500, progress_timeout_ns=55 * 10**9)
    elif word == "ok":
        page.set(ok_ns=time.monotonic_ns(), ok_wall_ns=time.time_ns(), alive_ns=time.monotonic_ns(), ok_calls=1)
    elif word == "fail":
        page.set(fails_in_row=int(value), fails=int(value), fail_ns=time.monotonic_ns(), errno=24,
                 ok_ns=time.monotonic_ns() - 60 * 10**9)
        page.set_text("error", "Too many open files")
    elif word == "job":
        page.add_job(int(value), len(os.listdir("/proc/self/fd")))
        page.set(jobs_done=int(value))
    elif word == "drain":
        page.set(state=GuardState.DRAINING, drain_ns=time.monotonic_ns(), exit_code=75)
        page.set_text("reason", "max_jobs")
    elif word == "spawn":
        for _ in range(int(value)):
            children.append(subprocess.Popen(["sleep", "1000"]))
    elif word == "child":
        children.append(subprocess.Popen([sys.executable, "-c", open("/proc/self/cmdline").read().split("\\0")[2],
                                          "below"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        children[-1].stdout.readline()
    elif word == "below":
        children[-1].stdin.write(value + "\\n")
        children[-1].stdin.flush()
        children[-1].stdout.readline()
    elif word == "reap":
        children[-1].kill()
        children.pop().wait()
    print("done", flush=True)
if page is not None:
    page.close()
for child in children:
    child.kill()
    child.wait()
"""


class Worker:
    def __init__(self, name: str = "worker") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self._expect("ready")

    def tell(self, *lines: str) -> None:
        assert self.process.stdin
        for line in lines:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
            self._expect("done")

    def _expect(self, word: str) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline() == f"{word}\n"

    def end(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@contextmanager
def worker(name: str = "worker") -> Iterator[Worker]:
    made = Worker(name)
    try:
        yield made
    finally:
        if made.process.poll() is None and (seen := read_stat(REAL, made.pid)) and seen.state in "Tt":
            made.process.send_signal(signal.SIGCONT)
        made.end()


class Bench:
    """A collector whose clocks the test moves; nothing that it does costs time."""

    def __init__(self, selection: Selection, path: Path | None = None) -> None:
        self.now = time.monotonic()
        self.wall = time.time()
        self.collector = WatchCollector(
            selection,
            Store(path, EVERY_S, clock=lambda: self.wall),
            every_s=EVERY_S,
            clock=lambda: self.now,
            wall=lambda: self.wall,
            cost_clock=lambda: 0.0,
        )
        self.events: list[EventState] = []
        self.messages: list[EventState] = []

    def round(self, after_s: float = EVERY_S) -> list[EventState]:
        self.now += after_s
        self.wall += after_s
        new = self.collector.round()
        self.events += new
        self.messages += self.collector.messages
        return new

    def find(self) -> None:
        """Lets --name find a process, and see that it lives on."""
        self.round(20)
        self.round()

    @property
    def document(self) -> StateDocument:
        return self.collector.document()

    @property
    def target(self) -> TargetState:
        [one] = self.document["targets"]
        return one

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]


@contextmanager
def bench(*pids: int, path: Path | None = None, **selection: Any) -> Iterator[Bench]:
    made = Bench(Selection(pids=pids, **selection), path)
    try:
        yield made
    finally:
        made.collector.close()


def test_leak_is_reported_and_written(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    with worker() as victim, bench(victim.pid, path=path) as watch:
        watch.round()
        assert watch.target["verdict"] == "OK"
        assert watch.target["target"] == "python"
        for _ in range(60):
            victim.tell("leak 5")
            watch.round()
        found = watch.target
        assert found["verdict"] == "LEAK"
        assert found["dead_pipes"] is not None
        assert found["dead_pipes"]["read"] >= 250
        assert found["kinds"] is not None
        assert found["kinds"]["pipe"] >= 250
        assert found["growth_per_hour"] is not None
        assert found["growth_per_hour"][0] == pytest.approx(3600, rel=0.1)
        assert found["eta_s"] is not None
        assert found["trend"] is not None
        assert len(found["series"]["t"]) == 61
        assert found["series"]["fds"] == sorted(found["series"]["fds"])
        assert found["dead"]
        assert found["signature"]
        assert len(found["baseline"]["t"]) >= 8
        assert watch.kinds()[0] == "start"
        assert set(watch.kinds()[1:]) == {"verdict"}
        assert "LEAK: " in watch.events[-1]["text"]
        assert watch.document["sentence"].startswith("python leaks by 3,")
        recorded = load_state(path)  # while it is written to
        assert recorded["live"] is False
        assert recorded["verdict"] == "LEAK"
        assert recorded["targets"][0]["fds"] == found["fds"]
    recorded = load_state(path)
    assert recorded["targets"][0]["trend"] is not None
    assert recorded["sentence"].startswith("python leaks by 3,")


def test_restarted_watch_goes_on_with_the_trend(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    with worker() as victim:
        with bench(victim.pid, path=path) as first:
            for _ in range(40):
                victim.tell("leak 3")
                first.round()
            before = first.target
            since = first.document["since"]
        with bench(victim.pid, path=path) as second:
            second.now, second.wall = first.now, first.wall
            second.round()
            found = second.target
            assert (found["target"], found["verdict"]) == (before["target"], "LEAK")
            assert len(found["series"]["t"]) == 41
            assert found["growth_per_hour"] is not None
            assert second.document["since"] == since
            assert second.kinds() == ["start"]
            assert second.events[0]["text"] == f"pid {victim.pid} is watched again"


def test_ended_process_is_dead_and_keeps_its_last_state() -> None:
    with worker() as victim, bench(victim.pid) as watch:
        victim.tell("leak 300")
        watch.round()
        assert not watch.collector.is_over
        victim.end()
        watch.round()
        found = watch.target
        assert (found["alive"], found["verdict"]) == (False, "LEAK")
        assert found["fds"] is not None
        assert found["fds"] >= 300
        assert watch.kinds() == ["start", "verdict", "end"]
        assert watch.collector.is_over
        assert watch.document["sentence"] == "python has ended"
        watch.round()
        assert watch.kinds()[-1] == "end"


def test_no_such_process() -> None:
    with bench(4194300) as watch, pytest.raises(InputError, match="there is no process 4194300"):
        watch.round()


def test_name_waits_and_follows_replacements(tmp_path: Path) -> None:
    name = f"holdfast-test-{os.getpid()}"
    with bench(names=(name,), path=tmp_path / "watch.db") as watch:
        watch.round()
        assert watch.document["targets"] == []
        assert watch.document["sentence"] == "no process to watch yet"
        assert not watch.collector.is_over
        with worker(name) as first:
            watch.find()
            assert (watch.target["pid"], watch.target["source"]) == (first.pid, f"name:{name}")
        watch.round()
        assert not watch.target["alive"]
        with worker(name) as second:
            watch.round(20)
            assert (watch.target["pid"], watch.target["alive"]) == (second.pid, True)
            assert watch.target["restarts"] == {"unknown": 1}
            with worker(name) as third:
                watch.find()
                assert [one["target"] for one in watch.document["targets"]] == ["python", "python-2"]
                assert {one["pid"] for one in watch.document["targets"]} == {second.pid, third.pid}
        assert watch.kinds() == ["start", "end", "restart", "start"]
        watch.round()
        watch.round(7200)
        assert watch.document["targets"] == []  # ended processes of a name are shown for an hour


def test_more_processes_than_targets_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.process.watch.finder.MAX_TARGETS", 2)
    name = f"holdfast-test-{os.getpid()}"
    with bench(names=(name,)) as watch, worker(name), worker(name):
        with worker(name):
            watch.find()
            assert len(watch.document["targets"]) == 2
            assert watch.document["problems"] == [
                "only 128 processes are watched, more were found: use a longer --name"
            ]
        watch.round(20)
        watch.round(20)
        assert watch.document["problems"] == []


def test_label_is_given_to_all_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    with worker() as first, worker() as second:
        with bench(first.pid, second.pid, path=path, label="mine") as watch:
            watch.round()
            assert [one["target"] for one in watch.document["targets"]] == ["mine", "mine-2"]
        with bench(second.pid, path=path) as watch:
            watch.round()
            assert watch.target["target"] == "mine-2"


@pytest.mark.parametrize(
    "wrapper",
    [
        ["timeout", "600"],
        ["sh", "-c", '"$@"; true', "sh"],
        ["timeout", "600", "bash", "-c", '"$@"; true', "bash"],
        ["nice", "-n", "1", "env", "A=b", "setsid", "-w"],
        [sys.executable, "-m", "holdfast", "trace", "-q", "-o", "{folder}/x.hft", "--"],
    ],
)
def test_name_means_the_program_and_not_what_starts_it(wrapper: list[str], tmp_path: Path) -> None:
    name = f"holdfast-test-{os.getpid()}"
    (tmp_path / f"{name}.py").write_text("import sys\nprint('ready', flush=True)\nsys.stdin.read()\n")
    command = [*(word.format(folder=tmp_path) for word in wrapper), sys.executable, str(tmp_path / f"{name}.py")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with bench(names=(name,)) as watch, subprocess.Popen(command, **pipes) as started:
        assert started.stdout
        assert started.stdin
        try:
            assert started.stdout.readline() == "ready\n"
            watch.find()
            assert watch.target["target"] == f"{name}.py"
            assert watch.target["command"].startswith(sys.executable)
            assert " trace " not in watch.target["command"]
        finally:
            started.stdin.close()
            started.wait(60)


def test_shell_between_two_programs_is_no_target(tmp_path: Path) -> None:
    name = f"holdfast-test-{os.getpid()}"
    script = f'for n in 1 2; do {sys.executable} -c "{_READS_A_LINE}" {name}; echo between; read line; done'
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with bench(names=(name,)) as watch, subprocess.Popen(["bash", "-c", script], **pipes) as shell:
        assert shell.stdout
        assert shell.stdin

        def say_and_expect(word: str) -> None:
            shell.stdin.write("go\n")  # type: ignore[union-attr]
            shell.stdin.flush()  # type: ignore[union-attr]
            assert shell.stdout.readline() == f"{word}\n"  # type: ignore[union-attr]

        assert shell.stdout.readline() == "ready\n"
        watch.find()
        first = watch.target["pid"]
        assert first != shell.pid
        say_and_expect("between")
        watch.find()
        watch.find()
        assert (watch.target["pid"], watch.target["alive"]) == (first, False)
        say_and_expect("ready")
        watch.find()
        assert watch.target["alive"]
        assert watch.target["pid"] not in (first, shell.pid)
        assert watch.kinds() == ["start", "end", "restart"]
        shell.stdin.close()


_READS_A_LINE = "import os; print('ready', flush=True); os.read(0, 3)"


def test_short_lived_processes_are_no_targets() -> None:
    name = f"holdfast-test-{os.getpid()}"
    with bench(names=(name,)) as watch, worker(name):
        watch.find()
        for _ in range(5):
            with worker(f"{name} --helper"):
                watch.round(20)
            watch.round()
        assert watch.kinds() == ["start"]
        assert len(watch.document["targets"]) == 1


def test_what_a_process_leaves_behind_does_not_take_its_place() -> None:
    """A forked child has the command line of its parent, and may outlive it."""
    name = f"holdfast-test-{os.getpid()}"
    script = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else None; time.sleep(1000)"
    with bench(names=(name,)) as watch:
        with subprocess.Popen([sys.executable, "-c", script, name], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout
            child = int(parent.stdout.readline())
            watch.find()
            parent.kill()
        try:
            watch.find()
            assert {one["pid"]: one["alive"] for one in watch.document["targets"]} == {parent.pid: False, child: True}
            assert "restart" not in watch.kinds()
        finally:
            os.kill(child, signal.SIGKILL)


def test_another_watch_is_not_meant_by_a_name() -> None:
    name = f"holdfast-test-{os.getpid()}"
    with worker(f"holdfast watch --name {name}"), bench(names=(name,)) as watch:
        watch.round()
        assert watch.document["targets"] == []


def test_guard_names_the_target_and_its_health_is_reported() -> None:
    with worker() as victim, bench(victim.pid) as watch:
        watch.round()
        assert watch.target["target"] == "python"
        assert watch.target["guard"] is None
        victim.tell("guard ami-worker", "ok")
        watch.round()
        found = watch.target
        assert found["target"] == "ami-worker"
        assert found["guard"] is not None
        assert (found["guard"]["health"], found["guard"]["soft_cap"]) == ("ok", 500)
        assert found["guard"]["last_success"] == pytest.approx(time.time(), abs=60)
        victim.tell("fail 40")
        [event] = watch.round()
        assert event["kind"] == "health"
        assert event["target"] == "ami-worker"
        assert event["text"].startswith(
            "ok → failing: it is failing: it runs, but nothing has succeeded for 1 min (40 "
        )
        assert watch.target["sentence"].startswith("it is failing")
        victim.tell("drain")
        [event] = watch.round()
        assert (event["kind"], event["text"]) == ("drain", "it drains: max_jobs")
        assert [event["target"] for event in watch.document["events"]] == ["ami-worker"] * 3


def test_stopped_worker_is_reported() -> None:
    with worker() as victim, bench(victim.pid) as watch:
        victim.tell("guard w", "ok")
        watch.round()
        victim.process.send_signal(signal.SIGSTOP)
        os.waitpid(victim.pid, os.WUNTRACED)
        [event] = watch.round()
        assert event["text"].startswith("ok → stopped")
        victim.process.send_signal(signal.SIGCONT)
        victim.tell("ok")
        [event] = watch.round()
        assert event["text"].startswith("stopped → ok")


def test_jobs_of_a_guard_prove_a_leak() -> None:
    with worker() as victim, bench(victim.pid) as watch:
        victim.tell("guard w", "ok")
        watch.round()
        for number in range(1, 91):
            victim.tell("leak 2", f"job {number}")
        watch.round()
        found = watch.target
        assert found["verdict"] == "LEAK"
        assert found["sentence"].startswith("every job leaves 2 descriptors open")
        assert found["guard"] is not None
        assert len(found["guard"]["jobs"]) == 90


def test_recycled_guard_counts_as_such() -> None:
    name = f"holdfast-test-{os.getpid()}"
    with bench(names=(name,)) as watch:
        with worker(name) as first:
            first.tell("guard w", "ok", "drain")
            watch.round()
            watch.round()
        watch.round()
        assert watch.events[-1]["text"] == f"pid {first.pid} ended while it drained: max_jobs"
        with worker(name):
            watch.round(20)
            assert watch.target["restarts"] == {"recycle": 1}
            assert watch.target["target"] == "w"


def test_leaking_child_is_what_the_target_is_about() -> None:
    with worker() as victim, bench(victim.pid) as watch:
        victim.tell("child")
        watch.round()
        watch.round(20)
        assert watch.target["about"] == victim.pid
        child = int(Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text())
        hard = resource.prlimit(child, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(
            child, resource.RLIMIT_NOFILE, (resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)[0] - 1, hard)
        )
        for _ in range(40):
            victim.tell("below leak 9")
            watch.round()
        found = watch.target
        assert found["pid"] == victim.pid
        assert found["about"] != victim.pid
        assert found["verdict"] == "LEAK"
        assert found["sentence"].startswith(f"process {found['about']} below it: ")
        assert found["fds"] is not None
        assert found["fds"] >= 360
        assert found["series"]["fds"][-1] == found["fds"]
        assert [row["pid"] for row in found["tree"]] == [victim.pid, found["about"]]
        victim.tell("reap")
        watch.round(20)
        watch.round(20)
        found = watch.target
        assert (found["about"], found["alive"], found["verdict"]) == (victim.pid, True, "OK")
        assert max(found["series"]["fds"]) >= 360  # what was seen is not forgotten
        assert not [one for one in watch.events if one["kind"] == "limit"]  # that of another process is no change


def test_what_reads_the_output_of_watch_is_not_meant_by_a_name() -> None:
    """`holdfast watch --name train | tee train.log`"""
    before = os.dup(1)
    name = f"reader-{os.getpid()}"
    script = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script, name], stdin=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        try:
            os.dup2(reader.stdin.fileno(), 1)
            with bench(names=(name,)) as watch:
                watch.round(20)
                assert watch.document["targets"] == []
                os.dup2(before, 1)
                watch.find()
                assert [one["pid"] for one in watch.document["targets"]] == [reader.pid]
        finally:
            os.dup2(before, 1)
            os.close(before)
            reader.stdin.close()


def test_raised_limit_is_an_event() -> None:
    with worker() as victim, bench(victim.pid) as watch:
        hard = resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (100, hard))
        watch.round()
        victim.tell("leak 88")
        watch.round(40)
        fds = watch.target["fds"]
        assert f"it holds {fds} of 100 descriptors" in [event["text"] for event in watch.events]
        resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (200, hard))
        watch.round(40)
        assert "its soft limit is 200 now; it was 100" in [event["text"] for event in watch.events]


def test_reserve_of_a_guard_is_no_event() -> None:
    with worker() as victim, bench(victim.pid) as watch:
        hard = resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (hard, hard))
        watch.round()
        victim.tell("guard w", "ok")
        for soft in (hard - min(64, hard // 8), hard):  # at its start and at its end
            resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (soft, hard))
            watch.round(40)
            assert watch.target["limit"] == soft
        assert "limit" not in watch.kinds()
        resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (hard // 2, hard))
        watch.round(40)
        assert watch.kinds()[-1] == "limit"


def test_restart_loop_is_a_state_of_its_own() -> None:
    name = f"holdfast-test-{os.getpid()}"
    with bench(names=(name,)) as watch:
        for _ in range(4):
            with worker(name):
                watch.find()
                assert watch.collector.messages == [] or watch.target["restart_loop"]
            watch.round()
        found = watch.target
        assert (found["alive"], found["restarts"]) == (False, {"unknown": 3})
        said = "it is in a restart loop: 3 unplanned restarts within 10 min (3 unknown)"
        assert found["restart_loop"] == said
        assert watch.document["sentence"] == f"python: {said}"
        for check in (check_health, check_readiness):
            answer = check(watch.document, now=watch.wall)
            assert (answer.ok, answer.reasons) == (False, (f"python: {said}",))
        assert watch.kinds().count("loop") == 1
        assert [one["kind"] for one in watch.messages] == ["loop"]
        assert watch.messages[0]["text"] == f"ok → restart loop: {said}"
        with worker(name):
            watch.round(20)
            assert watch.target["restart_loop"]  # though it runs at the moment
            for _ in range(30):
                watch.round(60)
            assert watch.target["restart_loop"] is None
            assert check_health(watch.document, now=watch.wall).ok
        assert [one["kind"] for one in watch.messages] == ["loop", "recovered"]


def test_worker_that_is_recycled_is_no_message() -> None:
    name = f"holdfast-test-{os.getpid()}"
    with bench(names=(name,)) as watch:
        for _ in range(4):
            with worker(name) as one:
                one.tell("guard w", "ok", "drain")
                watch.round(100)
                watch.round()
            watch.round()
        assert watch.target["restarts"] == {"recycle": 3}
        assert watch.messages == []
        watch.round(110)
        assert watch.messages == []
        watch.round(20)  # nothing takes its place
        assert [one["kind"] for one in watch.messages] == ["end"]


def test_process_that_died_of_exhaustion_stays_on_top() -> None:
    name = f"holdfast-test-{os.getpid()}"
    with bench(names=(name,)) as watch, worker(name), worker(name) as victim:
        hard = resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (100, hard))
        watch.round(20)
        victim.tell(f"leak {100 - len(os.listdir(f'/proc/{victim.pid}/fd')) - 1}")
        watch.round(40)
        victim.end()
        watch.round()
        document = watch.document
        [dead] = [one for one in document["targets"] if not one["alive"]]
        assert (dead["verdict"], document["verdict"]) == ("EXHAUSTED", "EXHAUSTED")
        assert dead["sentence"] == "it has ended out of descriptors: it held 99 of 100; this is its last state"
        assert document["sentence"].startswith(f"{dead['target']} has ended out of descriptors")
        answer = check_health(document, now=watch.wall, names=(name,))
        assert answer.reasons == (f"{dead['target']}: it has ended out of descriptors",)
        assert [one["kind"] for one in watch.messages] == ["verdict", "end"]


def test_reused_pid_is_another_process() -> None:
    with worker() as victim, bench(victim.pid) as watch:
        watch.round()
        target = watch.collector._finder.targets[0]
        target.root = Identity(victim.pid, 1)  # as if the pid had belonged to an older process
        watch.round()
        assert not watch.target["alive"]


def test_tree_of_two_hundred_processes_is_bounded() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with worker() as victim, bench(victim.pid) as watch:
        victim.tell("spawn 200")
        for _ in range(5):
            watch.round(20)
        assert len(watch.target["tree"]) == 201
        assert len(os.listdir("/proc/self/fd")) <= before + 3  # the pipes of the victim, and no descriptor per process
        assert len(watch.collector._watch.series) == 201
    assert len(watch.collector._watch.series) <= 201


def test_samples_of_ended_processes_are_freed() -> None:
    with worker() as victim, bench(victim.pid) as watch:
        for _ in range(3):
            victim.tell("spawn 3")
            watch.round(20)
            for _ in range(3):
                victim.tell("reap")
            watch.round(20)
        assert len(watch.collector._watch.series) == 1


def test_process_of_another_user_is_counted_without_its_kinds(tmp_path: Path) -> None:
    """In a child without privileges, as which this process may be inspected only from outside."""
    if os.getuid():
        pytest.skip("needs root, to look from another user's side")
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from holdfast.process.watch.collector import WatchCollector
from holdfast.process.watch.finder import Selection
from holdfast.process.watch.store import Store
os.setgid(65534); os.setuid(65534)
collector = WatchCollector(Selection(pids=(1,)), Store(None))
collector.round()
[one] = collector.document()["targets"]
assert one["alive"] and one["kinds"] is None and one["dead_pipes"] is None, one
assert one["evidence"], one
collector.close()
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    if "PermissionError" in done.stderr:
        pytest.skip("the interpreter is not readable for other users")
    assert done.stdout == "fine\n", done.stderr


# ---- supervisors


def test_workers_of_a_supervisor_are_targets_that_survive_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.process.guard.supervisor import status

    with worker("one") as first, worker("two") as second, worker("super") as supervisor:
        seen = read_stat(REAL, supervisor.pid)
        assert seen is not None
        pids = {1: first.pid, 2: second.pid}
        restarts: dict[int, dict[str, int]] = {1: {}, 2: {"recycle": 50, "exit": 50}}

        def read(pid: int, procfs: object = None) -> status.SupervisorStatus | None:
            if pid != supervisor.pid:
                return None
            workers = tuple(
                status.WorkerStatus(
                    worker=number,
                    pid=pid,
                    state=status.WorkerState.RUNNING,
                    since=0,
                    restarts=restarts[number],
                    sentence="",
                )
                for number, pid in pids.items()
            )
            return status.SupervisorStatus(
                pid=supervisor.pid,
                start_ticks=seen.start_ticks,
                name="ami",
                command=("python", "worker.py"),
                workers=workers,
                restarts={},
                events=(),
            )

        monkeypatch.setattr("holdfast.process.watch.finder.read_supervisor_status", read)
        with bench(supervisor.pid) as watch:
            watch.round()
            found = watch.document["targets"]
            assert [(one["target"], one["source"], one["pid"]) for one in found] == [
                ("ami", "worker:1", first.pid),
                ("ami-2", "worker:2", second.pid),
            ]
            with worker("one again") as third:
                pids[1], restarts[1] = third.pid, {"recycle": 1}
                watch.round()
                found = watch.document["targets"]
                assert [one["restart_loop"] for one in found] == [None, None]  # those before this watch are no loop
                assert [(one["target"], one["pid"]) for one in found] == [("ami", third.pid), ("ami-2", second.pid)]
                assert found[0]["restarts"] == {"recycle": 1}
                pids[1] = 0  # between two attempts
            watch.round()
            assert [one["alive"] for one in watch.document["targets"]] == [False, True]
            assert not watch.collector.is_over


def test_heartbeat_is_read_back() -> None:
    with worker() as victim:
        victim.tell("guard w")
        page = read_heartbeat(victim.pid)
        assert page is not None
        assert page.name == "w"
