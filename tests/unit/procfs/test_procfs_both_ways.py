"""A whole look, compiled and in Python, at the same processes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from python_twins import use_python

from holdfast._native.c_modules import fdscan
from holdfast.procfs.peers import PeerState
from holdfast.procfs.snapshot import Snapshot, take_snapshot

# A parent and two children: pipes between them, self-pairs, dead ends, sockets, files, one path many times.
TREE = """
import os, signal, socket, sys, tempfile
links = [os.pipe() for _ in range(20)]
for _ in range(2):
    ready, tell = os.pipe()
    if os.fork() == 0:
        for _, end in links[:10]: os.close(end)
        held = [os.pipe(), socket.socketpair(), os.eventfd(0), tempfile.TemporaryFile()]
        os.write(tell, b"x")
        while True: signal.pause()
    os.close(tell)
    os.read(ready, 1)
for read_end, _ in links: os.close(read_end)
for n in range(200):
    ends = os.pipe()
    if n % 3: os.close(ends[n % 3 - 1])
sockets = [socket.socketpair() for _ in range(20)] + [(socket.socket(), socket.create_server(("127.0.0.1", 0)))]
sockets[0][0].close()
files = [open(sys.executable, "rb") for _ in range(400)] + [tempfile.TemporaryFile() for _ in range(5)]
print(flush=True)
input()
os.kill(0, signal.SIGKILL)
"""


def _told(seen: Snapshot) -> list[Any]:
    return [
        (proc.process.pid, proc.fd_count, proc.descriptors, proc.ends, proc.socket_ends, proc.kinds, proc.path_groups)
        for proc in seen.processes
    ]


@pytest.mark.skipif(not fdscan, reason="the compiled module was not built, or not expected")
def test_both_ways_tell_the_same_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", TREE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as tree:
        assert tree.stdout is not None
        tree.stdout.readline()
        fast = _told(take_snapshot(tree.pid))
        use_python(monkeypatch)
        slow = _told(take_snapshot(tree.pid))
        tree.communicate(b"\n")
    assert [repr(one) for one in fast] == [repr(one) for one in slow]
    assert fast == slow
    assert len(fast) == 3
    assert {end.peer_state for end in fast[0][3]} == {PeerState.SELF, PeerState.ALIVE, PeerState.DEAD}
    assert sum(len(one[2]) for one in fast) > 800
