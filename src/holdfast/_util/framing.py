"""Messages between two processes over a pipe or a socket: a JSON object and bytes, after the length of each.

4 bytes    length of the JSON text, little-endian
8 bytes    length of the bytes
the JSON text, then the bytes
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from typing import Any, NamedTuple

MAX_MESSAGE_BYTES = 1 << 30
_READ_BYTES = 1 << 16  # the size of a pipe
_LONGEST_WAIT_S = 3600.0  # poll cannot wait forever, and a timeout may be infinite

_SIZES = struct.Struct("<IQ")


class MessageError(Exception):
    """A message that is too large, cut off, not a JSON object, or not one that its receiver expects."""


class Message(NamedTuple):
    head: dict[str, Any]
    body: bytes


def pack_message(head: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return b"".join((_SIZES.pack(len(text), len(body)), text, body))


def send_message(fd: int, head: dict[str, Any], body: bytes = b"", timeout_s: float | None = None) -> None:
    """Writes a whole message. `timeout_s` is for all of it; the descriptor must be non-blocking then."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    view = memoryview(pack_message(head, body))
    while view:
        _wait(fd, select.POLLOUT, deadline_s)
        view = view[os.write(fd, view) :]


class MessageReceiver:
    """Receives messages from a descriptor, in pieces of any size.

    `receive()` waits for one message. For an event loop, `read()` reads what has come and `take()` returns the messages
    in it.
    """

    def __init__(self, fd: int, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._fd, self._max_bytes = fd, max_bytes
        self._buffer = bytearray()

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Returns the next message, None at the end of the stream. Raises TimeoutError unless all of it comes in time,
        and MessageError if the stream ends within a message."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (message := self.take()) is None:
            _wait(self._fd, select.POLLIN, deadline_s)
            if not self.read():
                if self._buffer:
                    raise MessageError(f"the stream ended within a message, after {len(self._buffer):,} bytes of it")
                return None
        return message

    def read(self) -> bool:
        """Reads once, which waits if nothing has come. Returns False at the end of the stream."""
        data = os.read(self._fd, _READ_BYTES)
        self._buffer += data
        return bool(data)

    def take(self) -> Message | None:
        """Returns the next message if all of it was read. Raises MessageError as soon as it cannot be valid."""
        if len(self._buffer) < _SIZES.size:
            return None
        head_bytes, body_bytes = _SIZES.unpack_from(self._buffer)
        middle, size = _SIZES.size + head_bytes, head_bytes + body_bytes
        if size > self._max_bytes:
            raise MessageError(f"expected a message of at most {self._max_bytes:,} bytes, got one of {size:,}")
        end = _SIZES.size + size
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            text, body = bytes(view[_SIZES.size : middle]), bytes(view[middle:end])
        del self._buffer[:end]
        try:
            head = json.loads(text)
        except (ValueError, RecursionError):
            head = None
        if not isinstance(head, dict):
            raise MessageError(f"expected a JSON object, got {text[:40]!r}")
        return Message(head, body)


def _wait(fd: int, event: int, deadline_s: float | None) -> None:
    """Waits until the descriptor is ready. Without a deadline, the read or the write waits."""
    if deadline_s is None:
        return
    poll = select.poll()
    poll.register(fd, event)
    while (left_s := deadline_s - time.monotonic()) > 0:
        if poll.poll(min(left_s, _LONGEST_WAIT_S) * 1000):
            return
    raise TimeoutError("the other process took too long")
