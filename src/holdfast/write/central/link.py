"""A producer's connection to the server: found again when it is lost."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from contextlib import suppress
from typing import Any

from ...errors import InputError, RefusedError, ServerLostError
from .address import dial, resolve
from .arena import Arena
from .messages import FULL, REFUSED, ROOM, STOPPING, WELCOME, Message, Unpacker, pack_hello

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25
_ANSWER_S = 10.0
_LONGEST_WAIT_S = 3600.0  # poll cannot wait for ever, and people say inf
_READ_BYTES = 1 << 16
_GONE = (OSError, EOFError, ValueError)


class Link:
    """`welcome`: what the server said last. `full`: why it takes nothing now. `arena`: what the two share. At most one
    descriptor."""

    def __init__(self, target: str, producer: str, token: str | None) -> None:
        self._target = target
        self._hello: dict[str, Any] = {"producer": producer, "token": token}
        self._hello |= {"pid": os.getpid(), "host": socket.gethostname(), "shares": True}
        self._socket: socket.socket | None = None
        self._unpacker = Unpacker()
        self._poll = select.poll()
        self.welcome: dict[str, Any] = {}
        self.arena: Arena | None = None
        self.full: str | None = None
        self.why = "it was not asked yet"

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self, deadline_s: float) -> None:
        """Tries again until the deadline. ServerLostError: nobody was there. RefusedError: it does not want us."""
        pause_s = _FIRST_PAUSE_S
        while not self._try(deadline_s):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise ServerLostError(f"{self._target}: the central writer does not answer: {self.why}")
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _try(self, deadline_s: float) -> bool:
        left_s = max(0.05, min(_ANSWER_S, deadline_s - time.monotonic()))
        try:
            self._socket = dial(resolve(self._target), left_s)
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
            self._unpacker, self.full = Unpacker(), None
            self._say_hello(time.monotonic() + left_s)
            return True
        except InputError as error:
            self.why = str(error)
        except _GONE as error:
            self.why = getattr(error, "strerror", None) or str(error) or "it hung up"
        except BaseException:
            self.close()
            raise
        self.close()
        return False

    def _say_hello(self, deadline_s: float) -> None:
        assert self._socket is not None
        left = pack_hello(self._hello)
        while left:
            left = left[self._socket.send(left) :]
        fds: list[int] = []
        try:
            while True:
                for message in self.hear(fds):
                    if message.kind == WELCOME:
                        self._welcomed(json.loads(message.text), fds)
                        return
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("it took the connection, and said nothing")
                self._poll.poll(left_s * 1000)
        finally:
            for fd in fds:
                os.close(fd)

    def _welcomed(self, welcome: dict[str, Any], fds: list[int]) -> None:
        self.welcome, self.full, self.arena = welcome, welcome["full"], None
        if welcome.get("arena") and fds:  # none: no descriptor was free for it
            with suppress(OSError):  # no memory: then rows are sent
                self.arena = Arena(fds[0], *welcome["arena"])

    def hear(self, fds: list[int] | None = None) -> list[Message]:
        """What has come; `fds` takes descriptors that came with it. OSError, EOFError, ValueError: the connection is of
        no use any more."""
        assert self._socket is not None
        try:
            if fds is None or self._socket.family != socket.AF_UNIX:
                data = self._socket.recv(_READ_BYTES)
            else:
                data, sent, _, _ = socket.recv_fds(self._socket, _READ_BYTES, 1)
                fds += sent
        except BlockingIOError:
            return []
        if not data:
            raise EOFError("it hung up")
        messages = self._unpacker.feed(data)
        for message in messages:
            if message.kind == REFUSED:
                raise RefusedError(
                    f"{self._target}: the central writer refused {self._hello['producer']!r}: {message.text}"
                )
            if message.kind == FULL:
                self.full = message.text
            elif message.kind == ROOM:
                self.full = None
            elif message.kind == STOPPING:
                self.why = "it is being stopped"
        return messages

    def send(self, buffers: list[Any]) -> int:
        """How many bytes were taken now."""
        assert self._socket is not None
        try:
            return self._socket.sendmsg(buffers)
        except BlockingIOError:
            return 0

    def wait(self, wants_to_send: bool, wait_s: float) -> None:
        assert self._socket is not None
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if wants_to_send else 0))
        self._poll.poll(min(max(0.0, wait_s), _LONGEST_WAIT_S) * 1000)

    def lost(self, error: BaseException) -> None:
        self.why = getattr(error, "strerror", None) or str(error) or self.why
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
