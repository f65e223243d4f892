"""Sends a signal to a process that handles it, and to no other: unhandled, SIGUSR1 and SIGUSR2 end a process."""

from __future__ import annotations

import os
import signal

from ...procfs.processes import Identity, is_same, read_status
from ...procfs.procfs import REAL


def handles_signal(pid: int, number: int) -> bool:
    """Returns whether the process has a handler for the signal: `SigCgt:\\t0000000000000a00` is a mask of them."""
    try:
        return bool(int(read_status(REAL, pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)
    except ValueError:
        return False


def send_handled_signal(identity: Identity, number: int) -> str:
    """Sends the signal if that process is still there and handles it. Returns what prevented it, or nothing."""
    name = signal.Signals(number).name
    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError as error:
        return "it has ended" if isinstance(error, ProcessLookupError) else f"cannot refer to it: {error.strerror}"
    try:
        # With a pidfd the number cannot become another process's between the checks and the signal.
        if is_same(REAL, identity) is not True:
            return "it has ended"
        if not handles_signal(identity.pid, number):
            return f"it has no handler for {name}, which would end it"
        signal.pidfd_send_signal(pidfd, number)
    except OSError as error:
        return "it has ended" if isinstance(error, ProcessLookupError) else f"cannot send {name}: {error.strerror}"
    finally:
        os.close(pidfd)
    return ""
