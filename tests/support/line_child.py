"""A child process that answers JSON lines over its pipes, and says why when it dies."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class ChildDiedError(Exception):
    """The child ended, or did not answer in time. The message ends with its last words."""


class ChildError(Exception):
    """The child answered with an error: `type` is its class's name there."""

    def __init__(self, type_: str, text: str) -> None:
        super().__init__(type_, text)
        self.type = type_
        self.text = text

    def __str__(self) -> str:
        return f"{self.type}: {self.text}"


class LineChild:
    """Start, ask, kill. What it prints, out or err, goes to the file `said`."""

    def __init__(
        self,
        command: list[str],
        said: Path,
        *,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 120,
    ) -> None:
        self._said = said
        self._timeout_s = timeout_s
        with said.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env, cwd=cwd
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self._death("is gone") from None
        if not select.select([self._process.stdout], [], [], self._timeout_s)[0]:
            raise self._death(f"did not answer in {self._timeout_s} s", wait_s=0)
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._death("ended in the middle of an answer" if line else "ended without an answer")
        reply = json.loads(line)
        if "error" in reply:
            raise ChildError(reply["type"], reply["error"])
        return reply["result"]

    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _death(self, how: str, wait_s: float = 5) -> ChildDiedError:
        """Its pipe closes a little before it ends: it gets the time to end with its own exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        self.close()
        return ChildDiedError(
            f"the child {how} (exit code {self._process.returncode}); it said:\n{self.said()[-4000:]}"
        )
