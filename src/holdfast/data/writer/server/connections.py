"""The server's connections to producers: handshake, frames in, acknowledgements out, and the memory for frames.

`BufferPool` bounds the memory of all connections. `Connection` is one producer's socket: a HELLO, then frames.
`Connections` holds all of them, and decides what the selector watches for each.
"""

from __future__ import annotations

import errno
import hmac
import json
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from ...._native.codec import crc32c
from ..directory import check_task
from .address import enlarge_buffers, is_short_of_fds
from .protocol import (
    ACK,
    HEAD_BYTES,
    HELLO,
    HELLO_MAGIC,
    MAX_HELLO_BYTES,
    PROTOCOL,
    REFUSED,
    STOPPING,
    WELCOME,
    FrameError,
    Head,
    Meta,
    pack_message,
    pack_meta,
    parse_head,
    parse_meta,
)
from .shared_buffer import NO_SLOT, SLOT, SharedBuffer, make_shared_buffer

_log = logging.getLogger("holdfast.server")

_STEP_BYTES = 1 << 16
_MAX_UNSENT_BYTES = 1 << 16
_READ_AT_ONCE_BYTES = 1 << 20  # from one producer before the others get their turn
_HELLO_S = 5.0
_STALLED_S = 30.0  # in the middle of a frame, while others wait for its memory
_MAX_UNAUTHENTICATED = 64
_RESERVED_FDS, _RESERVED_FDS_AUTHENTICATED = 12, 20  # so that the journal and the sealer always get theirs


class BufferPool:
    """Reusable buffers for incoming frames, up to `max_bytes` over all connections."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0  # in use, free for reuse, or shared with producers
        self._shared_bytes = 0
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray | None:
        """Returns a buffer of at least that size. None: there is no memory for it now."""
        wanted = max(_STEP_BYTES, -(-size // _STEP_BYTES) * _STEP_BYTES)
        for at, buffer in enumerate(self._free):
            if wanted <= len(buffer) <= 2 * wanted:
                return self._free.pop(at)
        while self._free and self.bytes + wanted > self.max_bytes:
            self.bytes -= len(self._free.pop(0))
        if self.bytes > self._shared_bytes and self.bytes + wanted > self.max_bytes:
            return None
        try:
            buffer = bytearray(wanted)
        except MemoryError:
            return None
        self.bytes += wanted
        return buffer

    def release(self, buffer: bytearray) -> None:
        self._free.append(buffer)

    def reserve_shared(self, size: int) -> bool:
        """Returns whether that many bytes may be shared with a producer while it is connected: at most half of all."""
        if self._shared_bytes + size > self.max_bytes // 2:
            return False
        self._shared_bytes += size
        self.bytes += size
        return True

    def release_shared(self, size: int) -> None:
        self._shared_bytes -= size
        self.bytes -= size


Read = Literal["more", "hello", "memory"]  # needs more bytes; HELLO has arrived; needs a buffer


class ReceivedFrame(NamedTuple):
    """A complete frame. `raw`: its head and meta. `buffer` None: the payload is in the shared buffer."""

    head: Head
    meta: Meta
    raw: bytes
    payload: memoryview
    buffer: bytearray | None

    @property
    def bytes(self) -> int:
        return len(self.raw) + self.head.payload_bytes


class Connection:
    """One producer's socket. Every method may raise OSError or EOFError: the producer is gone.

    name      the producer's name; None before the handshake
    received  complete frames that are not written yet
    """

    def __init__(self, sock: socket.socket, who: str, max_frame_bytes: int) -> None:
        self.socket, self.who = sock, who
        self.name: str | None = None
        self.since_s = time.monotonic()  # of the connection; after the handshake, of the last byte received
        self.received: list[ReceivedFrame] = []
        self.events = 0  # that the selector watches
        self.is_open = True
        self._max_frame_bytes = max_frame_bytes
        self._small = memoryview(bytearray(HELLO.size + MAX_HELLO_BYTES))
        self._have, self._want = 0, HELLO.size
        self._head: Head | None = None
        self._meta: Meta | None = None
        self._buffer: bytearray | None = None
        self._view: memoryview | None = None
        self._got = 0  # of the payload
        self._shared_buffer: SharedBuffer | None = None
        self._raw_bytes = 0  # of head and meta
        self._unsent = b""
        self._ack: int | None = None

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame is partly received."""
        return self.name is not None and self._have > 0

    # ---- receiving

    def read(self, buffers: BufferPool) -> Read:
        """Reads what the socket has. FrameError: the bytes do not follow the protocol."""
        came = 0
        while came < _READ_AT_ONCE_BYTES:
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
        if magic != HELLO_MAGIC or size > MAX_HELLO_BYTES:
            raise FrameError(f"expected HELLO, got {bytes(magic)!r}")
        self._want = HELLO.size + size
        return self._fill()

    def hello(self) -> dict[str, Any]:
        """Returns the producer's HELLO. FrameError: it is invalid."""
        [crc] = HELLO.unpack_from(self._small)[2:]
        text = bytes(self._small[HELLO.size : self._want])
        try:
            content = json.loads(text) if crc32c(text) == crc else None
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise FrameError("its HELLO cannot be parsed")
        if content.get("protocol") != PROTOCOL:
            raise FrameError(f"expected protocol {PROTOCOL}, got {content.get('protocol')!r}")
        return content

    def begin_frames(self, name: str, n_pieces: int, shared_buffer: SharedBuffer | None = None) -> None:
        """Expects frames from now on. Head and meta have a fixed size; with a shared buffer, a slot number follows."""
        self.name, self._shared_buffer = name, shared_buffer
        self._raw_bytes = HEAD_BYTES + len(pack_meta(name, [0] * n_pieces, [0] * n_pieces))
        self._have, self._want = 0, self._raw_bytes + (SLOT.size if shared_buffer else 0)
        self._small = memoryview(bytearray(self._want))

    def _begin(self, buffers: BufferPool) -> bool:
        """Parses head and meta. Returns whether there is a buffer for the payload."""
        if self._meta is None:
            self._head = parse_head(self._small)
            if self._head.meta_bytes != self._raw_bytes - HEAD_BYTES:
                text = f"expected {self._raw_bytes - HEAD_BYTES} bytes of meta, got {self._head.meta_bytes:,}"
                raise FrameError(text)
            if self._head.payload_bytes > self._max_frame_bytes:
                text = f"expected a frame of {self._max_frame_bytes:,} bytes at most, got {self._head.payload_bytes:,}"
                raise FrameError(text)
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
        """Returns the payload if it is in the shared buffer."""
        if self._shared_buffer is None:
            return None
        [slot] = SLOT.unpack_from(self._small, self._raw_bytes)
        if slot == NO_SLOT:
            return None
        if slot >= self._shared_buffer.slots or size > self._shared_buffer.slot_bytes:
            raise FrameError(
                f"expected one of {self._shared_buffer.slots} slots, got slot {slot:,} with {size:,} bytes"
            )
        return self._shared_buffer.slot(slot)[:size]

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
        """Completes the frame, so that the next one may begin."""
        assert self._head is not None
        assert self._meta is not None
        assert self._view is not None
        raw = bytes(self._small[: self._raw_bytes])
        frame = ReceivedFrame(self._head, self._meta, raw, self._view, self._buffer)
        self.received.append(frame)
        self._head = self._meta = self._view = self._buffer = None
        self._have = 0
        return frame.bytes

    def done(self, buffers: BufferPool) -> None:
        """Returns the buffers of the received frames, which are written by now."""
        for frame in self.received:
            frame.payload.release()
            if frame.buffer is not None:
                buffers.release(frame.buffer)
        self.received = []

    # ---- sending

    def ack(self, mark: int) -> None:
        """Acknowledges all rows below `mark`, as soon as the socket takes it. A later call replaces an unsent one."""
        self._ack = mark
        self.send(b"")

    def send_with(self, data: bytes, fd: int) -> None:
        """Sends the first message, together with a descriptor."""
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
        if len(self._unsent) > _MAX_UNSENT_BYTES + (1 << 24 if self.name is None else 0):
            raise EOFError  # the producer does not read

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent) or self._ack is not None

    def close(self, buffers: BufferPool) -> None:
        self.is_open = False
        self.done(buffers)
        if self._view is not None:
            self._view.release()
            self._view = None
        if self._buffer is not None:
            buffers.release(self._buffer)
            self._buffer = None
        if self._shared_buffer is not None:
            buffers.release_shared(self._shared_buffer.bytes)
            self._shared_buffer = None
        self.socket.close()


class Connections:
    """All connections. `welcome(name)` returns the content of the answer to a producer's HELLO."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        buffers: BufferPool,
        *,
        token: str | None,
        n_pieces: int,
        shared_buffer: tuple[int, int] | None,
        welcome: Callable[[str], dict[str, Any]],
    ) -> None:
        """`shared_buffer`: slots and their size, for producers on this machine; None: frames use the socket."""
        self.all: set[Connection] = set()
        self.named: dict[str, Connection] = {}
        self.awaiting_buffer: list[Connection] = []
        self.refused = 0
        self.is_stopping = False
        self._selector, self._buffers = selector, buffers
        self._token = token.encode(errors="surrogatepass") if token else None
        self._n_pieces, self._shared_buffer, self._welcome = n_pieces, shared_buffer, welcome
        self._is_paused = False

    def accept(self, listening: socket.socket) -> None:
        try:
            sock, peer = listening.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                _log.error("cannot accept another producer: %s", error.strerror)
                time.sleep(0.01)  # it stays in the queue, and would be reported again at once
            return
        sock.setblocking(False)
        enlarge_buffers(sock)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        who = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a local process"
        unauthenticated = [connection for connection in self.all if connection.name is None]
        connection = Connection(sock, who, self._buffers.max_bytes)
        self.all.add(connection)
        if is_short_of_fds(sock, _RESERVED_FDS):
            self.refuse(connection, "the server has no descriptors left for another producer (RLIMIT_NOFILE)")
            return
        if len(unauthenticated) >= _MAX_UNAUTHENTICATED:
            oldest = min(unauthenticated, key=lambda each: each.since_s)
            self.drop(oldest, "too many connections without a HELLO")
        self.watch(connection)

    def serve(self, connection: Connection, mask: int) -> bool:
        """Reads and sends what the socket allows. Returns whether there are complete frames."""
        if not connection.is_open:
            return False  # dropped earlier in this round
        try:
            if mask & selectors.EVENT_WRITE:
                connection.send(b"")
            if mask & selectors.EVENT_READ:
                state = connection.read(self._buffers)
                if state == "hello":
                    self._handshake(connection)
                elif state == "memory":
                    self.awaiting_buffer.append(connection)
        except FrameError as error:
            self.refuse(connection, str(error))
        except (OSError, EOFError):
            if not connection.received:
                self.drop(connection, None)
        if connection.is_open and not connection.received:
            self.watch(connection)
        return bool(connection.received)

    def _handshake(self, connection: Connection) -> None:
        content = connection.hello()
        if not self._is_token(content.get("token")):
            self.refuse(connection, "wrong token")
            return
        if is_short_of_fds(connection.socket, _RESERVED_FDS_AUTHENTICATED):
            self.refuse(connection, "the server has no descriptors left for another producer (RLIMIT_NOFILE)")
            return
        if self.is_stopping:
            connection.send(pack_message(STOPPING))
            self.drop(connection, None)
            return
        try:
            name = check_task(content.get("producer") or "")
        except ValueError:
            self.refuse(connection, f"expected a producer's name, got {str(content.get('producer'))[:80]!r}")
            return
        pid = content.get("pid")
        connection.who = f"producer {name!r}, process {pid if isinstance(pid, int) else '?'}"
        before = self.named.get(name)
        if before is not None:
            self.refuse(before, f"{connection.who}, has connected under the same name")
        answer = self._welcome(name)
        self.named[name] = connection
        shared_buffer, fd = self._share(connection) if content.get("shares") is True else (None, -1)
        connection.begin_frames(name, self._n_pieces, shared_buffer)
        if shared_buffer is None:
            connection.send(pack_message(WELCOME, 0, json.dumps(answer)))
            return
        try:
            answer["arena"] = [shared_buffer.slots, shared_buffer.slot_bytes]
            connection.send_with(pack_message(WELCOME, 0, json.dumps(answer)), fd)
        finally:
            os.close(fd)

    def _share(self, connection: Connection) -> tuple[SharedBuffer | None, int]:
        """Makes a shared buffer for a producer on this machine, if memory allows. Returns it and its descriptor."""
        if self._shared_buffer is None or connection.socket.family != socket.AF_UNIX:
            return None, -1
        slots, slot_bytes = self._shared_buffer
        if not self._buffers.reserve_shared(slots * slot_bytes):
            return None, -1
        try:
            return make_shared_buffer(slots, slot_bytes)
        except OSError as error:
            self._buffers.release_shared(slots * slot_bytes)
            _log.info("%s uses its socket: no shared buffer: %s", connection.who, error.strerror)
            return None, -1

    def _is_token(self, given: Any) -> bool:
        if self._token is None:
            return True
        return isinstance(given, str) and hmac.compare_digest(given.encode(errors="surrogatepass"), self._token)

    def refuse(self, connection: Connection, why: str) -> None:
        """Tells the producer why, and drops it."""
        self.refused += 1
        try:
            connection.send(pack_message(REFUSED, 0, why))
        except (OSError, EOFError):
            pass
        self.drop(connection, why)

    def drop(self, connection: Connection, why: str | None) -> None:
        if why is not None:
            _log.warning("%s: refused: %s", connection.who, why)
        self.all.discard(connection)
        if connection.name is not None and self.named.get(connection.name) is connection:
            del self.named[connection.name]
        if connection in self.awaiting_buffer:
            self.awaiting_buffer.remove(connection)
        if connection.events:
            self._selector.unregister(connection.socket)
            connection.events = 0
        connection.close(self._buffers)

    def drop_all(self) -> None:
        for connection in list(self.all):
            self.drop(connection, None)

    def drop_idle(self) -> None:
        now_s = time.monotonic()
        for connection in list(self.all):
            if connection.name is None and now_s - connection.since_s > _HELLO_S:
                self.drop(connection, f"no HELLO within {_HELLO_S:.0f} s")
            elif (
                self.awaiting_buffer
                and connection.is_mid_frame
                and connection not in self.awaiting_buffer
                and now_s - connection.since_s > _STALLED_S
            ):
                self.drop(
                    connection,
                    f"no bytes for {_STALLED_S:.0f} s in the middle of a frame, while others wait for memory",
                )

    def notify(self, connection: Connection, message: bytes) -> None:
        try:
            connection.send(message)
        except (OSError, EOFError):
            self.drop(connection, None)
            return
        self.watch(connection)

    def notify_all(self, message: bytes) -> None:
        for connection in list(self.named.values()):
            self.notify(connection, message)

    def ack(self, connection: Connection, mark: int) -> None:
        if not connection.is_open:
            return
        try:
            connection.ack(mark)
        except (OSError, EOFError):
            self.drop(connection, None)
            return
        self.watch(connection)

    def watch(self, connection: Connection) -> None:
        """Updates the events that the selector watches for."""
        if not connection.is_open:
            return
        waits = (
            bool(connection.received)
            or (self._is_paused and connection.name is not None)
            or connection in self.awaiting_buffer
        )
        wanted = (0 if waits else selectors.EVENT_READ) | (selectors.EVENT_WRITE if connection.has_unsent else 0)
        if wanted == connection.events:
            return
        if not connection.events:
            self._selector.register(connection.socket, wanted, connection)
        elif not wanted:
            self._selector.unregister(connection.socket)
        else:
            self._selector.modify(connection.socket, wanted, connection)
        connection.events = wanted

    def pause(self, paused: bool) -> None:
        """Stops reading frames, or resumes. Handshakes go on."""
        if paused != self._is_paused:
            self._is_paused = paused
            for connection in self.all:
                self.watch(connection)
