"""Starts child processes that run a module of this package, and exchanges messages with them over stdin and stdout."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from .framing import MAX_MESSAGE_BYTES, MessageReceiver, send_message
from .process import PACKAGE_PARENT


def module_command(module: str) -> list[str]:
    """Returns the command that runs a module of this package; `-P` keeps the working directory off `sys.path`."""
    return [sys.executable, "-P", "-m", f"holdfast.{module}"]


def child_environment(**more: str) -> dict[str, str]:
    """Returns the environment of a child that is to import this same package, with `more` variables set."""
    paths = [PACKAGE_PARENT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | more


class HelperProcess(MessageReceiver):
    """A child process. Messages that are received are its answers; its stdout ends when it does.

    It has a process group of its own, because Ctrl-C is for the parent, which then ends it.
    """

    def __init__(self, command: list[str], *, max_bytes: int = MAX_MESSAGE_BYTES, **options: Any) -> None:
        options = {"env": child_environment()} | options
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, process_group=0, **options)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._stdin, self._stdout = self._child.stdin, self._child.stdout
        self.pid, self.fd = self._child.pid, self._stdout.fileno()
        super().__init__(self.fd, max_bytes)

    def send(self, head: dict[str, Any], body: bytes = b"") -> bool:
        """Returns False if the child ended before it had read the message."""
        try:
            send_message(self._stdin.fileno(), head, body)
        except BrokenPipeError:
            return False
        return True

    def close_stdin(self) -> None:
        self._stdin.close()

    def wait(self) -> int:
        """Waits for its end and returns the exit code, negative for a signal."""
        return self._child.wait()

    def kill(self) -> None:
        self._child.kill()

    def close(self, within_s: float = 0.0) -> None:
        """Kills it, unless it ends by itself `within_s`. Safe to call twice."""
        try:
            self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._stdin.close()
        self._stdout.close()
