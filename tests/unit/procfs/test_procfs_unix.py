from __future__ import annotations

import errno
import json
import os
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack

import pytest
from fake_proc import FakeProc

from holdfast.procfs import procfs
from holdfast.procfs.peers import PeerState
from holdfast.procfs.procfs import REAL, UnixRow, parse_rows, read_unix_rows
from holdfast.procfs.snapshot import take_snapshot
from holdfast.procfs.sockets import name_row, read_sockets

ME = os.getpid()


def _inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def _message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + body


def _row(inode: int, type_: int, *attributes: bytes) -> bytes:
    return _message(20, struct.pack("=BBBBI8s", 1, type_, 1, 0, inode, bytes(8)) + b"".join(attributes))


def test_rows_of_the_kernel() -> None:
    peer = struct.pack("=HHI", 8, 2, 77)
    name = struct.pack("=HH6s2x", 10, 0, b"/a/sok")
    shutdown = struct.pack("=HHB3x", 5, 6, 3)
    abstract = struct.pack("=HH4s", 8, 0, b"\0a\0b")
    data = _row(5, 1, name, peer, shutdown) + _row(6, 2, abstract) + _row(7, 1, peer, shutdown) + _row(8, 1)
    rows = [
        UnixRow(5, 1, 1, 77, 3, "/a/sok"),
        UnixRow(6, 2, 1, None, 0, "@a@b"),
        UnixRow(7, 1, 1, 77, 3),
        UnixRow(8, 1, 1, None, 0),
    ]
    assert parse_rows(data) == (rows, False)
    assert parse_rows(data + _message(3, bytes(4))) == (rows, True)
    assert parse_rows(b"") == ([], True)
    assert parse_rows(bytes(16)) == ([], True)
    with pytest.raises(PermissionError):
        parse_rows(_message(2, struct.pack("=i", -errno.EPERM) + bytes(16)))


def test_not_yet_accepted_is_not_closed() -> None:
    stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
    assert UnixRow(1, stream, 1, 2, 0).far == 2
    assert UnixRow(3, stream, 1, 0, 3).far == 0
    assert UnixRow(4, stream, 1, 0, 0).far is None  # in the queue of a listener
    assert UnixRow(5, datagram, 1, 0, 0).far == 0
    assert UnixRow(6, stream, 1, None, 0).far is None


def test_the_kernel_reports_real_sockets() -> None:
    with ExitStack() as stack:
        one, other = map(stack.enter_context, socket.socketpair())
        left, gone = socket.socketpair()
        stack.enter_context(left)
        gone.close()
        datagram, gone = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        stack.enter_context(datagram)
        gone.close()
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(f"\0holdfast-test-{ME}")
        listener.listen()
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
        waiting.connect(listener.getsockname())
        rows = read_unix_rows()
        assert (rows[_inode(one)].far, rows[_inode(other)].far) == (_inode(other), _inode(one))
        assert rows[_inode(left)].far == rows[_inode(datagram)].far == 0
        assert rows[_inode(listener)].far is rows[_inode(waiting)].far is None
        ours = {_inode(each) for each in (one, left, datagram, listener, waiting)}
        text = read_sockets(REAL, ME, ours)
        assert {inode: name_row(rows[inode]) for inode in ours - {_inode(datagram)}} == {
            inode: info for inode, info in text.items() if inode != _inode(datagram)
        }
        found = {end.fd: end.peer_state for end in take_snapshot(tree=False).root.socket_ends}
        assert found[one.fileno()] is found[other.fileno()] is PeerState.SELF
        assert found[left.fileno()] is found[datagram.fileno()] is PeerState.DEAD
        assert found[waiting.fileno()] is PeerState.UNKNOWN
        assert listener.fileno() not in found


def test_where_the_kernel_may_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> socket.socket:
        raise PermissionError(errno.EPERM, "as a container's filter says it")

    monkeypatch.setattr(procfs.socket, "socket", forbidden)
    assert read_unix_rows() == {}
    monkeypatch.undo()
    monkeypatch.setattr(procfs, "_DIAG_BY_FAMILY", 9999)  # a kernel without it answers with an error
    assert read_unix_rows() == {}


def test_a_far_end_in_a_child_and_outside() -> None:
    one, other = socket.socketpair()
    text = "import sys; print(flush=True); input()"
    with one, other:
        child = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[other.fileno()],
        )
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            theirs = other.fileno()
            other.close()
            tree = {proc.process.pid: proc for proc in take_snapshot().processes}
            mine = next(end for end in tree[ME].socket_ends if end.fd == one.fileno())
            assert (mine.peer_state, mine.peers) == (PeerState.ALIVE, (child.pid,))
            back = next(end for end in tree[child.pid].socket_ends if end.fd == theirs)
            assert (back.peer_state, back.peers) == (PeerState.ALIVE, (ME,))
            alone = take_snapshot(child.pid).root.socket_ends
            assert [(end.peer_state, end.peers) for end in alone if end.fd == theirs] == [(PeerState.ALIVE, ())]
            child.communicate(b"\n")


def test_a_fake_machine() -> None:
    fake = FakeProc()
    for pid, parent in ((7, 1), (8, 7)):
        fake.add_process(pid, ppid=parent)
        fake.files[f"/proc/{pid}/net/unix"] = "head\n" + "".join(
            f"0: 00000002 00000000 00000000 0001 03 {inode}\n" for inode in (10, 11, 12, 13)
        )
    for fd, inode in ((3, 10), (4, 11), (5, 12)):
        fake.add_fd(7, fd, f"socket:[{inode}]")
    fake.add_fd(8, 3, "socket:[13]")
    assert {end.peer_state for end in take_snapshot(7, procfs=fake).root.socket_ends} == {PeerState.UNKNOWN}
    fake.peers = {10: 11, 11: 10, 12: 13, 13: 12}
    ends = take_snapshot(7, procfs=fake).root.socket_ends
    assert [(end.peer_state, end.peers) for end in ends] == [
        (PeerState.SELF, ()),
        (PeerState.SELF, ()),
        (PeerState.ALIVE, (8,)),
    ]


FULL = """
import json, os, resource, socket
from holdfast.procfs.procfs import REAL
from holdfast.procfs.snapshot import take_snapshot
from holdfast.procfs.sockets import name_row, read_sockets
one, other = socket.socketpair()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True: os.dup(0)
except OSError: pass
ends = take_snapshot(tree=False).root.socket_ends
print(json.dumps([end.peer_state for end in ends]))
"""


def test_without_a_free_descriptor_nothing_is_accused() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []  # not even that they are Unix sockets can be read
