"""Python in another process: one that holds something until its stdin ends, and a fork that runs one function."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TIMEOUT_S = 60

_TAKES_LOCK = """
import fcntl, struct, sys
file = open(sys.argv[1], "r+")
{call}
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def python(program: str, *arguments: object, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a child and waits until it prints "ready"; it ends when its stdin does."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=os.environ | env) as child:
        try:
            assert read_line(child) == "ready"
            yield child
        finally:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(TIMEOUT_S)


def read_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    assert select.select([child.stdout], [], [], TIMEOUT_S)[0]
    return child.stdout.readline().removesuffix("\n")


def run_forked(work: Callable[[], object]) -> int:
    """Returns the exit status of a forked child that calls `work` and skips the parent's clean-up."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
            raise
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---- file locks --------------------------------------------------------------------------------------------


def takes_lock(call: str) -> str:
    """The program that opens its first argument as `file`, locks it with `call` and keeps the lock."""
    return _TAKES_LOCK.format(call=call)


def ofd_lock(kind: str, start: int = 0, length: int = 0) -> str:
    """A call for takes_lock: an open file description lock (37 is F_OFD_SETLK)."""
    return f"fcntl.fcntl(file, 37, struct.pack('hhqqi4x', fcntl.{kind}, 0, {start}, {length}, 0))"
