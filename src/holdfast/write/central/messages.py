"""What is said on the socket besides frames.

A producer begins with HELLO: magic, size, crc32c, JSON. The server answers with messages: magic, kind, a number, the
size of a text, the text.

WELCOME   the text is JSON: the schema, how frames are to be made, and `mark`, the number of the row to go on with; an
          `arena`, whose descriptor comes with it, if HELLO said `shares` (arena.py)
ACK       the number: all rows below it are written
FULL      there is no room; the text says where. What was not acknowledged must wait
ROOM      there is again
REFUSED   the text says why; the server hangs up
STOPPING  the server ends as soon as it has taken what was sent
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

from ..._native.codec import crc32c

PROTOCOL = 1
HELLO = struct.Struct("<4sII")
HELLO_MAGIC = b"HFH1"
MOST_HELLO_BYTES = 1 << 14
MESSAGE = struct.Struct("<4sB3xQI")
MESSAGE_MAGIC = b"HFA1"
MOST_TEXT_BYTES = 1 << 24

WELCOME, ACK, FULL, ROOM, REFUSED, STOPPING = range(1, 7)


class Message(NamedTuple):
    kind: int
    number: int
    text: str


def pack_hello(content: dict[str, Any]) -> bytes:
    text = json.dumps({"protocol": PROTOCOL, **content}).encode()
    return HELLO.pack(HELLO_MAGIC, len(text), crc32c(text)) + text


def pack_message(kind: int, number: int = 0, text: str = "") -> bytes:
    data = text.encode()
    return MESSAGE.pack(MESSAGE_MAGIC, kind, number, len(data)) + data


class Unpacker:
    """Messages out of bytes as they come. ValueError: that is no server of ours."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._data += data
        found, at = [], 0
        while len(self._data) - at >= MESSAGE.size:
            magic, kind, number, size = MESSAGE.unpack_from(self._data, at)
            if magic != MESSAGE_MAGIC or size > MOST_TEXT_BYTES:
                raise ValueError(f"expected a message of the central writer, got {bytes(magic)!r}")
            stop = at + MESSAGE.size + size
            if stop > len(self._data):
                break
            found.append(Message(kind, number, self._data[at + MESSAGE.size : stop].decode(errors="replace")))
            at = stop
        del self._data[:at]
        return found
