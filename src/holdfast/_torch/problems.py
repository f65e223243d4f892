"""What a worker is at, and how it ended, in words."""

from __future__ import annotations

import signal

from holdfast.proc.processes import read_stat
from holdfast.proc.procfs import REAL

_STATES = {
    "T": "stopped by a signal (SIGCONT lets it go on)",
    "t": "stopped by a debugger",
    "D": "waiting for a disk or a network mount",
    "R": "running",
    "S": "waiting",
    "Z": "ended",
}


def is_stopped(pid: int) -> bool:
    return _state(pid) in ("T", "t")


def tell_state(pid: int) -> str:
    state = _state(pid)
    return _STATES.get(state, f"in state {state}") if state else "gone"


def _state(pid: int) -> str:
    stat = read_stat(REAL, pid)
    return stat.state if stat else ""


def tell_death(pid: int, exit_code: int | None) -> str:
    """In torch's words, which logs and tests look for."""
    if exit_code is None or exit_code >= 0:
        code = "" if exit_code is None else f" with exit code {exit_code}"
        return f"DataLoader worker (pid(s) {pid}) exited unexpectedly{code}"
    return f"DataLoader worker (pid {pid}) is killed by signal: {_signal_name(-exit_code)}"


def _signal_name(number: int) -> str:
    text = signal.strsignal(number) or f"signal {number}"
    return f"{text} ({signal.Signals(number).name})" if number in set(signal.Signals) else text
