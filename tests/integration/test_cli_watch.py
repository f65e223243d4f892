"""The real `holdfast watch` on real processes, with real HTTP and a real kill -9."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest
from cli_process import COMMAND, environment, holdfast, refused
from leaking_process import leaker

from holdfast.process.watch.documents import load_state

TIMEOUT_S = 120
# The stated bounds of watch itself, beside a handful of connections: see docs/watch.md.
MAX_FDS = 32
MAX_RSS_BYTES = 120 << 20


class RunningWatch:
    """A watch whose lines are JSON; `lines` has those read so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []

    def line(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert self.process.stdout
        for text in self.process.stdout:
            self.lines.append(json.loads(text))
            if wanted(self.lines[-1]):
                return self.lines[-1]
        raise AssertionError(f"it ended after {self.lines}: {self.process.stderr and self.process.stderr.read()}")

    def url(self) -> str:
        return str(self.line(lambda line: "url" in line)["url"])

    def event(self, kind: str, text: str = "") -> dict[str, Any]:
        return self.line(lambda line: line.get("kind") == kind and text in line["text"])

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        assert self.process.stdout
        self.lines += [json.loads(text) for text in self.process.stdout]
        return self.process.wait(TIMEOUT_S)


@contextmanager
def running(*arguments: str | Path, **env: str) -> Iterator[RunningWatch]:
    command = [*COMMAND, "watch", *map(str, arguments), "--json"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment(**env), **pipes) as process:
        try:
            yield RunningWatch(process)
        finally:
            if process.poll() is None:
                process.kill()


def get(url: str, path: str, **headers: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def state(url: str) -> Any:
    return json.loads(get(url, "/api/state")[1])


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_leak_is_seen_on_every_way_out(tmp_path: Path) -> None:
    """Lines, page data, metrics, probes, notification and recording say the same."""
    notes = tmp_path / "notes"
    command = f"cat >> {notes}; echo >> {notes}"
    with leaker() as victim:
        victim.leak(10)
        options = ["--http", ":0", "--db", tmp_path / "watch.db", "--every", "0.1", "--label", "victim"]
        with running(victim.pid, *options, "--notify", command) as watch:
            url = watch.url()
            assert watch.event("start")["target"] == "victim"
            assert get(url, "/healthz")[0] == 200
            victim.leak(300)
            assert watch.event("verdict", "LEAK")["target"] == "victim"
            found = state(url)
            assert (found["verdict"], found["targets"][0]["dead_pipes"]["read"]) == ("LEAK", 310)
            assert b'holdfast_leak_verdict{target="victim",verdict="LEAK"} 1' in get(url, "/metrics")[1]
            victim.leak(1024 - 310 - 10)
            watch.event("verdict", "EXHAUSTED")
            status, body = get(url, "/healthz")
            assert (status, json.loads(body)["reasons"]) == (503, ["victim: it is out of descriptors"])
            assert watch.stop() == 0
        last = watch.lines[-1]
        assert (last["verdict"], last["targets"][0]["target"]) == ("EXHAUSTED", "victim")
        told = [json.loads(line) for line in notes.read_text().splitlines()]
        assert [one["verdict"] for one in told][-1] == "EXHAUSTED"
    recorded = load_state(tmp_path / "watch.db")
    assert (recorded["verdict"], recorded["live"]) == ("EXHAUSTED", False)
    assert recorded["events"][0]["kind"] == "start"


def test_killed_watch_loses_nothing_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    with leaker() as victim:
        with running(victim.pid, "--db", path, "--every", "0.1", "--http", ":0") as watch:
            url = watch.url()
            victim.leak(300)
            watch.event("verdict", "LEAK")
            wait_until(lambda: len(state(url)["targets"][0]["series"]["t"]) >= 20)
            seen = state(url)["targets"][0]["series"]["t"]
            watch.process.kill()
            watch.process.wait()
        recorded = load_state(path)
        assert recorded["verdict"] == "LEAK"
        assert set(seen) <= set(recorded["targets"][0]["series"]["t"])
        with running(victim.pid, "--db", path, "--every", "0.1", "--http", ":0") as watch:
            url = watch.url()
            watch.event("start", "is watched again")
            found = state(url)["targets"][0]
            assert set(seen) <= set(found["series"]["t"])
            assert found["verdict"] == "LEAK"
            assert "in use by another holdfast watch" in refused("watch", str(victim.pid), "--db", path, code=3)
            assert watch.stop(signal.SIGTERM) == 0


def test_damaged_database_is_moved_aside_and_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    path.write_text("garbage")
    with leaker() as victim:
        done = holdfast("watch", str(victim.pid), "--db", path, "--for", "0.3s", "--every", "0.1s")
    assert done.returncode == 0, done
    [moved] = tmp_path.glob("watch.db.damaged-*")
    said = f"holdfast: {path}: the database is damaged: it is not SQLite: it is {moved} now, and a new one begins\n"
    assert done.stderr == said
    assert moved.read_text() == "garbage"
    assert load_state(path)["targets"]


def test_full_disk_is_reported_and_the_page_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    with leaker() as victim, running(victim.pid, "--db", path, "--every", "0.1", "--http", ":0") as watch:
        url = watch.url()
        wait_until(lambda: len(state(url)["targets"][0]["series"]["t"]) >= 3)
        # What a full disk does, for this process only: no file may grow.
        resource.prlimit(watch.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        wait_until(lambda: bool(state(url)["problems"]))
        [problem] = state(url)["problems"]
        assert problem.startswith(f"{path}: cannot write: the disk")
        assert b"holdfast_watch_problems 1" in get(url, "/metrics")[1]
        before = len(state(url)["targets"][0]["series"]["t"])
        wait_until(lambda: len(state(url)["targets"][0]["series"]["t"]) > before)
        assert watch.stop() == 0
        assert watch.process.stderr
        assert "new samples are kept in memory" in watch.process.stderr.read()


def test_name_waits_for_a_process_and_follows_the_next(tmp_path: Path) -> None:
    name = f"watched-{os.getpid()}"
    with running("--name", name, "--every", "0.1", "--for", "100s") as watch:
        watch.line(lambda line: line.get("waiting") == [name])
        with leaker(name):
            start = watch.event("start")
        watch.event("end")
        with leaker(name):
            again = watch.event("restart")
            assert again["target"] == start["target"]
            assert watch.stop() == 0


GUARDED = """
import sys, time
import holdfast as hold
guard = hold.Guard(name="ami", max_jobs=15, jitter=0)
with guard:
    while not guard.draining:
        guard.ok()
        with guard.job("x"):
            time.sleep(0.05)
sys.exit(guard.exit_code)
"""


def test_workers_of_a_real_supervisor_are_followed_over_their_recycling(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(GUARDED)
    command = [*COMMAND, "supervise", "--", sys.executable, str(tmp_path / "worker.py")]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), text=True, **pipes) as supervisor:
        try:
            assert supervisor.stderr
            assert any("has started" in line for line in supervisor.stderr)
            with running(supervisor.pid, "--every", "0.1", "--http", ":0", "--db", tmp_path / "watch.db") as watch:
                url = watch.url()
                watch.event("restart", "exit code 75")
                again = watch.event("restart", "exit code 75")
                assert again["target"] == "ami"
                wait_until(lambda: state(url)["targets"][0]["alive"])
                [target] = state(url)["targets"]
                assert (target["target"], target["source"]) == ("ami", "worker:1")
                assert target["restarts"]["recycle"] >= 2
                wait_until(lambda: b'holdfast_worker_health{target="ami",health="ok"} 1' in get(url, "/metrics")[1])
                assert watch.stop() == 0
        finally:
            supervisor.terminate()
            assert supervisor.stderr
            supervisor.stderr.read()


def test_worker_that_its_supervisor_restarts_again_and_again(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (tmp_path / "worker.py").write_text("import sys\nsys.exit(3)\n")
    command = [*COMMAND, "supervise", "--", "timeout", "1000", sys.executable, str(tmp_path / "worker.py")]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), text=True, **pipes) as supervisor:
        try:
            assert supervisor.stderr
            assert any("has started" in line for line in supervisor.stderr)
            options = ["--every", "0.1", "--http", ":0", "--notify", f"cat >> {notes}; echo >> {notes}"]
            with running(supervisor.pid, *options) as watch:
                url = watch.url()
                said = watch.event("loop")["text"]
                assert said.startswith("it is in a restart loop: 3 unplanned restarts within 10 min (3 exit)")
                status, body = get(url, "/healthz")
                assert (status, json.loads(body)["reasons"]) == (503, [f"worker.py: {said}"])
                assert b'holdfast_restart_loop{target="worker.py"} 1' in get(url, "/metrics")[1]
                assert state(url)["sentence"].startswith(f"worker.py: {said}")
                assert watch.stop() == 0
            told = [json.loads(line) for line in notes.read_text().splitlines()]
            assert [(one["kind"], one["restart_loop"]) for one in told] == [("loop", said)]
        finally:
            supervisor.terminate()
            assert supervisor.stderr
            supervisor.stderr.read()


def test_ends_with_its_process_and_the_exit_code_says_how_it_was() -> None:
    with leaker() as victim, running(victim.pid, "--every", "0.1") as watch:
        watch.event("start")
        os.kill(victim.pid, signal.SIGKILL)
        watch.event("end")
        assert watch.process.wait(TIMEOUT_S) == 0
    with leaker() as victim:
        victim.leak(400)
        done = holdfast("watch", str(victim.pid), "--for", "0.3s", "--every", "0.1s")
        assert done.returncode == 1, done
        assert "LEAK: 400 of its" in done.stdout
        assert done.stderr == ""


def test_watch_itself_is_bounded() -> None:
    with leaker() as victim, running(victim.pid, "--every", "0.1", "--http", ":0") as watch:
        url = watch.url()
        for path in ("/", "/metrics", "/api/state", "/static/page.js", "/healthz") * 10:
            get(url, path)
        wait_until(lambda: len(state(url)["targets"][0]["series"]["t"]) >= 20)
        own = Path(f"/proc/{watch.process.pid}")
        assert len(os.listdir(own / "fd")) <= MAX_FDS
        pages = int((own / "statm").read_text().split()[1])
        assert pages * os.sysconf("SC_PAGE_SIZE") <= MAX_RSS_BYTES
        assert watch.stop() == 0


def test_token_from_the_environment() -> None:
    token = "a-secret-of-the-tests"
    with leaker() as victim, running(victim.pid, "--http", "0.0.0.0:0", HOLDFAST_TOKEN=token) as watch:
        url = watch.url().replace("0.0.0.0", "127.0.0.1")
        assert get(url, "/api/state")[0] == 401
        assert get(url, "/api/state", Authorization=f"Bearer {token}")[0] == 200
        assert watch.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "say which process: its PID, or --name TEXT"),
        (["train.py"], 2, "expected a process id, got 'train.py'; for its name write --name train.py"),
        (["--name", " "], 2, "expected a text, got none"),
        (["1", "--http", "nonsense:x"], 2, "expected an address such as 127.0.0.1:9321"),
        (["1", "--every", "0.01"], 2, "--every: expected 0.1 s to 15 minutes, got 0.01 s"),
        (["1", "--http", "0.0.0.0:0"], 3, "which needs a token: set the variable HOLDFAST_TOKEN"),
        (["1", "--http", "0.0.0.0:0", "--token", "short"], 3, "expected a token of at least 16"),
        (["1", "--webhook", "ftp://x"], 3, "expected a URL such as https://example.org/hook"),
        (["4194300"], 3, "there is no process 4194300"),
        (["1", "--db", "/nonexistent/x.db"], 3, "there is no folder /nonexistent"),
    ],
)
def test_refusals(arguments: list[str], code: int, sentence: str) -> None:
    assert sentence in refused("watch", *arguments, code=code)


def test_integrations_are_written(tmp_path: Path) -> None:
    done = holdfast("watch", "--write-integrations", tmp_path / "x")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path / "x")) == ["holdfast-alerts.yml", "holdfast-grafana.json"]
    assert "it exists already" in refused("watch", "--write-integrations", tmp_path / "x", code=3)


def test_output_that_nobody_reads_does_not_end_it() -> None:
    with leaker() as victim:
        command = [*COMMAND, "watch", str(victim.pid), "--every", "0.1", "--for", "1s"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
            stdout: IO[bytes] | None = process.stdout
            assert stdout
            stdout.close()
            assert process.wait(TIMEOUT_S) == 0
            assert process.stderr
            assert process.stderr.read() == b""
