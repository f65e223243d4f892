"""A process that answers, asked from outside; at zero free descriptors too."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast._util.framing import pack_message
from holdfast.errors import InputError
from holdfast.process.fd_owners import agent
from holdfast.process.fd_owners import agent as listening
from holdfast.process.fd_owners.agent import MAX_REQUEST_BYTES, ask, ask_owners, listen

TIMEOUT_S = 60

PROGRAM = """
import errno, os, resource, socket, sys, time
from holdfast.process.fd_owners.agent import listen
keep = []
listener = listen("worker")
if "full" in sys.argv:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            keep.append(socket.socket())
    except OSError as error:
        assert error.errno == errno.EMFILE
else:
    keep.extend(socket.socket() for _ in range(5))
if "fork" in sys.argv:
    ready, tell = os.pipe()
    if os.fork() == 0:
        os.write(tell, b"x")
        os.read(0, 1)
        listener.close()
        os._exit(0)
    os.read(ready, 1)
sys.stdout.write(f"{os.getpid()} {listener.path}\\n")
sys.stdout.flush()
sys.stdin.readline()
if "full" in sys.argv:
    deadline = time.monotonic() + 60
    while len(listener._responder._reserve) < 3:  # it takes back what it spent a moment after it answered
        assert time.monotonic() < deadline
        time.sleep(0.001)
    try:
        os.open(os.devnull, os.O_RDONLY)
        sys.exit("a descriptor was free")
    except OSError:
        pass
"""


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short, because a socket's path has to be."""
    folder = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def worker(*how: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore::ResourceWarning", "-c", PROGRAM, *how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, Path(_line(process).split()[1])
            process.communicate("\n", TIMEOUT_S)
            assert process.returncode == 0
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], TIMEOUT_S)[0]
    return process.stdout.readline()


def _send(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(path))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        reply = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                reply += part
        return reply


def _frame(text: bytes) -> bytes:
    return struct.pack("<IQ", len(text), 0) + text


def _head(reply: bytes) -> Any:
    return json.loads(reply[12:])


# ---- from outside ------------------------------------------------------------------------------------------


def test_it_says_who_holds_what(runtime: Path) -> None:
    with worker() as (process, path):
        assert path.parent == runtime / "holdfast"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        hello = ask(process.pid, {"ask": "hello"})
        assert hello == {"pid": process.pid, "name": "worker", "asks": ["hello", "owners", "snapshot"]}
        groups = ask_owners(process.pid)
        assert groups is not None
        assert [(group.shape, group.count) for group in groups] == [("__main__ module variable 'keep'[…] → socket", 5)]
        fd = groups[0].example.fd
        [one] = ask_owners(process.pid, [fd]) or []
        assert str(one.example).startswith("__main__ module variable 'keep'[")
        assert str(one.example).endswith(f"→ socket(fd {fd})")
        seen = ask(process.pid, {"ask": "snapshot"})
        assert seen is not None
        assert seen["kinds"]["socket"] >= 6
        assert seen["limits"]["nofile"]["used"] == seen["fds"]
        maximum = ask(process.pid, {"ask": "owners", "max": 1})
        assert maximum is not None
        assert len(maximum["groups"]) == 1
    assert not path.exists()


def test_it_answers_without_a_free_descriptor_and_leaves_none_free() -> None:
    with worker("full") as (process, _):
        for _ in range(3):
            groups = ask_owners(process.pid)
            assert groups is not None
            assert groups[0].shape == "__main__ module variable 'keep'[…] → socket"
            assert groups[0].count > 40
            seen = ask(process.pid, {"ask": "snapshot"})
            assert seen is not None
            assert seen["limits"]["nofile"]["soft"] == 64


def test_a_process_that_does_not_listen() -> None:
    assert ask_owners(os.getpid()) is None
    assert ask_owners(1 << 30) is None


def test_strange_requests_do_no_harm() -> None:
    with worker() as (process, path):
        for text in (b"", b"{", b"\xff\xfe", b"[1, 2]", b'{"ask": "me"}', b"[" * 50_000, b'{"ask": []}'):
            reply = _send(path, _frame(text))
            assert "error" in _head(reply), text
        for data in (b"", b"\n", _frame(b'{"ask": "hello"}')[:-1]):
            assert "end" in _head(_send(path, data))["error"], data
        for request in (
            {"fds": "7"},
            {"fds": ["7"]},
            {"fds": [True]},
            {"max": 0},
            {"max": "many"},
            {"within_s": 1e9},
            {"within_s": float("nan")},
        ):
            reply = _send(path, pack_message({"ask": "owners", **request}))
            assert "expected" in _head(reply)["error"], request
        reply = _send(path, _frame(b" " * (MAX_REQUEST_BYTES + 10)))
        assert reply == b"" or b"at most" in reply
        with socket.socket(socket.AF_UNIX) as rude:  # gone before the answer
            rude.connect(str(path))
            rude.sendall(pack_message({"ask": "hello"}))
        assert ask_owners(process.pid, [-1, 10**9]) == []
        assert ask(process.pid, {"ask": "hello"}) is not None


def test_a_slow_one_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_REQUEST_S", 0.05)
    with listen() as listener, socket.socket(socket.AF_UNIX) as slow:
        slow.settimeout(TIMEOUT_S)
        slow.connect(str(listener.path))
        slow.send(pack_message({"ask": "hello"})[:-1])
        assert slow.recv(1) == b""
        assert ask(os.getpid(), {"ask": "hello"}) is not None


def test_another_user_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen() as listener:
        monkeypatch.setattr(listening, "peer_uid", lambda connection: os.getuid() + 1)
        assert _send(listener.path, b"") == b""
        monkeypatch.undo()


def test_a_forked_child_does_not_listen() -> None:
    with worker("fork") as (process, path):
        hello = ask(process.pid, {"ask": "hello"})
        assert hello is not None
        assert hello["pid"] == process.pid
        [child] = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert ask(child, {"ask": "hello"}) is None
        inherited = [os.readlink(f"/proc/{child}/fd/{fd}") for fd in os.listdir(f"/proc/{child}/fd")]
        assert sum("socket:" in target for target in inherited) == 5  # those in `keep`
        assert not any("eventfd" in target or "/dev/null" in target for target in inherited)
        assert path.exists()
        os.kill(child, 9)


def test_what_a_killed_process_left_is_taken_away(runtime: Path) -> None:
    with contextlib.suppress(AssertionError), worker() as (process, path):
        process.kill()
        process.wait(TIMEOUT_S)
    assert path.exists()
    stranger = path.with_name("note.txt")
    stranger.write_text("not ours")
    with listen() as listener:
        assert sorted(path.parent.iterdir()) == sorted([listener.path, stranger])


# ---- inside ------------------------------------------------------------------------------------------------


def test_two_share_one() -> None:
    first, second = listen("first"), listen()
    assert first.path == second.path
    first.close()
    first.close()
    hello = ask(os.getpid(), {"ask": "hello"})
    assert hello is not None
    assert hello["name"] == "first"
    second.close()
    assert not second.path.exists()
    assert ask(os.getpid(), {"ask": "hello"}) is None
    with listen() as third:
        assert third.path.exists()


def test_a_folder_of_somebody_else_is_not_used(runtime: Path) -> None:
    (runtime / "holdfast").symlink_to("/tmp")
    with pytest.raises(PermissionError, match="expected .* to be a folder"):
        agent.make_private(runtime / "holdfast")


def test_the_next_folder_is_taken(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        agent, "socket_dirs", lambda: [runtime / ("x" * 120), runtime / "no" / "such", runtime / "good"]
    )
    with listen() as listener:
        assert listener.path.parent == runtime / "good"
        assert ask(os.getpid(), {"ask": "hello"}) is not None


def test_no_folder_at_all(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "socket_dirs", lambda: [runtime / "no" / "such"])
    with pytest.raises(InputError, match="no folder to listen in"):
        listen()


def test_a_folder_others_may_enter_is_closed_to_them(runtime: Path) -> None:
    folder = runtime / "holdfast"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with listen():
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
