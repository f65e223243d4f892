"""Gets the Python stacks of another process: from py-spy, else from the process itself.

A Guard arms a signal on which faulthandler writes all stacks to the guard's log, also while C code holds the GIL. No
signal is sent to a process that has not armed it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ..._util.fds import open_regular
from ..._util.text import one_line
from ...procfs.processes import read_stat
from ...procfs.procfs import REAL, read_or_none, readlink_or_none, stat_or_none
from .heartbeat import Heartbeat
from .signals import send_handled_signal

_PYTHON = re.compile(r"/(?:lib)?python[23][.\d]*t?d?(?:\.so[.\d]*)?$", re.MULTILINE)
_SPY_S = 10.0
_STOPPED = frozenset("Tt")
_STEP_S = 0.05
_QUIET_S = 0.3  # faulthandler writes without a pause, so after this long it is done
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDump:
    """`source` is "py-spy", "faulthandler" or "" if there are no stacks; `problem` is what did not work."""

    source: str = ""
    text: str = ""
    problem: str = ""


def is_python(pid: int) -> bool:
    """Returns whether the process runs a Python interpreter: as its program, or as a library of it."""
    program = readlink_or_none(REAL, f"/proc/{pid}/exe") or ""
    if _PYTHON.search(program.removesuffix(" (deleted)")):
        return True
    return bool(_PYTHON.search(read_or_none(REAL, f"/proc/{pid}/maps") or ""))


def dump_stacks(pid: int, page: Heartbeat | None, *, may_touch: bool = True, signal_wait_s: float = 5.0) -> StackDump:
    """Returns the stacks of all threads. Without `may_touch` the process is neither paused nor sent a signal."""
    if not is_python(pid):
        return StackDump(problem="it is not a Python process")
    spied = _spy(pid, may_touch=may_touch)
    if spied.source:
        return spied
    if page is None or not page.stacks_signal:
        why = "it has no Guard" if page is None else "its Guard has armed no signal for them"
        return StackDump(problem=f"{spied.problem}; and {why} that could write them itself")
    if not may_touch:
        return StackDump(problem=f"{spied.problem}; not asked for by a signal, because nothing may be changed")
    asked = _ask(page, signal_wait_s)
    return asked if asked.source else StackDump(problem=f"{spied.problem}; {asked.problem}")


# ---- py-spy


def find_spy() -> str | None:
    """Returns the path of py-spy: beside this Python, or on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _spy(pid: int, *, may_touch: bool) -> StackDump:
    spy = find_spy()
    if spy is None:
        return StackDump(problem="py-spy is not installed (pip install py-spy)")
    seen = read_stat(REAL, pid)
    # py-spy pauses the process, which fails for one that is stopped already, and takes for ever in a system call.
    pauses = may_touch and seen is not None and seen.state not in _STOPPED
    found = _run_spy([spy, "dump", "--pid", str(pid)]) if pauses else StackDump()
    return found if found.source else _run_spy([spy, "dump", "--nonblocking", "--pid", str(pid)])


def _run_spy(command: list[str]) -> StackDump:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SPY_S
        )
    except subprocess.TimeoutExpired:
        return StackDump(problem=f"py-spy got no answer within {_SPY_S:.0f} s")
    except OSError as error:
        return StackDump(problem=f"py-spy cannot be run: {error.strerror}")
    if done.returncode == 0 and "Thread" in done.stdout:
        # The first lines name the process and its Python.
        return StackDump(source="py-spy", text=done.stdout.partition("\n\n")[2].strip("\n"))
    return StackDump(problem=f"py-spy failed: {_reason(done.stderr)}")


def _reason(stderr: str) -> str:
    """Picks the causes out of the error of py-spy, which lists them above a backtrace."""
    lines = [one_line(line) for line in stderr.partition("Stack backtrace:")[0].splitlines()]
    reasons = [
        re.sub(r"^(Error|\d+): ", "", line) for line in lines if line and not line.startswith(("Caused by", "Reason"))
    ]
    return ": ".join(reasons[:3]) or "it gave no reason"


# ---- faulthandler


def _ask(page: Heartbeat, wait_s: float) -> StackDump:
    """Sends the armed signal, and reads what faulthandler appends to the guard's log."""
    seen = read_stat(REAL, page.pid)
    if seen is not None and seen.state in _STOPPED:
        return StackDump(problem="it is stopped, so that it cannot write its stacks (SIGCONT resumes it)")
    log = _Log(page)
    before = log.size()
    if problem := send_handled_signal(page.identity, page.stacks_signal):
        return StackDump(problem=f"it was not asked to write its stacks: {problem}")
    name = signal.Signals(page.stacks_signal).name
    if log.problem:
        return StackDump(problem=f"it was asked with {name} to write its stacks, {log.problem}")
    text = log.read_new(before, wait_s)
    if not text:
        return StackDump(problem=f"it wrote nothing to {log.path} within {wait_s:.0f} s after {name}")
    return StackDump(source="faulthandler", text=text)


class _Log:
    """The log of a guard, as another process sees it. `problem` is why it cannot be read."""

    def __init__(self, page: Heartbeat) -> None:
        self.problem = ""
        self.path = page.log or readlink_or_none(REAL, f"/proc/{page.pid}/fd/2") or ""  # a copy of stderr
        self._owner = stat_or_none(REAL, f"/proc/{page.pid}")
        try:
            os.close(self._open())
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EPERM):
                self.problem = f"which are in {self.path}: that is not a plain file of its user"
                return
            where = f"{page.log}, which cannot be read: {error.strerror}" if page.log else f"its stderr ({self.path})"
            self.problem = f"which are in {where}"

    def _open(self) -> int:
        # Checked each time, because the process can replace its file.
        fd = open_regular(self.path)
        # A page can name any file; root must not print another user's.
        if self._owner is None or os.fstat(fd).st_uid not in (self._owner.st_uid, os.geteuid()):
            os.close(fd)
            raise PermissionError(errno.EPERM, "it belongs to another user")
        return fd

    def size(self) -> int:
        found = None if self.problem else stat_or_none(REAL, self.path)
        return 0 if found is None else found.st_size

    def read_new(self, start: int, wait_s: float) -> str:
        """Waits until the log has grown beyond `start` and grows no more, and returns the new part."""
        end = time.monotonic() + wait_s
        last, changed = start, time.monotonic()
        while (now := time.monotonic()) < end:
            size = self.size()
            if size != last:
                last, changed = size, now
            elif size > start and now - changed >= _QUIET_S:
                break
            time.sleep(_STEP_S)
        try:
            fd = self._open()
        except OSError:
            return ""
        try:
            return os.pread(fd, min(_MAX_BYTES, max(0, last - start)), start).decode("utf-8", "replace").strip("\n")
        finally:
            os.close(fd)
