"""Looks across pid namespaces and between users, with real ones. What cannot be known is unknown, never dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.procfs.peers import PeerState
from holdfast.procfs.snapshot import take_snapshot

pytestmark = [
    pytest.mark.needs("unshare", "nsenter"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes pid namespaces and other users' processes"),
]

# Where the machine lets nobody borrow descriptors of a process that is not a child, poll cannot be asked.
SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
STRICT = SCOPE.exists() and SCOPE.read_text().strip() != "0"
POLLED = {peer_state: "unknown" if STRICT else peer_state for peer_state in ("alive", "dead")}

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child"]

# Holds a dead read end, a self-pair, and a pipe to its own child; says its numbers and its pid as it sees it.
INSIDE = """
import os, subprocess, sys
a, b = os.pipe(); os.close(b)
c, d = os.pipe()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
print(os.getpid(), a, c, d, child.stdin.fileno(), flush=True)
sys.stdin.readline()
child.communicate()
"""

LOOK = """
import json, os, sys
from holdfast.errors import InputError
from holdfast.procfs.procfs import REAL
from holdfast.procfs.snapshot import take_snapshot
os.setgroups([]); uid = int(sys.argv[2]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
try:
    seen = take_snapshot(int(sys.argv[1]) or None).as_dict(descriptors=True)
except InputError as error:
    seen = {"error": str(error)}
print(json.dumps({**seen, "own": REAL.own_pid(), "getpid": os.getpid()}))
"""


@contextmanager
def running(command: list[str], **more: Any) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)
    with child:
        assert child.stdout is not None
        try:
            yield child, [int(word) for word in child.stdout.readline().split()]
        finally:
            child.communicate("\n", timeout=30)


def look(*before: str, pid: int = 0, uid: int = 0) -> dict[str, Any]:
    command = [*before, sys.executable, "-c", LOOK, str(pid), str(uid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def ends_of(look: dict[str, Any]) -> dict[int, tuple[str, list[int]]]:
    return {one["fd"]: (one["peer_state"], one["peers"]) for one in look["descriptors"] if "peer_state" in one}


def child_of(pid: int) -> int:
    return next(one.process.pid for one in take_snapshot(pid).processes if one.process.ppid == pid)


def test_from_outside() -> None:
    with running([*UNSHARE, "--mount-proc", sys.executable, "-c", INSIDE]) as (unshare, said):
        its_own_pid, dead, one, other, to_cat = said
        assert its_own_pid == 1
        pid = child_of(unshare.pid)
        seen = take_snapshot(pid)
        root, cat = seen.processes
        assert (root.process.pid, root.children, cat.process.comm) == (pid, 1, "cat")
        ends = {end.fd: (end.peer_state, end.peers) for end in root.ends}
        assert ends[dead] == (PeerState.DEAD, ())
        assert ends[one] == ends[other] == (PeerState.SELF, ())
        assert ends[to_cat] == (PeerState.ALIVE, (cat.process.pid,))
        assert ends[0] == (PeerState.ALIVE, ())


def test_from_inside() -> None:
    seen = look(*UNSHARE, "--mount-proc")
    assert seen["own"] == seen["getpid"] == seen["pid"] == 1
    assert seen["whole_tree"]
    # Its stdout's reader is outside and was not looked at, but poll knows that there is one.
    assert ends_of(seen["processes"][0])[1] == ("alive", [])


def test_from_inside_with_the_outer_proc() -> None:
    """It still finds itself. Other pids there are not those of its system calls: what poll would say is unknown."""
    with running([sys.executable, "-c", INSIDE]) as (child, (_, dead, one, other, to_cat)):
        own = look(*UNSHARE)
        assert own["getpid"] == 1
        assert own["own"] == own["pid"] != 1
        assert ends_of(own["processes"][0])[1] == ("alive", [])
        theirs = look(*UNSHARE, pid=child.pid)
        ends = ends_of(theirs["processes"][0])
        assert ends[dead] == ("unknown", [])
        assert ends[one] == ends[other] == ("self", [])
        assert ends[to_cat][0] == "alive"


def test_a_proc_this_process_is_not_in() -> None:
    with running([*UNSHARE, "--mount-proc", sys.executable, "-c", INSIDE]) as (unshare, (_, dead, one, other, _)):
        enter = ["nsenter", f"--mount=/proc/{child_of(unshare.pid)}/ns/mnt"]
        lost = look(*enter)
        assert lost["own"] is None
        assert "not visible in /proc" in lost["error"]
        seen = look(*enter, pid=1)
        root = seen["processes"][0]
        assert (seen["own"], root["pid"], root["children"]) == (None, 1, 1)
        ends = ends_of(root)
        assert ends[dead] == ("unknown", [])
        assert ends[one] == ends[other] == ("self", [])
        nofile = root["limits"][0]
        assert nofile["soft"] is not None


PARENT = """
import os, subprocess, sys
a, b = os.pipe()
c, d = os.pipe(); os.close(d)
user = ["setpriv", f"--reuid={sys.argv[1]}", f"--regid={sys.argv[1]}", "--clear-groups"]
child = subprocess.Popen([*user, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[a, c])
child.stdin.write(b"x"); child.stdin.flush(); child.stdout.read(1)     # it is cat by now
os.close(a)
print(child.pid, a, c, flush=True)
sys.stdin.readline()
child.communicate()
"""
NOBODY, SOMEBODY = 65534, 65533


@pytest.mark.needs("setpriv")
def test_processes_of_other_users() -> None:
    """Root's process holds one end, its child, which is nobody's, the other; nobody looks, then somebody else."""
    with running([sys.executable, "-c", PARENT, str(NOBODY)]) as (parent, (child_pid, far, dead)):
        above, below = look(pid=parent.pid, uid=NOBODY)["processes"]
        assert [(one["pid"], one["uid"]) for one in (above, below)] == [(parent.pid, 0), (child_pid, NOBODY)]
        assert above["descriptors"] is above["kinds"] is None
        assert above["limits"][0]["soft"] is not None
        ends = ends_of(below)
        # Held by the one that may not be looked into; and held by none, which poll says of every process, seen or not.
        assert (ends[far], ends[dead]) == ((POLLED["alive"], []), (POLLED["dead"], []))

        strangers = look(pid=parent.pid, uid=SOMEBODY)["processes"]
        assert [one["descriptors"] for one in strangers] == [None, None]
        assert all(one["pipe_ends"]["dead"] == 0 for one in strangers)
