from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import pytest

from holdfast.procfs import peers as polling
from holdfast.procfs.descriptors import Descriptor, Kind, scan
from holdfast.procfs.peers import Answer, PeerState, PipeEnd, pair_pipes, poll_other, poll_own, read_access
from holdfast.procfs.procfs import REAL

ME = os.getpid()


def _end(fd: int, inode: int) -> Descriptor:
    return Descriptor(fd, Kind.PIPE, f"pipe:[{inode}]", inode)


def _real_access(pid: int, fds: Sequence[int]) -> Mapping[int, str]:
    return read_access(REAL, pid, fds)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def _told(found: Mapping[int, Sequence[PipeEnd]]) -> dict[tuple[int, int], tuple[str, PeerState, tuple[int, ...]]]:
    return {(pid, end.fd): (end.access, end.peer_state, end.peers) for pid, ends in found.items() for end in ends}


def test_pairs_over_a_tree() -> None:
    ways = {
        1: {3: "r", 4: "w", 5: "r", 6: "w", 7: "w", 8: "r"},
        2: {3: "w", 4: "rw", 5: "", 6: "w", 7: "rw", 8: "r"},
    }
    tables = {
        1: [_end(3, 10), _end(4, 10), _end(5, 11), _end(6, 12), _end(7, 13), _end(8, 16)],
        2: [_end(3, 11), _end(4, 14), _end(5, 15), _end(6, 13), _end(7, 16), _end(8, 17)],
    }
    polled: dict[int, list[int]] = {}
    asked: list[tuple[int, int]] = []

    def access(pid: int, fds: Sequence[int]) -> Mapping[int, str]:
        asked.extend((pid, fd) for fd in fds)
        return {fd: ways[pid][fd] for fd in fds}

    def poll(pid: int, fds: Sequence[int]) -> Mapping[int, Answer]:
        polled[pid] = list(fds)
        return {6: Answer("w", True)} if pid == 1 else {4: Answer("rw", False), 6: Answer("w", False)}

    assert _told(pair_pipes(tables, access, poll)) == {
        (1, 3): ("r", PeerState.SELF, ()),
        (1, 4): ("w", PeerState.SELF, ()),
        (1, 5): ("r", PeerState.ALIVE, (2,)),
        (1, 6): ("w", PeerState.DEAD, ()),
        (1, 7): ("w", PeerState.UNKNOWN, ()),
        (1, 8): ("r", PeerState.ALIVE, (2,)),
        (2, 3): ("w", PeerState.ALIVE, (1,)),
        (2, 4): ("rw", PeerState.SELF, ()),
        (2, 5): ("", PeerState.UNKNOWN, ()),
        (2, 6): ("w", PeerState.ALIVE, ()),
        (2, 7): ("rw", PeerState.ALIVE, (1,)),
        (2, 8): ("r", PeerState.UNKNOWN, ()),
    }
    assert polled == {1: [6, 7], 2: [4, 5, 6, 8]}
    assert (1, 6) not in asked  # poll told it
    assert len(asked) == len(set(asked))


def test_nobody_to_ask_is_unknown_not_dead() -> None:
    (end,) = pair_pipes({1: [_end(3, 10)]}, lambda _, fds: dict.fromkeys(fds, "r"))[1]
    assert (end.access, end.peer_state) == ("r", PeerState.UNKNOWN)
    (alone,) = pair_pipes({1: [_end(3, 10)]}, lambda _, fds: dict.fromkeys(fds, "rw"))[1]
    assert alone.peer_state is PeerState.SELF


def test_poll_tells_dead_ends_of_this_process(stack: ExitStack) -> None:
    read_dead, write_gone = os.pipe()
    read_gone, write_dead = os.pipe()
    read_live, write_live = os.pipe()
    for fd in (read_dead, write_dead, read_live, write_live):
        stack.callback(os.close, fd)
    both = os.open(f"/proc/self/fd/{read_live}", os.O_RDWR)
    stack.callback(os.close, both)
    os.close(write_gone)
    os.close(read_gone)
    os.write(write_live, b"x")  # something to be read is no sign of death
    ends = [read_dead, write_dead, read_live, write_live, both]
    assert poll_own(ends) == {
        read_dead: Answer("r", True),
        write_dead: Answer("w", True),
        read_live: Answer("r", False),
        write_live: Answer("w", False),
        both: Answer("rw", False),
    }
    assert read_access(REAL, ME, ends) == dict(zip(ends, ["r", "w", "r", "w", "rw"], strict=True))


def test_poll_leaves_out_what_is_another_thing_by_now(stack: ExitStack) -> None:
    read_end, write_end = os.pipe()
    os.close(write_end)
    os.close(read_end)
    assert poll_own([read_end]) == {}
    fd = os.open(os.devnull, os.O_RDONLY)
    stack.callback(os.close, fd)
    assert poll_own([fd]) == {}
    assert read_access(REAL, ME, [fd, 1 << 20]) == {fd: "r"}


def test_more_ends_than_one_poll_takes(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_AT_ONCE", 10)
    fds = []
    read_end, write_end = os.pipe()
    stack.callback(os.close, read_end)
    for _ in range(25):
        fds.append(os.dup(read_end))
        stack.callback(os.close, fds[-1])
    os.close(write_end)
    assert poll_own(fds) == dict.fromkeys(fds, Answer("r", True))


CHILD = """
import os
a, b = os.pipe(); os.close(b)         # a dead read end
c, d = os.pipe()                      # a self-pair
print(a, c, d, flush=True)
input()
"""


def _child(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_ends_of_another_process() -> None:
    with _child(CHILD) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        dead, one, other = map(int, child.stdout.readline().split())
        table = scan(REAL, child.pid)
        mine = scan(REAL, ME)
        assert table is not None
        assert mine is not None

        alone = {end.fd: end for end in pair_pipes({child.pid: table}, _real_access, poll_other)[child.pid]}
        assert (alone[dead].access, alone[dead].peer_state) == ("r", PeerState.DEAD)
        assert alone[one].peer_state is alone[other].peer_state is PeerState.SELF
        assert (alone[0].peer_state, alone[0].peers) == (PeerState.ALIVE, ())  # this process was not looked at

        both = _told(pair_pipes({child.pid: table, ME: mine}, _real_access))
        assert both[child.pid, 0] == ("r", PeerState.ALIVE, (ME,))
        assert both[ME, child.stdin.fileno()] == ("w", PeerState.ALIVE, (child.pid,))
        child.communicate("\n")
    assert poll_other(child.pid, [0]) == {}


MANY = """
import os
ends = []
for _ in range(150):
    a, b = os.pipe(); os.close(b); ends.append(a)
print(*ends, flush=True)
input()
"""


@pytest.fixture
def many() -> Iterator[tuple[int, list[int]]]:
    with _child(MANY) as child:
        assert child.stdout is not None
        yield child.pid, [int(word) for word in child.stdout.readline().split()]
        child.communicate("\n")


def test_more_ends_than_are_borrowed_at_once(many: tuple[int, list[int]], stack: ExitStack) -> None:
    pid, ends = many
    before = len(os.listdir("/proc/self/fd"))
    assert poll_other(pid, [*ends, 9999]) == dict.fromkeys(ends, Answer("r", True))
    spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    for fd in spare[::2]:
        os.close(fd)  # what is borrowed no longer lies in one piece
    try:
        assert poll_other(pid, ends) == dict.fromkeys(ends, Answer("r", True))
    finally:
        for fd in spare[1::2]:
            os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before


def test_borrowing_with_few_descriptors_free(many: tuple[int, list[int]]) -> None:
    pid, ends = many
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    fillers = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
        while True:
            try:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        assert poll_other(pid, ends) == {}
        for _ in range(4):  # one for the process itself, three to borrow with
            os.close(fillers.pop())
        assert poll_other(pid, ends) == dict.fromkeys(ends, Answer("r", True))
        os.close(fillers.pop())
    finally:
        for fd in fillers:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
