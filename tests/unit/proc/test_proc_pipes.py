from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import pytest

from holdfast.proc import pipes
from holdfast.proc.descriptors import Descriptor, Kind, describe, scan
from holdfast.proc.pipes import Fate, pair_pipes, poll_other, poll_own
from holdfast.proc.procfs import REAL

ME = os.getpid()


def _end(fd: int, inode: int, access: str) -> Descriptor:
    return Descriptor(fd, Kind.PIPE, f"pipe:[{inode}]", inode, access)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def _pipe() -> tuple[int, int]:
    return os.pipe()


def _describe(fd: int) -> Descriptor:
    found = describe(REAL, ME, fd)
    assert found is not None
    return found


def test_pairs_over_a_tree() -> None:
    tables = {
        1: [_end(3, 10, "r"), _end(4, 10, "w"), _end(5, 11, "r"), _end(6, 12, "w"), _end(7, 13, "w")],
        2: [_end(3, 11, "w"), _end(4, 14, "rw"), _end(5, 15, ""), _end(6, 13, "w")],
    }
    asked: dict[int, list[int]] = {}

    def poll(pid: int, ends: Sequence[Descriptor]) -> Mapping[int, bool]:
        asked[pid] = [end.fd for end in ends]
        return {6: True} if pid == 1 else {6: False}

    found = {(end.pid, end.fd): (end.fate, end.peers) for end in pair_pipes(tables, poll)}
    assert found == {
        (1, 3): (Fate.SELF, ()),
        (1, 4): (Fate.SELF, ()),
        (1, 5): (Fate.ALIVE, (2,)),
        (1, 6): (Fate.DEAD, ()),
        (1, 7): (Fate.UNKNOWN, ()),
        (2, 3): (Fate.ALIVE, (1,)),
        (2, 4): (Fate.SELF, ()),
        (2, 5): (Fate.UNKNOWN, ()),
        (2, 6): (Fate.ALIVE, ()),
    }
    assert asked == {1: [6, 7], 2: [6]}


def test_nobody_to_ask_is_unknown_not_dead() -> None:
    (end,) = pair_pipes({1: [_end(3, 10, "r")]})
    assert end.fate is Fate.UNKNOWN


def test_poll_tells_dead_ends_of_this_process(stack: ExitStack) -> None:
    read_dead, write_gone = _pipe()
    read_gone, write_dead = _pipe()
    read_live, write_live = _pipe()
    for fd in (read_dead, write_dead, read_live, write_live):
        stack.callback(os.close, fd)
    os.close(write_gone)
    os.close(read_gone)
    os.write(write_live, b"x")  # something to be read is no sign of death
    ends = [_describe(fd) for fd in (read_dead, write_dead, read_live, write_live)]
    assert poll_own(ends) == {read_dead: True, write_dead: True, read_live: False, write_live: False}


def test_poll_leaves_out_what_is_another_thing_by_now(stack: ExitStack) -> None:
    read_end, write_end = _pipe()
    was = _describe(read_end)
    os.close(write_end)
    os.close(read_end)
    assert poll_own([was]) == {}
    fd = os.open(os.devnull, os.O_RDONLY)
    stack.callback(os.close, fd)
    assert poll_own([was._replace(fd=fd)]) == {}


def test_more_ends_than_one_poll_takes(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "_AT_ONCE", 10)
    fds = []
    read_end, write_end = _pipe()
    stack.callback(os.close, read_end)
    for _ in range(25):
        fds.append(os.dup(read_end))
        stack.callback(os.close, fds[-1])
    os.close(write_end)
    inode = os.fstat(read_end).st_ino
    answers = poll_own([_end(fd, inode, "r") for fd in fds])
    assert answers == dict.fromkeys(fds, True)


CHILD = """
import os
a, b = os.pipe(); os.close(b)         # a dead read end
c, d = os.pipe()                      # a self-pair
print(a, c, d, flush=True)
input()
"""


def test_the_ends_of_another_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        dead, one, other = map(int, child.stdout.readline().split())
        table = scan(REAL, child.pid)
        mine = scan(REAL, ME)
        assert table is not None
        assert mine is not None

        alone = {end.fd: end for end in pair_pipes({child.pid: table}, poll_other)}
        assert alone[dead].fate is Fate.DEAD
        assert alone[one].fate is alone[other].fate is Fate.SELF
        assert (alone[0].fate, alone[0].peers) == (Fate.ALIVE, ())  # this process was not looked at

        both = {(end.pid, end.fd): end for end in pair_pipes({child.pid: table, ME: mine})}
        assert both[child.pid, 0].peers == (ME,)
        assert both[ME, child.stdin.fileno()].peers == (child.pid,)
        child.communicate("\n")
    assert poll_other(child.pid, [_end(0, 1, "r")]) == {}
