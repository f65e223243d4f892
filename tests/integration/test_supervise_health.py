"""`holdfast supervise` tells apart by name why a worker does not work: with a Guard, by caps, by its progress."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from supervised import SLEEPER, Supervised, guarded, killed_at_end, pids_in, python, runs, until

from process_tree import children

QUICK = ("--stop-timeout", "0.3s", "--backoff", "0.05s")
TRIES = 4
NO_DRAIN = ("--drain-timeout", "0.1s")

# A worker with a real Guard; `body` runs in it. The page is there before the pid is written.
GUARDED = """
import ctypes, os, sys, threading, time
import holdfast as hold
guard = hold.Guard(name="worker", progress_timeout={timeout!r}, drain_timeout={drain!r}, every=0.1, log="guard.log")
with guard:
    with open("pids", "a") as file: file.write(f"{{os.getpid()}}\\n")
    first = len(open("pids").readlines()) == 1
{body}
raise SystemExit(guard.exit_code)
"""

IDLE = """
    while not guard.draining:
        guard.ok()
        time.sleep(0.02)
"""


def guard_program(body: str, timeout: str = "10min", drain: str = "15min") -> str:
    return GUARDED.format(timeout=timeout, drain=drain, body=f"    if first:\n{body}{IDLE}" if body else IDLE)


def replaced(supervised: Supervised, folder: Path, reason: str) -> dict[str, Any]:
    """Waits until the first worker was ended for a reason, and the second one has started."""
    ended = supervised.wait_for("ended", reason=reason)
    until(lambda: len(pids_in(folder / "pids")) >= 2)
    assert {line["reason"] for line in supervised.seen if line["kind"] == "ended"} == {reason}
    return ended


# ---- with a Guard ------------------------------------------------------------------------------------------


def test_failing_results_while_the_loop_runs(tmp_path: Path) -> None:
    body = """
        try: open("/no/such/file")
        except OSError as error: failed = error
        while True:
            guard.fail(failed)
            time.sleep(0.01)
"""
    program = guard_program(body, timeout="1s")
    with Supervised(tmp_path, *QUICK, *NO_DRAIN, *guarded(program)) as supervised:
        ended = replaced(supervised, tmp_path, "failing")
        assert "it is failing: it runs, but" in ended["text"]
        assert "ENOENT" in ended["text"]
        kinds = [line["kind"] for line in supervised.seen if line["reason"] == "failing"]
        assert kinds[:3] == ["stacks", "drain", "term"]
    assert "most recent call first" in (tmp_path / "guard.log").read_text()


def test_an_outage_is_waited_for_and_never_given_up(tmp_path: Path) -> None:
    """Its pollers need longer to end than a look takes: that is no failure either."""
    poll = """
        def poll():
            while not guard.draining:
                guard.fail("503: the API is down")
                time.sleep(0.005)
            time.sleep(2)
        pollers = [threading.Thread(target=poll) for _ in range(8)]
        for one in pollers: one.start()
        for one in pollers: one.join()
"""
    program = guard_program(poll, timeout="0.3s").replace("if first", f"if len(open('pids').readlines()) < {TRIES}")
    with Supervised(tmp_path, *QUICK, "--max-failures", 2, *guarded(program)) as supervised:
        until(lambda: len(pids_in(tmp_path / "pids")) == TRIES)
        supervised.wait_for("start", str(pids_in(tmp_path / "pids")[-1]))
        ends = [line for line in supervised.seen if line["kind"] == "ended"]
        assert {line["reason"] for line in ends} == {"failing"}, ends
        assert all("exit code 75 (it is failing: it runs, but" in line["text"] for line in ends)
        for times in (2, 3):
            assert f"keeps trying: nothing succeeded in {times} workers in a row" in ends[times - 1]["text"]
        assert supervised.stop() == 0


def test_frozen_c_code_holds_the_gil(tmp_path: Path) -> None:
    body = """
        guard.ok()
        libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_init(mutex, None)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)
"""
    options = ("--frozen-timeout", "1s", *QUICK)
    with Supervised(tmp_path, *options, *guarded(guard_program(body))) as supervised:
        ended = replaced(supervised, tmp_path, "frozen")
        assert "C code holds the GIL" in ended["text"]
        kinds = [line["kind"] for line in supervised.seen if line["reason"] == "frozen"]
        assert kinds == ["stacks", "term", "kill", "ended"]
    assert "most recent call first" in (tmp_path / "guard.log").read_text()


def test_hung_a_job_waits_for_a_deadlocked_child(tmp_path: Path) -> None:
    body = """
        with guard.job("7"):
            lock = threading.Lock()
            lock.acquire()
            child = os.fork()
            if not child: lock.acquire()
            os.waitpid(child, 0)
"""
    program = guard_program(body, timeout="1s")
    with Supervised(tmp_path, *QUICK, *NO_DRAIN, *guarded(program)) as supervised:
        ended = replaced(supervised, tmp_path, "hung")
        assert "it is hung: job 7 made no step for" in ended["text"]
        assert "SIGTERM to its 2 processes" in supervised.wait_for("term")["text"]


@pytest.mark.parametrize("has_guard", [True, False])
def test_stopped_by_a_signal(tmp_path: Path, has_guard: bool) -> None:
    worker = guarded(guard_program("")) if has_guard else python(SLEEPER, "pids")
    with Supervised(tmp_path, "--frozen-timeout", "0.5s", *QUICK, *worker) as supervised:
        [pid] = until(lambda: pids_in(tmp_path / "pids"))
        os.kill(pid, signal.SIGSTOP)
        ended = replaced(supervised, tmp_path, "stopped")
        assert "it is stopped by a signal" in ended["text"]


def test_a_worker_that_drains_by_itself_is_recycled_with_its_reason(tmp_path: Path) -> None:
    body = """
        guard.ok()
        while not os.path.exists("moved"): time.sleep(0.01)
        guard.drain("the queue moved")  # and is gone at once
"""
    with Supervised(tmp_path, *guarded(guard_program(body))) as supervised:
        until(lambda: any("last success" in path.read_text() for path in supervised.runtime.rglob("*.supervise.json")))
        (tmp_path / "moved").touch()
        ended = replaced(supervised, tmp_path, "recycle")
        assert "exit code 75 (the queue moved)" in ended["text"]
        assert "starts again at once" in ended["text"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP])
def test_a_guard_finishes_its_job_when_the_operator_asks(tmp_path: Path, number: int) -> None:
    body = """
        with guard.job("7"):
            while not guard.draining: time.sleep(0.01)
            open("finished", "w").close()
"""
    with Supervised(tmp_path, *QUICK, *guarded(guard_program(body))) as supervised:
        until(lambda: pids_in(tmp_path / "pids"))
        supervised.wait_for("start")
        until(lambda: any(supervised.runtime.glob("holdfast/*.heartbeat")))
        supervised.process.send_signal(number)
        ended = replaced(supervised, tmp_path, "recycle")
        assert "exit code 75" in ended["text"]
        assert supervised.stop() == 0
    assert (tmp_path / "finished").exists()


def test_term_lets_a_guard_finish_its_job_however_short_the_stop_timeout(tmp_path: Path) -> None:
    body = """
        with guard.job("7"):
            while not guard.draining: time.sleep(0.01)
            time.sleep(1)
            open("finished", "w").close()
"""
    with Supervised(tmp_path, *QUICK, *guarded(guard_program(body))) as supervised:
        until(lambda: pids_in(tmp_path / "pids"))
        until(lambda: any(supervised.runtime.glob("holdfast/*.heartbeat")))
        assert supervised.stop() == 0
        assert "exit code 0" in supervised.wait_for("ended")["text"]
    assert (tmp_path / "finished").exists()


def test_a_guard_finishes_its_job_with_its_child_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    """SIGTERM goes to the Guard alone, for as long as a drain may take, and not to the child that does its work."""
    body = """
        with guard.job("7"):
            read, write = os.pipe()
            child = os.fork()
            if not child:
                os.read(read, 1)
                open("finished", "w").close()
                os._exit(0)
            open("up", "w").close()
            while not guard.draining: time.sleep(0.01)
            for _ in range(100): time.sleep(0.01)  # longer than --stop-timeout
            os.write(write, b"x")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        open("posted", "w").close()
"""
    with killed_at_end(lambda: pids_in(tmp_path / "pids")):
        with Supervised(tmp_path, *QUICK, *guarded(guard_program(body))) as supervised:
            until((tmp_path / "up").exists)
            [reaper] = children(supervised.pid)
            supervised.process.kill()
            until(lambda: not runs(reaper))
        assert (tmp_path / "finished").exists()
        assert (tmp_path / "posted").exists()
        assert not any(map(runs, pids_in(tmp_path / "pids")))


def test_what_others_read_is_made_again_after_it_was_removed(tmp_path: Path) -> None:
    """Some machines remove old files and folders in /tmp."""
    with Supervised(tmp_path, *QUICK, *guarded(guard_program(""))) as supervised:
        folder = supervised.runtime / "holdfast"
        until(lambda: [page for page in folder.glob("*.supervise.json") if "last success" in page.read_text()])
        os.rename(folder, tmp_path / "old")
        shutil.rmtree(tmp_path / "old")
        until(lambda: len(list(folder.glob("*.heartbeat"))) == 1)
        until(lambda: [page for page in folder.glob("*.supervise.json") if "last success" in page.read_text()])
        supervised.process.send_signal(signal.SIGUSR1)
        assert "exit code 75" in replaced(supervised, tmp_path, "recycle")["text"]
        assert "it drains for at most" in supervised.wait_for("drain")["text"]


def test_a_guarded_child_of_a_shell_is_asked_instead_of_the_shell(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(guard_program(""))
    shell = ["--", "bash", "-c", f"{sys.executable} worker.py; exit $?"]
    with Supervised(tmp_path, *QUICK, *shell) as supervised:
        until(lambda: pids_in(tmp_path / "pids"))
        until(lambda: any(supervised.runtime.glob("holdfast/*.heartbeat")))
        supervised.process.send_signal(signal.SIGUSR2)
        assert "guard.log" in supervised.wait_for("stacks")["text"]
        supervised.process.send_signal(signal.SIGUSR1)
        assert "exit code 75" in replaced(supervised, tmp_path, "recycle")["text"]


# ---- caps, for programs without a Guard --------------------------------------------------------------------

LEAKS = {
    "fds": "import os\nkept = [os.pipe() for _ in range(40)]",
    "rss": "kept = bytearray(b'x' * 60_000_000)",
    "threads": "import _thread\nfor _ in range(8): _thread.start_new_thread(time.sleep, (600,))",
    "children": "import os\nfor _ in range(5):\n    if not os.fork():\n        time.sleep(600)",
}
SOFT = {"fds": "60", "rss": "50MB", "threads": "6", "children": "4"}


def test_a_soft_cap_below_what_the_worker_needs_is_given_up(tmp_path: Path) -> None:
    with Supervised(
        tmp_path, *QUICK, "--rss", "1MiB", "--max-failures", "2", *python(SLEEPER, "pids"), tick="0.02s"
    ) as supervised:
        text = supervised.wait_for("gave-up")["text"]
        assert "its soft cap is 1.05 MB, again right after its start: raise --rss) after" in text
        assert len(pids_in(tmp_path / "pids")) == 4


@pytest.mark.parametrize("what", LEAKS)
@pytest.mark.parametrize("which", ["soft", "hard"])
def test_caps(tmp_path: Path, what: str, which: str) -> None:
    begin = "import os, sys, time\nwith open('pids', 'a') as file: file.write(f'{os.getpid()}\\n')\n"
    leak = "\n".join(f"    {line}" for line in LEAKS[what].splitlines())
    program = f"{begin}if len(open('pids').readlines()) == 1:\n{leak}\ntime.sleep(600)"
    cap = SOFT[what] if which == "soft" else f":{SOFT[what]}"
    with Supervised(tmp_path, *QUICK, f"--{what}", cap, *python(program), tick="0.02s") as supervised:
        ended = replaced(supervised, tmp_path, what)
        assert f"its {which} cap is" in ended["text"]
        assert ("at once" in ended["text"]) == (which == "soft")
        kinds = [line["kind"] for line in supervised.seen if line["reason"] == what]
        assert kinds == (["ask", "ended"] if which == "soft" else ["stacks", "term", "ended"])


def test_a_fraction_of_the_descriptor_limit_counts_for_every_process_of_the_tree(tmp_path: Path) -> None:
    program = """
import os, resource, time
with open("pids", "a") as file: file.write(f"{os.getpid()}\\n")
if len(open("pids").readlines()) == 1 and not os.fork():
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    kept = [os.pipe() for _ in range(30)]
time.sleep(600)
"""
    with Supervised(tmp_path, *QUICK, "--fds", "50%:0.95", *python(program), tick="0.02s") as supervised:
        ended = replaced(supervised, tmp_path, "fds")
        assert "descriptors, its soft cap is 50 (limit 100)" in ended["text"]


def test_shared_memory_counts_once(tmp_path: Path) -> None:
    program = """
import mmap, os, time
kept = mmap.mmap(-1, 40_000_000)
kept.write(b"x" * 40_000_000)
children = [pid for _ in range(4) if (pid := os.fork())]
sum(kept[at] for at in range(0, 40_000_000, 4096))
open(f"up-{os.getpid()}", "w").close()
time.sleep(600)
"""
    with Supervised(tmp_path, "--rss", "120MB:130MB", *python(program)) as supervised:
        until(lambda: len(list(tmp_path.glob("up-*"))) == 16)
        for _ in range(2):  # looks go on while py-spy runs
            after = len(supervised.seen)
            supervised.process.send_signal(signal.SIGUSR2)
            supervised.wait_for("stacks", after=after)
        assert "ended" not in supervised.kinds()


# Workers with 128 descriptors: the first leaks pipes and goes on, the last lowers its limit below what it holds, and
# the others need many and are well.
FULL = """
import os, resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
worker, kept = int(os.environ["HOLDFAST_WORKER"]), []
with open(f"pids-{worker}", "a") as file: file.write(f"{os.getpid()}\\n")
def fill():
    if worker == 1: kept.append(os.pipe())
    if worker == 2: kept.append(open(f"shard-{len(kept)}", "w"))
    if worker == 3: kept.append(socket.create_connection(server.getsockname())); kept.append(server.accept())
    if worker == 4: kept.append(os.pipe())
    if worker == 5 and len(kept) < 50: kept.append(os.pipe())
    elif worker == 5: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128)); os.pipe()
if worker == 3: server = socket.create_server(("127.0.0.1", 0))
while True:
    try:
        fill()
    except OSError:
        pass  # and goes on, as the worker of the incident did
    time.sleep(0.005)
    if worker == 4 and len(kept) > 60:
        for fd in kept.pop(0): os.close(fd)
"""


def test_a_worker_without_a_guard_that_has_used_up_its_descriptors_is_replaced(tmp_path: Path) -> None:
    with Supervised(tmp_path, "-n", 5, *python(FULL), tick="0.02s") as supervised:
        assert (
            "descriptors, more than its limit of 64, for"
            in supervised.wait_for("ended", "worker 5 (pid", "fds")["text"]
        )
        text = supervised.wait_for("ended", "worker 1 (pid", "fds")["text"]
        assert "of its 128 descriptors for" in text
        assert "looks like pipes with both ends in this process" in text
        assert "starts again at once" in text
        for worker, why in ((2, "may be in use"), (3, "may be in use"), (4, "come and go")):
            note = supervised.wait_for("health", f"worker {worker} (pid")["text"]
            assert f"they {why}, so it is left alone" in note
            assert len(pids_in(tmp_path / f"pids-{worker}")) == 1


# ---- progress ----------------------------------------------------------------------------------------------


def test_a_progress_file_must_change(tmp_path: Path) -> None:
    program = """
import os, time
with open("pids", "a") as file: file.write(f"{os.getpid()}\\n")
first = len(open("pids").readlines()) == 1
for at in range(6 if first else 10**9):
    os.utime(os.open("beat-" + os.environ["HOLDFAST_WORKER"], os.O_CREAT | os.O_WRONLY), ns=(at, at))
    time.sleep(0.1)
time.sleep(600)
"""
    options = ("--progress-file", "beat-{worker}", "--progress-timeout", "2s", *QUICK)
    with Supervised(tmp_path, *options, *python(program)) as supervised:
        ended = replaced(supervised, tmp_path, "progress")
        assert re.search(r"it makes no progress: beat-1 did not change for \d+ s", ended["text"])


def test_a_progress_file_that_never_appears(tmp_path: Path) -> None:
    options = ("--progress-file", "beat", "--progress-timeout", "0.5s", *QUICK)
    with Supervised(tmp_path, *options, *python(SLEEPER, "pids")) as supervised:
        text = replaced(supervised, tmp_path, "progress")["text"]
        assert "it makes no progress: beat did not change for" in text
        assert "(No such file or directory)" in text


@pytest.fixture
def page() -> Iterator[dict[str, Any]]:
    """A page on loopback whose status the test sets; 0: it accepts connections and never answers."""
    asked: dict[str, Any] = {"status": 200, "count": 0, "paths": set()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked["count"] += 1
            asked["paths"].add(self.path)
            self.send_response(asked["status"])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    asked["url"] = f"http://127.0.0.1:{server.server_port}"
    try:
        yield asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_page_must_answer_with_success(tmp_path: Path, page: dict[str, Any]) -> None:
    options = ("--progress-http", f"{page['url']}/health?worker={{worker}}", "--progress-timeout", "2s", *QUICK)
    with Supervised(tmp_path, *options, *python(SLEEPER, "pids")) as supervised:
        until(lambda: page["count"] >= 15)  # for longer than the timeout
        assert "ended" not in supervised.kinds()
        page["status"] = 503
        supervised.wait_for("ended")
        page["status"] = 200  # for the second worker, which may need longer to start than the timeout
        ended = replaced(supervised, tmp_path, "progress")
        assert "/health?worker=1 answered with status 503" in ended["text"]
    assert page["paths"] == {"/health?worker=1"}


def test_a_page_that_accepts_and_never_answers_does_not_block_the_supervisor(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        options = ("--progress-http", url, "--progress-timeout", "1s", *QUICK)
        with Supervised(tmp_path, *options, *python(SLEEPER, "pids")) as supervised:
            ended = replaced(supervised, tmp_path, "progress")
            assert "had no good answer for" in ended["text"]


# ---- systemd -----------------------------------------------------------------------------------------------


class SystemdSocket:
    """A real datagram socket in the place of systemd's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(12)

    def wait_for(self, text: str) -> str:
        while True:
            data = self._socket.recv(4096).decode()
            self.seen.append(data)
            if text in data:
                return data

    def drain(self) -> None:
        self._socket.setblocking(False)
        try:
            while True:
                self.seen.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            self._socket.settimeout(12)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[SystemdSocket]:
    made = SystemdSocket(tmp_path / "notify")
    yield made
    made.close()


def test_systemd_is_reported(tmp_path: Path, systemd: SystemdSocket) -> None:
    program = "import os, time; open('environment', 'w').write(' '.join(os.environ)); time.sleep(600)"
    env = {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "400000"}
    with Supervised(tmp_path, "-n", 2, *python(program), **env) as supervised:
        systemd.wait_for("READY=1")
        assert systemd.wait_for("STATUS=2 of 2") == "STATUS=2 of 2 workers running; no restarts"
        for _ in range(3):
            systemd.wait_for("WATCHDOG=1")
        names = until((tmp_path / "environment").exists) and (tmp_path / "environment").read_text().split()
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(names)
        supervised.process.send_signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in systemd.wait_for("RELOADING=1")
        systemd.wait_for("READY=1")
        assert supervised.stop() == 0
        systemd.wait_for("STOPPING=1")
        systemd.wait_for("EXTEND_TIMEOUT_USEC=")


def test_the_watchdog_is_fed_while_one_worker_works_and_another_was_given_up(
    tmp_path: Path, systemd: SystemdSocket
) -> None:
    program = "import os, sys, time; os.environ['HOLDFAST_WORKER'] == '1' and sys.exit(3); time.sleep(600)"
    env = {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "200000"}
    with Supervised(tmp_path, "-n", 2, "--max-failures", 1, *python(program), **env) as supervised:
        supervised.wait_for("gave-up", "worker 1")
        status = systemd.wait_for("STATUS=1 of 2 workers running; no restarts; gave up on worker 1 (pid ")
        assert "it ended with exit code 3" in status
        for _ in range(3):
            systemd.wait_for("WATCHDOG=1")
        assert supervised.stop() == 0


def test_the_watchdog_is_fed_while_the_next_start_is_waited_for(tmp_path: Path, systemd: SystemdSocket) -> None:
    """It may be longer than WatchdogSec=."""
    env = {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "200000"}
    with Supervised(tmp_path, "--backoff", "300s", *python("raise SystemExit(3)"), **env) as supervised:
        supervised.wait_for("ended")
        systemd.drain()
        for _ in range(3):
            systemd.wait_for("WATCHDOG=1")
        assert supervised.stop() == 0


def test_the_watchdog_is_not_fed_while_a_worker_does_not_work(tmp_path: Path, systemd: SystemdSocket) -> None:
    body = """
        guard.ok()
        libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_init(mutex, None)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)
"""
    env = {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "200000"}
    options = ("--frozen-timeout", "0.5s", "--stop-timeout", "1s")
    with Supervised(tmp_path, *options, *guarded(guard_program(body)), **env) as supervised:
        supervised.wait_for("term", reason="frozen")
        systemd.drain()
        before = len(systemd.seen)
        supervised.wait_for("kill", reason="frozen")
        systemd.drain()
        assert "WATCHDOG=1" not in systemd.seen[before:]
        until(lambda: len(pids_in(tmp_path / "pids")) == 2)
        systemd.wait_for("WATCHDOG=1")
