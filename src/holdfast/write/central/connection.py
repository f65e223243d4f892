"""One producer's socket, as the server sees it: HELLO, then frames, each into a buffer of its own."""

from __future__ import annotations

import json
import socket
import time
from typing import Any, Literal, NamedTuple

from ..._native.codec import crc32c
from .arena import NO_SLOT, SLOT, Arena
from .buffers import Buffers
from .frames import HEAD_BYTES, FrameError, Head, Meta, pack_meta, parse_head, parse_meta
from .messages import ACK, HELLO, HELLO_MAGIC, MOST_HELLO_BYTES, PROTOCOL, pack_message

Read = Literal["more", "hello", "memory"]  # what it waits for; or HELLO is there

_MOST_UNSENT_BYTES = 1 << 16
_TOGETHER_BYTES = 1 << 20  # of one producer in one round: others are to have their turn


class Arrived(NamedTuple):
    """A frame that is whole. `raw`: its head and meta. `buffer` None: its payload is in the arena."""

    head: Head
    meta: Meta
    raw: bytes
    payload: memoryview
    buffer: bytearray | None

    @property
    def bytes(self) -> int:
        return len(self.raw) + self.head.payload_bytes


class Connection:
    """`name`: the producer's, None until it was greeted. `arrived`: frames that are to be written.

    OSError and EOFError: it is gone.
    """

    def __init__(self, sock: socket.socket, who: str, most_frame_bytes: int) -> None:
        self.socket, self.who = sock, who
        self.name: str | None = None
        self.since_s = time.monotonic()  # of HELLO; later, of the last byte that came
        self.arrived: list[Arrived] = []
        self.events = 0  # what the selector watches for
        self.is_open = True
        self._most = most_frame_bytes
        self._small = memoryview(bytearray(HELLO.size + MOST_HELLO_BYTES))
        self._have, self._want = 0, HELLO.size
        self._head: Head | None = None
        self._meta: Meta | None = None
        self._buffer: bytearray | None = None
        self._view: memoryview | None = None
        self._got = 0  # of the payload
        self._arena: Arena | None = None
        self._raw_bytes = 0  # of head and meta
        self._unsent = b""
        self._ack: int | None = None

    @property
    def amid(self) -> bool:
        """Whether a frame has begun that is not whole yet."""
        return self.name is not None and self._have > 0

    # ---- in

    def read(self, buffers: Buffers) -> Read:
        """FrameError: what came is not what a producer of ours sends."""
        came = 0
        while came < _TOGETHER_BYTES:
            if self._view is None:
                if not self._fill():
                    return "more"
                if self.name is None:
                    return "hello" if self._hello_is_here() else "more"
                if not self._begin(buffers):
                    return "memory"
            if not self._fill_payload():
                return "more"
            came += self._take()
        return "more"

    def _fill(self) -> bool:
        while self._have < self._want:
            try:
                n = self.socket.recv_into(self._small[self._have : self._want])
            except BlockingIOError:
                return False
            if not n:
                raise EOFError
            self._have += n
            if self.name is not None:
                self.since_s = time.monotonic()
        return True

    def _hello_is_here(self) -> bool:
        magic, size, _ = HELLO.unpack_from(self._small)
        if magic != HELLO_MAGIC or size > MOST_HELLO_BYTES:
            raise FrameError(f"expected HELLO, got {bytes(magic)!r}")
        self._want = HELLO.size + size
        return self._fill()

    def hello(self) -> dict[str, Any]:
        """What the producer said of itself."""
        [crc] = HELLO.unpack_from(self._small)[2:]
        text = bytes(self._small[HELLO.size : self._want])
        try:
            content = json.loads(text) if crc32c(text) == crc else None
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise FrameError("its HELLO cannot be understood")
        if content.get("protocol") != PROTOCOL:
            raise FrameError(f"expected protocol {PROTOCOL}, got {content.get('protocol')!r}")
        return content

    def greeted(self, name: str, n_pieces: int, arena: Arena | None = None) -> None:
        """From here on every head and meta has the same size; a slot's number follows where an arena is shared."""
        self.name, self._arena = name, arena
        self._raw_bytes = HEAD_BYTES + len(pack_meta(name, [0] * n_pieces, [0] * n_pieces))
        self._have, self._want = 0, self._raw_bytes + (SLOT.size if arena else 0)
        self._small = memoryview(bytearray(self._want))

    def _begin(self, buffers: Buffers) -> bool:
        """Head and meta are here: whether there is memory for the rest."""
        if self._meta is None:
            self._head = parse_head(self._small)
            if self._head.meta_bytes != self._raw_bytes - HEAD_BYTES:
                text = f"expected {self._raw_bytes - HEAD_BYTES} bytes of meta, got {self._head.meta_bytes:,}"
                raise FrameError(text)
            if self._head.payload_bytes > self._most:
                raise FrameError(f"a frame of {self._head.payload_bytes:,} bytes, expected {self._most:,} at most")
            self._meta = parse_meta(self._head, self._small)
        assert self._head is not None
        self._view = self._shared(self._head.payload_bytes)
        if self._view is not None:
            self._got = len(self._view)
            return True
        self._buffer = buffers.take(self._head.payload_bytes)
        if self._buffer is None:
            return False
        self._got = 0
        self._view = memoryview(self._buffer)[: self._head.payload_bytes]
        return True

    def _shared(self, size: int) -> memoryview | None:
        """The payload, if it is in the arena."""
        if self._arena is None:
            return None
        [slot] = SLOT.unpack_from(self._small, self._raw_bytes)
        if slot == NO_SLOT:
            return None
        if slot >= self._arena.slots or size > self._arena.slot_bytes:
            raise FrameError(f"{size:,} bytes in slot {slot:,}, expected one of {self._arena.slots} slots")
        return self._arena.slot(slot)[:size]

    def _fill_payload(self) -> bool:
        view = self._view
        assert view is not None
        while self._got < len(view):
            try:
                n = self.socket.recv_into(view[self._got :])
            except BlockingIOError:
                return False
            if not n:
                raise EOFError
            self._got += n
            self.since_s = time.monotonic()
        return True

    def _take(self) -> int:
        """The frame is whole: another may begin."""
        assert self._head is not None
        assert self._meta is not None
        assert self._view is not None
        raw = bytes(self._small[: self._raw_bytes])
        frame = Arrived(self._head, self._meta, raw, self._view, self._buffer)
        self.arrived.append(frame)
        self._head = self._meta = self._view = self._buffer = None
        self._have = 0
        return frame.bytes

    def done(self, buffers: Buffers) -> None:
        """The frames that have arrived were dealt with: their memory is free."""
        for frame in self.arrived:
            frame.payload.release()
            if frame.buffer is not None:
                buffers.give(frame.buffer)
        self.arrived = []

    # ---- out

    def ack(self, mark: int) -> None:
        """Said when it can be: only the last one counts."""
        self._ack = mark
        self.send(b"")

    def send_with(self, data: bytes, fd: int) -> None:
        """The first that is sent; the descriptor goes with it."""
        if self._unsent or self._ack is not None:
            raise EOFError
        self._unsent = data[socket.send_fds(self.socket, [data], [fd]) :]

    def send(self, data: bytes) -> None:
        self._unsent += data
        if self._ack is not None and len(self._unsent) == len(data):
            self._unsent, self._ack = pack_message(ACK, self._ack) + self._unsent, None
        if self._unsent:
            try:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            except BlockingIOError:
                pass
        if len(self._unsent) > _MOST_UNSENT_BYTES + (1 << 24 if self.name is None else 0):
            raise EOFError  # it does not listen

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent) or self._ack is not None

    def close(self, buffers: Buffers) -> None:
        self.is_open = False
        self.done(buffers)
        if self._view is not None:
            self._view.release()
            self._view = None
        if self._buffer is not None:
            buffers.give(self._buffer)
            self._buffer = None
        if self._arena is not None:
            buffers.take_back(self._arena.bytes)
            self._arena = None
        self.socket.close()
