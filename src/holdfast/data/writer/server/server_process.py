"""`out.server(…)`: the settings of the central writer, and the handle of its process."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from .... import errors
from ...._util.compression import check_codec
from ...._util.framing import MessageError
from ...._util.helper_process import HelperProcess, module_command
from ...._util.process import describe_exit, mark_this_process
from ...._util.text import parse_bytes, time_argument
from ....errors import ClosedWriterError, ServerLostError, WriteError

Ack = Literal["process", "disk"]

TOKEN = "HOLDFAST_TOKEN"

_START_S = 60.0
_ANSWER_S = 30.0
_EXIT_S = 0.5


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
        if self.chunk_rows is not None and (not isinstance(self.chunk_rows, int) or self.chunk_rows < 1):
            raise ValueError(f"chunk_rows must be a positive integer, got {self.chunk_rows!r}")
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
    """Makes settings from sizes such as "64MiB" and times such as "1min", with the token from the environment by
    default."""
    for name in ("queue_bytes", "segment_bytes", "backlog_bytes"):
        if name in given:
            given[name] = parse_bytes(given[name])
    if "seal_after" in given:
        given["seal_after_s"] = time_argument(given.pop("seal_after"), "seal_after", zero=False)
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
        self._child: HelperProcess | None = None
        self._pid = -1
        self._owner = os.getpid()
        self.address = ""

    @property
    def pid(self) -> int:
        return self._pid

    def start(self) -> Self:
        if self._child is not None or self.address:
            raise ClosedWriterError("this server was already started; make a new one with out.server(…)")
        self._child = HelperProcess(module_command("data.writer.server.server_main"))
        self._pid = self._child.pid
        job = {"folder": str(self._folder), "settings": self._settings.as_dict(), "parent": mark_this_process()}
        try:
            self.address = self._ask(job, "address", _START_S)
        except BaseException:
            self._kill()
            raise
        return self

    def stats(self) -> dict[str, Any]:
        """Returns frames, rows and bytes received, producers, watermarks, memory, journal, and errors."""
        stats: dict[str, Any] = self._ask({"command": "stats"}, "stats", _ANSWER_S)
        return stats

    def stop(self, timeout: float | str | None = None) -> None:
        """Receives what was sent, makes parts of all rows, and ends the process. Safe to call twice.

        timeout   after it the process is killed, and the next server makes the missing parts
        """
        if self._child is None or self._owner != os.getpid():
            return
        try:
            timeout_s = None if timeout is None else time_argument(timeout, "timeout", endless=True)
            self._ask({"command": "stop"}, "stopped", timeout_s)
        finally:
            self._kill()

    def _ask(self, command: dict[str, Any], key: str, timeout_s: float | None) -> Any:
        """Sends a command and returns `key` of the answer. A server that has ended said why in its last answer."""
        if self._child is None:
            raise ClosedWriterError("the server is not running")
        self._child.send(command)
        while key not in (answer := self._read_answer(self._child, timeout_s)):
            pass  # the late answer to an earlier command
        return answer[key]

    def _read_answer(self, child: HelperProcess, timeout_s: float | None) -> dict[str, Any]:
        try:
            answer = child.receive(timeout_s)
        except TimeoutError:
            raise ServerLostError(f"the server (process {self._pid}) did not answer within {timeout_s} s") from None
        except MessageError as error:
            raise ServerLostError(f"the server (process {self._pid}) sent no valid answer: {error}") from None
        if answer is None:
            raise ServerLostError(f"the server (process {self._pid}) {describe_exit(child.wait())}")
        if "error" in answer.head:
            name, text = answer.head["error"], answer.head["text"]
            raise getattr(errors, name, ValueError if name == "ValueError" else WriteError)(text)
        return answer.head

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close(_EXIT_S)

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
