"""A worker ends with the process it works for, however that ends, also when another one forked it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast._util.process import ProcessMark, describe_exit, mark_this_process

WAIT_S = 30

# The worker is a grandchild whose own parent lives on, as under a fork server.
OWNER = """
import os, signal
from holdfast._util.process import *
mark, owner = mark_this_process(), open_this_process()
server = os.fork()
if server == 0:
    if os.fork() == 0:
        {watch}
        os.write(1, b"x")
    signal.pause()
os.write(1, b"%d " % server)
signal.pause()
"""


@pytest.mark.parametrize("watch", ["assert end_with_marked(mark)", "end_with(owner)", "die_with_forker(os.getppid())"])
def test_a_worker_ends_with_its_owner_or_its_forker(watch: str) -> None:
    command = [sys.executable, "-c", OWNER.format(watch=watch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as owner:
        assert owner.stdout is not None
        said = b""
        while not (b"x" in said and b" " in said):
            said += os.read(owner.stdout.fileno(), 64)
        server = int(said.replace(b"x", b""))
        first, last = (server, owner.pid) if "forker" in watch else (owner.pid, server)
        os.kill(first, 9)
        worker_left = _children_end_but(last, owner.pid)
        os.kill(last, 9)
        assert not worker_left


def _children_end_but(kept: int, session: int) -> bool:
    """Waits until of the session only `kept`, and who is dead, is left. True: somebody else stayed."""
    deadline = os.times().elapsed + WAIT_S
    while _living(session) - {kept}:
        if os.times().elapsed > deadline:
            return True
    return False


def _living(session: int) -> set[int]:
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, _, _, sid = file.read().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(sid) == session and state != "Z":
            found.add(int(name))
    return found


def test_a_mark_of_another_process_with_this_pid_ends_the_worker() -> None:
    code = (
        "from holdfast._util.process import *; import os; end_with_marked(ProcessMark(os.getppid(), 1)); print('lives')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "")


def test_a_mark_is_of_one_process() -> None:
    mark = mark_this_process()
    assert mark == ProcessMark(os.getpid(), mark.start_ticks)
    assert mark == mark_this_process()
    assert mark.start_ticks


def test_an_exit_is_described() -> None:
    assert describe_exit(3) == "ended with exit code 3"
    assert describe_exit(-11) == "was killed by SIGSEGV"
    assert describe_exit(-9) == "was killed by SIGKILL (out of memory, unless somebody killed it on purpose)"
    assert describe_exit(-99) == "was killed by signal 99"
    assert describe_exit(None) == "ended with an unknown exit code"
