"""What processes send each other over a pipe: a small JSON head, and bytes. A torn frame at the end is no frame."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, BinaryIO, NamedTuple

_SIZES = struct.Struct("<IQ")


class Frame(NamedTuple):
    head: dict[str, Any]
    body: bytes


def pack_frame(head: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return b"".join((_SIZES.pack(len(text), len(body)), text, body))


def send_frame(fd: int, head: dict[str, Any], body: bytes = b"") -> None:
    view = memoryview(pack_frame(head, body))
    while view:
        view = view[os.write(fd, view) :]


def read_frame(stream: BinaryIO) -> Frame | None:
    """None: the other side ended, or was torn away."""
    sizes = stream.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    head_bytes, body_bytes = _SIZES.unpack(sizes)
    text, body = stream.read(head_bytes), stream.read(body_bytes)
    if len(text) < head_bytes or len(body) < body_bytes:
        return None
    return Frame(json.loads(text), body)


class Unpacker:
    """Frames out of bytes that come in any pieces."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        self._held += data

    def next(self) -> Frame | None:
        if len(self._held) < _SIZES.size:
            return None
        head_bytes, body_bytes = _SIZES.unpack_from(self._held)
        middle = _SIZES.size + head_bytes
        end = middle + body_bytes
        if len(self._held) < end:
            return None
        frame = Frame(json.loads(self._held[_SIZES.size : middle]), bytes(self._held[middle:end]))
        del self._held[:end]
        return frame
