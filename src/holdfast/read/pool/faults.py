"""What went wrong with a worker, in words."""

from __future__ import annotations

import signal

from ...proc.processes import read_stat
from ...proc.procfs import REAL

_STATES = {
    "T": "stopped by a signal (SIGCONT lets it go on)",
    "t": "stopped by a debugger",
    "D": "waiting for a disk or a network mount",
    "R": "running",
    "S": "waiting",
    "Z": "ended",
}


class WorkerTraceback(Exception):
    """The cause of an error that came from a worker: where it was raised there."""

    def __init__(self, pid: int, sample: str, text: str) -> None:
        super().__init__(pid, sample, text)
        self.pid = pid
        self.sample = sample
        self.text = text

    def __str__(self) -> str:
        return f"in worker {self.pid}, at {self.sample}:\n{self.text}"


def is_stopped(pid: int) -> bool:
    return _state(pid) in ("T", "t")


def tell_state(pid: int) -> str:
    state = _state(pid)
    return _STATES.get(state, f"in state {state}") if state else "gone"


def tell_end(exit_code: int | None) -> str:
    if exit_code is None:
        return "ended; how is not known"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    name = _signal_name(-exit_code)
    hint = "; if nobody did so on purpose, it was out of memory" if -exit_code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def _state(pid: int) -> str:
    stat = read_stat(REAL, pid)
    return stat.state if stat else ""


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
