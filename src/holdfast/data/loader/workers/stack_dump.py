"""Stack dumps of workers: on request, also from one that hangs in C code, and when one crashes."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import select
import signal
import time

from ...._util import process

# A real-time signal, because programs use the named ones themselves.
STACK_SIGNAL = signal.SIGRTMAX - 2

_ANSWER_S = 2.0
_QUIET_S = 0.05
_MAX_LINES = 40


class StackDumps:
    """A memory file that workers write their stacks to."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("holdfast-stacks", os.MFD_CLOEXEC)

    def request(self, pidfd: int) -> str:
        """Returns the stack of a worker, "" if it does not answer."""
        start = os.fstat(self.fd).st_size
        os.lseek(self.fd, start, os.SEEK_SET)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, STACK_SIGNAL)
        self._await_answer(pidfd, start)
        return self.read(start)

    def read(self, start: int = 0) -> str:
        return _format(os.pread(self.fd, 1 << 16, start).decode(errors="replace"))

    def _await_answer(self, pidfd: int, start: int) -> None:
        """Waits until the file has grown and stopped growing. A file cannot be polled."""
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        deadline = time.monotonic() + _ANSWER_S
        before = start
        while time.monotonic() < deadline:
            if poll.poll(_QUIET_S * 1000):
                return  # it ended
            size = os.fstat(self.fd).st_size
            if size == before != start:
                return
            before = size

    def close(self) -> None:
        os.close(self.fd)


def _format(text: str) -> str:
    """Adds the source lines, and leaves out the thread that watches for the end of the pool's process."""
    threads = [part for part in text.strip().split("\n\n") if process.__file__ not in part]
    lines = []
    for line in "\n".join(threads).splitlines()[:_MAX_LINES]:
        lines.append(line)
        place = re.fullmatch(r'\s*File "(.+)", line (\d+) in .*', line)
        if place and (source := linecache.getline(place[1], int(place[2])).strip()):
            lines.append(f"    {source}")
    return "\n".join(lines)
