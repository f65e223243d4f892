"""Where in its code a worker is, asked from outside: it may be hung, stopped, or held up in C."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import select
import signal
import time

# A real-time signal: programs use the named ones themselves.
STACK_SIGNAL = signal.SIGRTMAX - 2

_ANSWER_S = 2.0
_QUIET_S = 0.05
_OWN = ("_base/parent.py",)
_SHOWN = 40


class StackDumps:
    """A nameless file that workers write their stacks to, when they are asked or when they crash."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("holdfast-words", os.MFD_CLOEXEC)

    def ask(self, pidfd: int) -> str:
        """The stack of a worker, "" if it does not answer."""
        start = os.fstat(self.fd).st_size
        os.lseek(self.fd, start, os.SEEK_SET)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, STACK_SIGNAL)
        self._await(pidfd, start)
        return self.read(start)

    def read(self, start: int = 0) -> str:
        text = os.pread(self.fd, 1 << 16, start).decode(errors="replace")
        return _readable(text)

    def _await(self, pidfd: int, start: int) -> None:
        """Until something came and no more does. There is nothing to wait on: a file cannot be polled."""
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        deadline = time.monotonic() + _ANSWER_S
        had = start
        while time.monotonic() < deadline:
            if poll.poll(_QUIET_S * 1000):
                return  # it ended
            has = os.fstat(self.fd).st_size
            if has == had != start:
                return
            had = has

    def close(self) -> None:
        os.close(self.fd)


def _readable(text: str) -> str:
    threads = [part for part in text.strip().split("\n\n") if not any(own in part for own in _OWN)]
    lines = []
    for line in "\n".join(threads).splitlines()[:_SHOWN]:
        lines.append(line)
        place = re.fullmatch(r'\s*File "(.+)", line (\d+) in .*', line)
        if place and (source := linecache.getline(place[1], int(place[2])).strip()):
            lines.append(f"    {source}")
    return "\n".join(lines)
