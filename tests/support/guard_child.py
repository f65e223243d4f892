"""Workers with a Guard, each in a process of its own: what they print, what their guard logs, how they end."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.process.guard.heartbeat import Heartbeat, read_heartbeat

TIMEOUT_S = 60
# How many descriptors a Guard takes: its log, statm, three in reserve, and four of the responder for owners.
TAKEN = 9

# For all programs: `until(f)` waits for f(), `fill(keep)` takes descriptors until only `keep` are free.
PROLOGUE = """
import errno, os, resource, signal, sys, threading, time
import holdfast as hold
EVERY = 0.02
def until(what, within_s=50):
    deadline = time.monotonic() + within_s
    while not what():
        if time.monotonic() > deadline:
            sys.exit("waited in vain")
        time.sleep(0.002)
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
def fill(keep=0):
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError as error:
        assert error.errno == errno.EMFILE
    for _ in range(keep):
        os.close(taken.pop())
    return taken
def is_full():
    try:
        os.close(os.dup(0))
    except OSError:
        return True
    return False
"""

# A loop that polls until it drains, and leaks `leak` descriptors with each round.
LOOP = """
guard = hold.Guard("worker", every=EVERY, **eval(sys.argv[1]))
leak = int(sys.argv[2]) if len(sys.argv) > 2 else 0
kept = []
with guard:
    say("ready")
    while not guard.draining:
        guard.ok()
        kept += [os.dup(0) for _ in range(leak)]
        guard.wait(0.01)
    say(guard.reason)
say(guard.exit_code, guard.wants_restart)
sys.exit(guard.exit_code)
"""

# Keeps read ends of pipes without a writer until its hard cap, half of the limit, ends it.
LEAKS_TO_THE_HARD_CAP = """
class Holder:
    def __init__(self):
        self.pipes = []
holder = Holder()
guard = hold.Guard("worker", every=EVERY, fds=hold.Cap(hard=0.5), eta=None)
def work_in_the_job():
    while True:
        if len(holder.pipes) < 0.6 * limit:  # it would reach its limit before the next sample on a busy machine
            reader, writer = os.pipe()
            os.close(writer)
            holder.pipes.append(os.fdopen(reader, "rb", buffering=0))
        time.sleep(0.001)
with guard:
    import resource
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    work_in_the_job()
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: list[str]
    log: str

    @property
    def logged(self) -> list[str]:
        """The guard's own lines, without time and name."""
        return [line.split("]: ", 1)[1] for line in self.log.splitlines() if " holdfast guard " in line]


class GuardedChild:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], TIMEOUT_S)[0], "it said nothing"
        return self.process.stdout.readline().removesuffix("\n")

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def page(self) -> Heartbeat:
        found = read_heartbeat(self.pid)
        assert found is not None, "it has no heartbeat page"
        return found

    def wait_for(self, what: Callable[[], Any]) -> None:
        wait_for(lambda: what() or self.process.poll() is not None)
        assert self.process.poll() is None, f"it ended before, with {self.process.returncode}"

    def end(self) -> Ended:
        out, log = self.process.communicate(timeout=TIMEOUT_S)
        return Ended(self.process.returncode, out.splitlines(), log)


def wait_for(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


@contextlib.contextmanager
def guarded(
    program: str,
    *arguments: object,
    nofile: int | tuple[int, int] | None = None,
    before: tuple[str, ...] = (),
    **env: str,
) -> Iterator[GuardedChild]:
    """Starts PROLOGUE and the program, under its own limit of open files; kills it at the end if it still runs."""
    limits = (nofile, nofile) if isinstance(nofile, int) else nofile

    def prepare() -> None:
        if limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    command = [*before, sys.executable, "-c", PROLOGUE + program, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process: subprocess.Popen[str] = subprocess.Popen(
        command, **pipes, text=True, env=os.environ | env, preexec_fn=prepare if limits else None
    )
    with process:
        try:
            yield GuardedChild(process)
        finally:
            if process.poll() is None:
                process.kill()


def run_guarded(program: str, *arguments: object, **more: Any) -> Ended:
    with guarded(program, *arguments, **more) as child:
        return child.end()


def is_alive(pid: int) -> bool:
    """Whether it runs: a zombie that its parent has not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
