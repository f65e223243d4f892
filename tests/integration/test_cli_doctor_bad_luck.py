"""`holdfast doctor` on healthy programs that look bad, on processes that die, and on those with hostile names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cli_process import COMMAND, document, environment, holdfast, on_terminal, without_styles
from leaking_process import leaker
from rich.cells import cell_len

# ---- healthy ones ------------------------------------------------------------------------------------------

HEALTHY = {
    # What urllib3 keeps until its next use: a pool's idle connections that the server has given up.
    "idle connections of a pool": """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    pool = []
    for _ in range(100):
        pool.append(socket.create_connection(server.getsockname()))
        server.accept()[0].close()
""",
    # As `nc -N` does it: the request is over, the answer is still to come.
    "clients that closed their side and wait for the answer": """
import socket
server = socket.create_server(("127.0.0.1", 0))
clients, kept = [], []
for _ in range(100):
    clients.append(socket.create_connection(server.getsockname()))
    kept.append(server.accept()[0])
    clients[-1].shutdown(socket.SHUT_WR)
for one in kept:
    assert one.recv(1) == b""
""",
    "queues between threads": """
import multiprocessing
queues = [multiprocessing.SimpleQueue() for _ in range(100)]
""",
    "many files": "files = [open(sys.executable, 'rb') for _ in range(900)]",
    "many loggers": """
import logging, tempfile
folder = tempfile.TemporaryDirectory()
kept = [logging.FileHandler(f"{folder.name}/{n}.log") for n in range(600)]
""",
    "a pool of threads": """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(64)
list(pool.map(len, [b""] * 1000))
""",
}
UNREAD = """
import subprocess
batch = [subprocess.Popen(["true"], stdout=subprocess.PIPE) for _ in range(80)]
for one in batch:
    one.wait()
"""
ENDING = """
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[str]]:
    """Ends when its input does; it has said that it is ready."""
    command = [sys.executable, "-c", f"import sys\n{program}\n{ENDING}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        if process.returncode is None:
            process.communicate(timeout=60)


@pytest.mark.parametrize("program", HEALTHY)
def test_a_healthy_program_is_not_accused_of_a_leak(program: str) -> None:
    with running(HEALTHY[program]) as healthy:
        found = document("doctor", str(healthy.pid))
        watched = document("doctor", str(healthy.pid), "--for", "1s")
    assert found["fds"] > 30 or program == "a pool of threads"
    assert (found["verdict"], watched["verdict"]) == ("OK", "OK")
    assert (found["advice"], watched["advice"]) == ([], [])


def test_a_batch_of_commands_that_nobody_has_read_yet_is_suspicious_and_no_leak() -> None:
    with running(UNREAD) as batch:
        found = document("doctor", str(batch.pid), code=10)
        done = holdfast("doctor", batch.pid)
    assert (found["verdict"], found["dead_pipes"], found["signature"]) == ("GROWING", 80, "unread-output")
    assert "cause         looks like the output of commands that have ended was never read" in done.stdout


@pytest.mark.parametrize("program", ["many files", "many loggers", "queues between threads"])
def test_and_its_page_blames_nothing(program: str) -> None:
    with running(HEALTHY[program]) as healthy:
        done = holdfast("doctor", healthy.pid)
    assert done.returncode == 0
    assert "  cause " not in done.stdout


# ---- those that die ----------------------------------------------------------------------------------------


def test_one_that_has_ended_and_is_not_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        done = holdfast("doctor", child.pid)
    assert done.returncode == 0
    assert "it has ended and holds nothing; its parent has not waited for it yet" in done.stdout


def test_one_that_stands_still() -> None:
    with leaker() as healthy:
        os.kill(healthy.pid, signal.SIGSTOP)
        try:
            assert document("doctor", str(healthy.pid), "--for", "1s")["verdict"] == "OK"
        finally:
            os.kill(healthy.pid, signal.SIGCONT)


# ---- names and terminals -----------------------------------------------------------------------------------

NAMES = (
    b"new\nline",
    b"\x1b[31mred\x1b]0;title\x07",
    b"[bold]x[/bold][/][link=http://x]",
    b"\xff\xfe",
    b"x" * 5000,
    "日本語".encode() * 60,
    "a\u202eb".encode(),
)


@pytest.fixture
def named() -> Iterator[list[str]]:
    """The pids of processes with these names."""
    with ExitStack() as running:
        pids = []
        for name in NAMES:
            process = running.enter_context(subprocess.Popen([name, b"600"], executable="/bin/sleep"))
            running.callback(process.kill)
            pids.append(str(process.pid))
        yield pids


@pytest.mark.parametrize("command", [["doctor", "--for", "0"], ["top", "--once"]])
def test_a_name_cannot_play_tricks(named: list[str], command: list[str]) -> None:
    piped = holdfast(*command, *named)
    shown, code = on_terminal(*command, *named, columns=80)
    facts = json.loads(holdfast(*command, *named, "--json").stdout)
    assert (piped.returncode, piped.stderr, code) == (0, "", 0)
    rows = facts["targets"] if "doctor" in command else facts["processes"]
    assert sorted(row["pid"] for row in rows) == sorted(map(int, named))
    for text in (piped.stdout, without_styles(shown)):
        assert all(char.isprintable() for char in text.replace("\n", ""))
    assert max(map(cell_len, without_styles(shown).splitlines())) <= 80


@pytest.mark.parametrize("command", [["doctor", "--for", "0"], ["top", "--once"]])
@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}])
def test_on_a_poor_terminal(command: list[str], env: dict[str, str]) -> None:
    with leaker() as leaking:
        leaking.leak(300)
        for columns in (80,) if "TERM" in env else (20, 80):  # a dumb one is taken to have 80
            shown, code = on_terminal(*command, str(leaking.pid), columns=columns, **env)
            assert code == (11 if "doctor" in command else 0)
            assert "LEAK" in shown
            assert max(map(len, without_styles(shown).splitlines())) <= columns


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_that_goes_away_changes_nothing(more: list[str]) -> None:
    with leaker() as leaking:
        leaking.leak(300)
        ours, theirs = os.pipe()
        os.close(ours)
        try:
            command = [*COMMAND, "doctor", str(leaking.pid), *more]
            done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, env=environment(), timeout=120)
        finally:
            os.close(theirs)
    assert (done.returncode, done.stderr) == (11, b"")


def test_a_full_disk_is_reported() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [*COMMAND, "doctor", str(os.getpid()), "--no-tree"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=120)
    assert done.returncode == 3
    assert done.stderr == b"holdfast: cannot write to the output: No space left on device\n"
