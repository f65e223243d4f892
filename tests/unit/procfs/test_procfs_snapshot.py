from __future__ import annotations

import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from fake_proc import FakeProc

from holdfast.errors import InputError
from holdfast.procfs.descriptors import Kind
from holdfast.procfs.peers import PeerState
from holdfast.procfs.procfs import REAL, number_or_none
from holdfast.procfs.snapshot import take_snapshot

ME = os.getpid()


def test_this_process(tmp_path: Path) -> None:
    with ExitStack() as stack:
        read_end, write_end = os.pipe()
        stack.callback(os.close, read_end)
        os.close(write_end)
        one, other = socket.socketpair()
        stack.enter_context(one)
        stack.enter_context(other)
        pair = one.fileno(), other.fileno()
        for _ in range(3):
            stack.enter_context(open(tmp_path / "same", "a"))
        seen = take_snapshot(tree=False)
    proc = seen.root
    assert proc.process.pid == ME
    assert proc.fd_count == len(proc.descriptors or ()) == sum(proc.kinds.values())
    assert read_end in [end.fd for end in proc.ends_of(PeerState.DEAD)]
    assert [len(group.fds) for group in proc.path_groups if group.path == str(tmp_path / "same")] == [3]
    states = {each.fd: each.socket.state for each in proc.descriptors or () if each.socket}
    assert states[pair[0]] == states[pair[1]] == "CONNECTED"
    assert seen.tightest is not None
    assert {limit.name for limit in proc.limits} == {"nofile", "nproc"}


def test_a_tree_of_real_processes() -> None:
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(flush=True); input()'])"
    child = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        seen = take_snapshot()
        pids = [proc.process.pid for proc in seen.processes]
        assert seen.whole_tree
        assert pids[0] == ME
        at = pids.index(child.pid)
        grandchild = seen.processes[at + 1].process
        assert grandchild.ppid == child.pid
        mine = next(end for end in seen.root.ends if end.fd == child.stdin.fileno())
        assert mine.peer_state is PeerState.ALIVE
        assert set(mine.peers) == {child.pid, grandchild.pid}
        child.communicate(b"\n")


def test_inotify_is_counted() -> None:
    libc = ctypes.CDLL(None)
    fd = int(libc.inotify_init1(0))
    try:
        assert libc.inotify_add_watch(fd, b"/tmp", 2) > 0
        shared = {limit.name: limit for limit in take_snapshot(tree=False).shared}
    finally:
        os.close(fd)
    assert shared["inotify_instances"].used
    assert shared["inotify_watches"].used


def test_no_such_process() -> None:
    nobody = (number_or_none(REAL, "/proc/sys/kernel/pid_max") or 1 << 22) + 1
    with pytest.raises(InputError, match="there is no process"):
        take_snapshot(nobody)
    with pytest.raises(InputError, match="not visible in"):
        take_snapshot(procfs=FakeProc())


def _fake() -> FakeProc:
    fake = FakeProc()
    fake.add_process(7)
    fake.add_process(8, ppid=7)
    fake.add_fd(7, 3, "pipe:[10]", 0o500)
    fake.add_fd(8, 4, "pipe:[10]", 0o300)
    fake.add_fd(8, 5, "pipe:[11]", 0o300)
    return fake


def test_a_fake_tree() -> None:
    seen = take_snapshot(7, procfs=_fake())
    assert [proc.process.pid for proc in seen.processes] == [7, 8]
    assert [(end.peer_state, end.peers) for proc in seen.processes for end in proc.ends] == [
        (PeerState.ALIVE, (8,)),
        (PeerState.ALIVE, (7,)),
        (PeerState.UNKNOWN, ()),
    ]
    assert seen.kinds == {Kind.PIPE: 3}
    assert {limit.name: limit.used for limit in seen.shared}["pipe_user_pages"] == 32


def test_another_users_process_is_unknown_not_orphaned() -> None:
    fake = _fake()
    fake.denied.add("/proc/8/fd")
    seen = take_snapshot(7, procfs=fake)
    theirs = seen.processes[1]
    assert (theirs.descriptors, theirs.fd_count) == (None, 2)
    assert [end.peer_state for end in seen.root.ends] == [PeerState.UNKNOWN]


def test_a_child_that_ends_during_the_snapshot_is_left_out() -> None:
    class Ending(FakeProc):
        def readlink(self, path: str) -> str:
            for gone in [one for one in (*self.files, *self.links) if one.startswith("/proc/8/")]:
                self.files.pop(gone, None)
                self.links.pop(gone, None)
            return super().readlink(path)

    was = _fake()
    seen = take_snapshot(7, procfs=Ending(files=was.files, links=was.links))
    assert [proc.process.pid for proc in seen.processes] == [7]


def test_a_pid_given_out_again_during_the_snapshot_is_left_out() -> None:
    class Reused(FakeProc):
        def readlink(self, path: str) -> str:
            self.add_process(8, ppid=1, start=9000)
            return super().readlink(path) if path.startswith("/proc/7/") else ""

    was = _fake()
    reused = Reused(files=was.files, links={key: it for key, it in was.links.items() if "/8/" in key})
    seen = take_snapshot(7, procfs=reused)
    assert [proc.process.pid for proc in seen.processes] == [7]


FULL = """
import json, os, resource
from holdfast.procfs.procfs import REAL
from holdfast.procfs.processes import sample_kinds
from holdfast.procfs.snapshot import take_snapshot
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
a, b = os.pipe(); os.close(b)
c, d = os.pipe(); os.close(c)
e, f = os.pipe()
try:
    while True: os.open(os.devnull, os.O_RDONLY)
except OSError: pass
seen = take_snapshot()
sample = sample_kinds(REAL, os.getpid())
try: os.open(os.devnull, os.O_RDONLY); full = False
except OSError: full = True
root = seen.root
print(json.dumps({
    "full": full, "count": root.fd_count, "kinds": root.kinds, "whole": seen.whole_tree,
    "dead": sorted(end.fd for end in root.ends if end.peer_state == "dead") == sorted([a, d]),
    "self": sorted(end.fd for end in root.ends if end.peer_state == "self") == sorted([e, f]),
    "tightest": seen.tightest.name, "headroom": seen.tightest.headroom,
    "sampled": sample.sampled, "rss": bool(root.process.rss_bytes), "threads": root.process.threads,
    "start": root.process.start_ticks is not None,
}))
"""


def test_without_one_free_descriptor() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    kinds = said.pop("kinds")
    assert kinds["pipe"] == 6  # with its stdout and stderr
    assert sum(kinds.values()) == 96
    assert said == {
        "full": True,
        "count": 96,
        "whole": False,
        "dead": True,
        "self": True,
        "tightest": "nofile",
        "headroom": 0,
        "sampled": 96,
        "rss": False,
        "threads": 1,
        "start": False,
    }


def _run(text: str, *arguments: str) -> object:
    done = subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OTHER_USER = """
import json, os, sys
from holdfast.procfs.snapshot import take_snapshot
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
others = [pid for pid in (1, int(sys.argv[1])) if os.stat(f"/proc/{pid}").st_uid != os.getuid()]
looks = [take_snapshot(pid, tree=False).root for pid in others]
print(json.dumps([[look.descriptors, look.fd_count, bool(look.process.comm), look.ends] for look in looks]))
"""


def test_a_real_process_of_another_user() -> None:
    """Root becomes nobody and looks at this process; anyone else looks at the first one."""
    counted = os.stat("/proc/self/fd").st_size > 0
    seen = _run(OTHER_USER, str(ME))
    assert isinstance(seen, list)
    for descriptors, fds, named, ends in seen:
        assert descriptors is None
        assert named
        assert ends == []
        assert (fds is not None) == counted


ZOMBIE = """
import json, os
from holdfast.procfs.snapshot import take_snapshot
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
child = take_snapshot().processes[1]
print(json.dumps([child.process.pid == pid, child.process.state, child.fd_count or 0]))
os.waitpid(pid, 0)
"""


def test_a_child_nobody_waited_for() -> None:
    assert _run(ZOMBIE) == [True, "Z", 0]


def test_a_snapshot_as_json() -> None:
    fake = _fake()
    fake.files["/proc/7/limits"] = "Max open files            1024                 unlimited            files\n"
    fake.files["/proc/7/limits"] += "Max processes             unlimited            unlimited            processes\n"
    fake.files["/proc/uptime"] = "105.00 9.0\n"
    for fd in range(20, 23):
        fake.add_fd(7, fd, "/data/a.bin")
    fake.denied.add("/proc/8/fd")
    seen = take_snapshot(7, procfs=fake)
    plain = json.loads(json.dumps(seen.as_dict(descriptors=True), allow_nan=False))
    assert plain["pid"] == 7
    assert plain["whole_tree"] is True
    assert plain["fd_count"] == 6
    root, child = plain["processes"]
    assert (root["children"], child["children"]) == (1, 0)
    assert root["uptime_s"] == 105 - 500 / os.sysconf("SC_CLK_TCK")
    assert root["kinds"] == {"file": 3, "pipe": 1}
    assert root["path_groups"] == [{"path": "/data/a.bin", "kind": "file", "count": 3, "fds": [20, 21, 22]}]
    assert root["pipe_ends"] == {"self": 0, "alive": 0, "dead": 0, "unknown": 1}
    nofile, nproc = root["limits"]
    assert (nofile["soft"], nofile["hard"], nofile["unlimited"], nofile["headroom"]) == (1024, None, False, 1020)
    assert (nproc["soft"], nproc["unlimited"]) == (None, True)
    assert root["descriptors"][0] == {
        "fd": 3,
        "kind": "pipe",
        "target": "pipe:[10]",
        "inode": 10,
        "peer_state": "unknown",
        "peers": [],
        "access": "r",
    }
    assert child["kinds"] is child["descriptors"] is None
    assert child["fd_count"] == 2
    assert "descriptors" not in seen.as_dict()["processes"][0]
    assert seen.root.as_dict() == seen.as_dict()["processes"][0]


def test_a_real_snapshot_as_json() -> None:
    one, other = socket.socketpair()
    with one, other:
        plain = json.loads(json.dumps(take_snapshot().as_dict(descriptors=True), allow_nan=False))
        fd = one.fileno()
    root = plain["processes"][0]
    found = next(each for each in root["descriptors"] if each["fd"] == fd)
    assert found["peer_state"] == "self"
    assert found["socket"]["family"] == "unix"
    assert root["socket_ends"]["self"] >= 2
    assert {limit["name"] for limit in plain["shared"]} >= {"file_max", "nr_open", "cgroup_pids", "dev_shm_bytes"}


def test_a_snapshot_in_one_line() -> None:
    fake = _fake()
    seen = take_snapshot(7, procfs=fake)
    assert str(seen.root) == "7 worker --flag: 1 descriptors (pipe 1)"
    assert str(seen).startswith("7 worker --flag: 1 descriptors (pipe 1); 3 with 1 below it")
    assert repr(seen) == "<Snapshot of <ProcessSnapshot 7 worker: 1 descriptors>, 2 processes, 3 descriptors>"
    fake.denied.add("/proc/8/fd")
    fake.modern = False
    assert "? descriptors" in repr(take_snapshot(7, procfs=fake))


def test_collecting_garbage_goes_on_after_a_snapshot() -> None:
    take_snapshot(tree=False)
    assert gc.isenabled()
    gc.disable()
    try:
        take_snapshot(tree=False)
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(InputError):
        take_snapshot(1 << 30)
    assert gc.isenabled()
