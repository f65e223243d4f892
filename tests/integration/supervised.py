"""`holdfast supervise` in a process of its own, its log as JSON, and the processes that it starts."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cli_process import environment

TIMEOUT_S = 60.0
COMMAND = [sys.executable, "-m", "holdfast", "supervise"]
# A worker that says its pid in a file and sleeps; its own arguments follow.
SLEEPER = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(600)"


class Supervised:
    """Starts the command; `with` ends it and everything below it."""

    def __init__(self, folder: Path, *arguments: object, tick: str = "0.1s", prefix: tuple[str, ...] = (), **env: str):
        self.folder = folder
        self.runtime = folder / "runtime"
        self.runtime.mkdir(exist_ok=True)
        self.seen: list[dict[str, Any]] = []
        self.other: list[str] = []
        self._rest = b""
        command = [*prefix, *COMMAND, "--json", "--tick", tick, *map(str, arguments)]
        env = {"XDG_RUNTIME_DIR": str(self.runtime)} | env
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(**env),
            cwd=folder,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, kind: str, text: str = "", reason: str | None = None, *, after: int = 0) -> dict[str, Any]:
        """Waits for a line of the log, the first one that fits among those from number `after` on."""

        def fits(line: dict[str, Any]) -> bool:
            return line["kind"] == kind and text in line["text"] and (reason is None or line["reason"] == reason)

        deadline_s = time.monotonic() + TIMEOUT_S
        at = after
        while True:
            while at < len(self.seen):
                if fits(self.seen[at]):
                    return self.seen[at]
                at += 1
            assert self._read(deadline_s), f"no {kind} {reason or ''} {text!r} in {self.log()}"

    def _read(self, deadline_s: float) -> bool:
        assert self.process.stderr is not None
        fd = self.process.stderr.fileno()
        if not select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            return False
        data = os.read(fd, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b'{"t"'):
                self.seen.append(json.loads(line))
            else:
                self.other.append(line.decode(errors="replace"))
        return bool(data)

    def wait(self) -> int:
        """Waits for the end and returns the exit code."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while self._read(deadline_s):
            pass
        return self.process.wait(TIMEOUT_S)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def log(self) -> str:
        return "\n".join([*(line["text"] for line in self.seen), *self.other])

    def kinds(self) -> list[str]:
        return [line["kind"] for line in self.seen]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


def python(code: str, *arguments: object) -> list[str]:
    """The command of a worker that runs a piece of Python, without the imports of site."""
    return ["--", sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]


def guarded(code: str, *arguments: object) -> list[str]:
    """The same with holdfast at hand."""
    return ["--", sys.executable, "-c", code, *map(str, arguments)]


def until(what: Callable[[], Any]) -> Any:
    """Waits until a function returns something true, and returns that."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (found := what()):
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.01)
    return found


def pids_in(path: Path) -> list[int]:
    """The pids that a worker has written, one in a line."""
    with contextlib.suppress(FileNotFoundError):
        return [int(line) for line in path.read_text().splitlines() if line.isdigit()]
    return []


def runs(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextlib.contextmanager
def killed_at_end(pids: Callable[[], list[int]]) -> Iterator[None]:
    """Kills processes if a test fails to have them ended."""
    try:
        yield
    finally:
        for pid in pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
