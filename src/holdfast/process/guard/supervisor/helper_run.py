"""Runs what could block the supervisor in a child of its own: probes, and programs whose output is wanted."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Collection

from ...._util.process import die_with_forker
from .reaper import fork_with, reset_signals

_MAX_BYTES = 256 << 10


class HelperRuns:
    """The helper processes that run now."""

    def __init__(self) -> None:
        self._runs: dict[int, tuple[HelperRun, Callable[[str], None]]] = {}
        self._reaped: set[int] = set()

    def start(self, work: Callable[[int], None], within_s: float, done: Callable[[str], None]) -> bool:
        """Starts one, whose output `done` gets: empty, if it takes too long. Returns False if that is impossible."""
        try:
            run = HelperRun(work, time.monotonic() + within_s)
        except OSError:
            return False
        self._runs[run.pid] = run, done
        return True

    @property
    def pids(self) -> set[int]:
        return set(self._runs)

    @property
    def fds(self) -> list[int]:
        return [run.fd for run, _ in self._runs.values() if not run.at_end]

    @property
    def due_s(self) -> float:
        return min((run.until_s for run, _ in self._runs.values() if not run.is_late), default=math.inf)

    def read(self, ready: Collection[int]) -> None:
        for run, _ in self._runs.values():
            if run.fd in ready:
                run.read()

    def reaped(self, pid: int) -> None:
        if pid in self._runs:
            self._reaped.add(pid)

    def finish(self, now_s: float) -> None:
        """Passes on the output of those that have ended, and kills those that take too long."""
        for pid, (run, done) in list(self._runs.items()):
            if pid not in self._reaped:
                if now_s >= run.until_s and not run.is_late:
                    run.kill()
                continue
            while run.read():
                pass
            del self._runs[pid]
            self._reaped.discard(pid)
            run.close()
            done("" if run.is_late else run.output.decode("utf-8", "replace"))

    def close(self) -> None:
        """Kills all, and reaps them."""
        for pid, (run, _) in self._runs.items():
            if pid not in self._reaped:
                run.kill()
                os.waitpid(pid, 0)
            run.close()
        self._runs.clear()


class HelperRun:
    """A child that runs one function, whose result is the bytes that the child writes. It is killed at `until_s`."""

    def __init__(self, work: Callable[[int], None], until_s: float) -> None:
        """`work` gets the descriptor to write to."""
        self.until_s = until_s
        self.output = b""
        self.is_late = False
        self.at_end = False  # of its output
        self.fd, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        supervisor = os.getpid()
        try:
            self.pid = fork_with(lambda: _run(work, write, supervisor), keep=write)
        except OSError:
            os.close(self.fd)
            raise
        finally:
            os.close(write)

    def read(self) -> bool:
        """Reads what is there. Returns False if there is no more: now, or at the end."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return False
        self.at_end = not data
        if len(self.output) < _MAX_BYTES:
            self.output += data
        return bool(data)

    def kill(self) -> None:
        """Kills the child, which must not be reaped yet."""
        self.is_late = True
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self.fd)


def _run(work: Callable[[int], None], write: int, supervisor: int) -> None:
    os.setpgid(0, 0)  # Ctrl-C is for the supervisor
    reset_signals()
    die_with_forker(supervisor)
    os.set_blocking(write, True)
    work(write)


def run_program(command: list[str]) -> Callable[[int], None]:
    """Returns the function that becomes a program, whose stdout and stderr are the output."""

    def work(write: int) -> None:
        os.dup2(write, 1)
        os.dup2(write, 2)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        try:
            os.execv(command[0], command)
        except OSError as error:
            print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)

    return work
