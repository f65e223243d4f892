"""The parent's half: every side is a child process that stays for the run and takes its turns when asked."""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).resolve().parent

NAMES = ("holdfast", "plain", "tensorflow", "pypi_tfrecord")


class SideError(Exception):
    """A side cannot take part, and why."""


class Side:
    """One child. What it says to stderr is kept for the case that it dies."""

    def __init__(self, name: str, python: str, env: dict[str, str]) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [python, str(HERE / f"side_{name}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, **env},
            text=True,
        )

    def call(self, operation: str, **job: Any) -> Any:
        return self._ask({"call": operation, **job})

    def turn(self, operation: str, **job: Any) -> dict[str, float]:
        answer: dict[str, float] = self._ask({"turn": operation, **job})
        return answer

    def _ask(self, job: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SideError(f"{self.name} ended: {self._last_words()}")
        reply = json.loads(line)
        if "error" in reply:
            raise SideError(f"{self.name}: {reply['error']}")
        return reply["result"]

    def _last_words(self) -> str:
        self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"

    def close(self) -> None:
        """It ends by itself when its pipe closes, and removes its temporary files; killed, it would not."""
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._said.close()


class Sides:
    """Starts a side when it is first needed; a side that cannot start is remembered with its reason."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[str, Side] = {}
        self.missing: dict[str, str] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        # As pip does when it installs: processes that are started anew do not compile us again.
        compileall.compile_dir(str(HERE.parent / "src" / "holdfast"), quiet=2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def get(self, name: str) -> Side:
        """Raises SideError with the reason when it cannot take part."""
        if name in self.missing:
            raise SideError(self.missing[name])
        if name not in self._running:
            try:
                self._running[name] = self._start(name)
            except SideError as error:
                self.missing[name] = str(error)
                raise
        return self._running[name]

    def _start(self, name: str) -> Side:
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"} if name == "tensorflow" else {}
        side = Side(name, _python_of(name), quiet)
        self._stack.callback(side.close)
        self.facts[name] = side.call("facts")
        return side


def _python_of(name: str) -> str:
    if name != "pypi_tfrecord":
        return sys.executable
    beside = HERE.parent / ".venv-peers" / "bin" / "python"
    python = os.environ.get("HOLDFAST_PEERS_PYTHON") or (str(beside) if beside.exists() else "")
    if not python:
        raise SideError(
            "PyPI tfrecord is not there; `python3 -m venv .venv-peers && "
            ".venv-peers/bin/pip install tfrecord` installs it"
        )
    return str(Path(python).absolute())  # not resolved: the link is what makes it the environment's Python
