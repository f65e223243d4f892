"""Runs a leaky program as a child process, round by round, with snapshots in between; and a server for its clients."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.process.doctor.fd_profile import profiles_of
from holdfast.process.doctor.model import FdProfile, Sample
from holdfast.procfs.snapshot import take_snapshot

PROGRAMS = Path(__file__).resolve().parent.parent / "leaky_programs"
TIMEOUT_S = 60
# The time on the clock of the samples that a round stands for.
ROUND_S = 60.0


class LeakyProcess:
    """Runs until the end of the `with` block; then its stdin closes, and it must end by itself."""

    def __init__(self, name: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / f"{name}.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._done = 0
        self._expect("ready")

    @property
    def pid(self) -> int:
        return self._process.pid

    def round(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        self._done += 1
        self._expect(f"done {self._done}")

    def rounds(self, times: int, line: str = "") -> list[Sample]:
        """Returns a sample before the first round and one after each, on a clock that counts rounds."""
        samples = [self._sample(0)]
        for number in range(1, times + 1):
            self.round(line)
            samples.append(self._sample(number))
        return samples

    def snapshot(self) -> FdProfile:
        return profiles_of(take_snapshot(self._process.pid))[self._process.pid]

    def _sample(self, number: int) -> Sample:
        fds = len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))
        return Sample(at_s=number * ROUND_S, fds=fds)

    def _expect(self, answer: str) -> None:
        assert self._process.stdout is not None
        waited = select.select([self._process.stdout], [], [], TIMEOUT_S)[0]
        got = self._process.stdout.readline() if waited else f"nothing in {TIMEOUT_S} s"
        if got != answer + "\n":
            self._end(kill=True)
            raise AssertionError(f"expected {answer!r} from the program, got {got!r}")

    def _end(self, kill: bool) -> None:
        if kill:
            self._process.kill()
        self._process.communicate(timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(kill=kind is not None)
        assert kind is not None or self._process.returncode == 0


class LoopbackServer:
    """Answers `ok` to every line, and closes the connection after a line that ends in `close`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def _serve(self) -> None:
        """Serves all clients in one thread: a client waits for its answer before anyone sends more."""
        connections: list[socket.socket] = [self._listener]
        while self._listener in connections:
            for connection in select.select(connections, [], [])[0]:
                if connection is self._listener:
                    self._accept(connections)
                elif not self._answer(connection):
                    connections.remove(connection)
                    connection.close()
        for connection in connections:
            connection.close()

    def _accept(self, connections: list[socket.socket]) -> None:
        try:
            connections.append(self._listener.accept()[0])
        except OSError:  # shut down
            connections.remove(self._listener)

    def _answer(self, client: socket.socket) -> bool:
        line = client.recv(4096)
        if line:
            client.sendall(b"ok\n")
        return bool(line) and not line.endswith(b"close\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
