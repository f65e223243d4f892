"""`out.server(…)`: the settings of the central writer, and the handle of its process."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from ... import errors
from ..._util.compression import check_codec
from ..._util.process import child_environment, mark_this_process, module_command
from ..._util.text import parse_bytes
from ...errors import ClosedWriterError, ServerLostError, WriteError

Ack = Literal["process", "disk"]

TOKEN = "HOLDFAST_TOKEN"

_START_S = 60.0
_ANSWER_S = 30.0
_LONGEST_WAIT_S = 3600.0  # poll cannot wait forever, and a timeout may be infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of a server, validated."""

    address: str | None = None  # None, "unix", "unix:/a/path.sock", "tcp://host:port"
    ack: Ack = "process"
    queue_bytes: int = 256_000_000
    segment_bytes: int = 64 << 20
    backlog_bytes: int = 4 << 30
    seal_after_s: float = 60.0
    seal: bool = True
    token: str | None = None
    take_over: bool = False
    chunk_rows: int | None = None
    codec: Any = None

    def __post_init__(self) -> None:
        if self.ack not in ("process", "disk"):
            raise ValueError(f'expected ack to be "process" or "disk", got {self.ack!r}')
        if not self.seal_after_s > 0:
            raise ValueError(f"expected seal_after_s to be above 0, got {self.seal_after_s!r}")
        if self.chunk_rows is not None and (not isinstance(self.chunk_rows, int) or self.chunk_rows < 1):
            raise ValueError(f"expected chunk_rows to be a number from 1 up, got {self.chunk_rows!r}")
        if self.is_tcp and not self.token:
            text = f"expected a token for a server that is reachable over the network: token=, {TOKEN}, --token-file"
            raise ValueError(text)
        check_codec(self.codec)

    @property
    def is_tcp(self) -> bool:
        return self.address is not None and self.address.startswith("tcp://")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_settings(**given: Any) -> ServerSettings:
    """Makes settings from sizes such as "64MiB", with the token from the environment by default."""
    for name in ("queue_bytes", "segment_bytes", "backlog_bytes"):
        if name in given:
            given[name] = parse_bytes(given[name])
    if given.get("token") is None:
        given["token"] = os.environ.get(TOKEN)
    return ServerSettings(**given)


class Server:
    """The central writer in a process of its own. At the end of its `with` block, all rows it received are in parts.

    address   what producers connect to
    pid       its process

    It ends with this process, however that ends: what it acknowledged is in the journal then, and the next server makes
    parts of it.
    """

    def __init__(self, folder: Path, settings: ServerSettings) -> None:
        self._folder, self._settings = folder, settings
        self._child: subprocess.Popen[bytes] | None = None
        self._pid = -1
        self._owner = os.getpid()
        self._output = b""
        self.address = ""

    @property
    def pid(self) -> int:
        return self._pid

    def start(self) -> Self:
        if self._child is not None or self.address:
            raise ClosedWriterError("this server was already started; make a new one with out.server(…)")
        self._child = subprocess.Popen(
            module_command("writer.server.server_main"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            process_group=0,  # Ctrl-C is for this process: the end of the `with` block stops the server
        )
        self._pid = self._child.pid
        settings = self._settings.as_dict()
        try:
            self._send_line(
                json.dumps({"folder": str(self._folder), "settings": settings, "parent": mark_this_process()})
            )
            self.address = self._read_answer(_START_S)["address"]
        except BaseException:
            self._kill()
            raise
        return self

    def stats(self) -> dict[str, Any]:
        """Returns frames, rows and bytes received, producers, watermarks, memory, journal, and errors."""
        self._send_line("stats")
        stats: dict[str, Any] = self._read_answer(_ANSWER_S)["stats"]
        return stats

    def stop(self, timeout: float | None = None) -> None:
        """Receives what was sent, makes parts of all rows, and ends the process. Safe to call twice.

        timeout   seconds; then it is killed, and the next server makes the missing parts
        """
        if self._child is None or self._owner != os.getpid():
            return
        try:
            self._send_line("stop")
            while "stopped" not in self._read_answer(timeout):
                pass
        finally:
            self._kill()

    def _send_line(self, line: str) -> None:
        if self._child is None:
            raise ClosedWriterError("the server is not running")
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(line.encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # it ended; its last answer says why

    def _read_answer(self, timeout: float | None) -> dict[str, Any]:
        assert self._child is not None
        assert self._child.stdout is not None
        deadline = None if timeout is None else time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._child.stdout, select.POLLIN)
        while b"\n" not in self._output:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise ServerLostError(f"the server (process {self._pid}) did not answer within {timeout} s")
            if left_s is not None and not poll.poll(min(left_s, _LONGEST_WAIT_S) * 1000):
                continue
            data = os.read(self._child.stdout.fileno(), 1 << 16)
            if not data:
                code = self._child.wait()
                raise ServerLostError(f"the server (process {self._pid}) has ended with exit code {code}")
            self._output += data
        line, _, self._output = self._output.partition(b"\n")
        content: dict[str, Any] = json.loads(line)
        if "error" in content:
            kind = getattr(errors, content["error"], ValueError if content["error"] == "ValueError" else WriteError)
            raise kind(content["text"])
        return content

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        try:
            child.wait(0.5 if child.poll() is None and self._output == b"" else 0)
        except subprocess.TimeoutExpired:
            child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __del__(self) -> None:
        if getattr(self, "_child", None) is not None and self._owner == os.getpid():
            self._kill()

    def __repr__(self) -> str:
        return f"<Server {self.address or 'not started'}, process {self._pid}>"
