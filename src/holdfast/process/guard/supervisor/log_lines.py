"""Writes the supervisor's log to stderr, as lines or as JSON, and never blocks on its reader.

stderr is shared with the workers, so its own mode is left alone: a pipe or a terminal is opened once more without
blocking, and a socket is sent to without waiting. What cannot be written is dropped and counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
import time
from typing import Any

from ...._util.text import counted, printable

_STDERR = 2
_MAX_BYTES = 4096  # a pipe takes that many at once or none


class LogLines:
    def __init__(self, *, as_json: bool = False, quiet: bool = False, fd: int = _STDERR) -> None:
        self._as_json = as_json
        self._quiet = quiet
        self._dated = "JOURNAL_STREAM" not in os.environ  # the journal has its own times
        self._dropped = 0
        self._fd = fd
        self._own = -1
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):
            self._open(fd)

    def _open(self, fd: int) -> None:
        mode = os.fstat(fd).st_mode
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(fd))
        elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            self._own = os.open(f"/proc/self/fd/{fd}", flags)

    def write(self, facts: dict[str, Any], text: str) -> None:
        """Writes one line: `text` for people, or `facts` as JSON. No error is raised."""
        if self._quiet and not self._as_json:
            return
        if self._dropped:
            lost = f"{counted(self._dropped, 'line')} of this log could not be written"
            if not self._write_line({"t": facts.get("t"), "kind": "lost", "text": lost}, lost):
                self._dropped += 1
                return
            self._dropped = 0
        if not self._write_line(facts, text):
            self._dropped += 1

    def _write_line(self, facts: dict[str, Any], text: str) -> bool:
        if self._as_json:
            line = json.dumps(facts)
            if len(line) >= _MAX_BYTES:
                line = json.dumps(facts | {"text": str(facts.get("text"))[:500] + " …"})
        else:
            now = time.strftime("%Y-%m-%d %H:%M:%S ") if self._dated else ""
            line = f"{now}holdfast: {printable(text)}"
        data = line.encode("utf-8", "backslashreplace")
        return self._send(data[: _MAX_BYTES - 1] + b"\n")

    def _send(self, data: bytes) -> bool:
        try:
            if self._socket is not None:
                return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(data)
            if self._own >= 0:
                return os.write(self._own, data) == len(data)
            # A file, or what could not be opened once more: for that, at least do not wait if it is full now.
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            return bool(poll.poll(0)) and os.write(self._fd, data) == len(data)
        except OSError:  # a full disk, or nobody reads any more
            return False

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._own >= 0:
            os.close(self._own)
            self._own = -1
