"""Memory for frames that are on their way in: so many bytes over all connections, used again and again."""

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

from ..._native.codec import crc32c
from ..directory import check_task
from .address import enlarge_buffers, is_short_of_fds
from .protocol import (
    ACK,
    HEAD_BYTES,
    HELLO,
    HELLO_MAGIC,
    MOST_HELLO_BYTES,
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

_STEP_BYTES = 1 << 16


class BufferPool:
    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0  # in use, kept or lent
        self._shared_bytes = 0
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray | None:
        """One of at least that size; None: not now."""
        wanted = max(_STEP_BYTES, -(-size // _STEP_BYTES) * _STEP_BYTES)
        for at, buffer in enumerate(self._free):
            if wanted <= len(buffer) <= 2 * wanted:
                return self._free.pop(at)
        while self._free and self.bytes + wanted > self.most_bytes:
            self.bytes -= len(self._free.pop(0))
        if self.bytes > self._shared_bytes and self.bytes + wanted > self.most_bytes:
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
        """Whether that many bytes may be shared with a producer for as long as it is connected. Half of all at most."""
        if self._shared_bytes + size > self.most_bytes // 2:
            return False
        self._shared_bytes += size
        self.bytes += size
        return True

    def release_shared(self, size: int) -> None:
        self._shared_bytes -= size
        self.bytes -= size


# One producer's socket, as the server sees it: HELLO, then frames, each into a buffer of its own.

Read = Literal["more", "hello", "memory"]  # what it waits for; or HELLO is there

_MOST_UNSENT_BYTES = 1 << 16
_TOGETHER_BYTES = 1 << 20  # of one producer in one round: others are to have their turn


class ReceivedFrame(NamedTuple):
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
        self.received: list[ReceivedFrame] = []
        self.events = 0  # what the selector watches for
        self.is_open = True
        self._max_frame_bytes = most_frame_bytes
        self._small = memoryview(bytearray(HELLO.size + MOST_HELLO_BYTES))
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
        """Whether a frame has begun that is not whole yet."""
        return self.name is not None and self._have > 0

    # ---- in

    def read(self, buffers: BufferPool) -> Read:
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

    def begin_frames(self, name: str, n_pieces: int, shared_buffer: SharedBuffer | None = None) -> None:
        """From here on every head and meta has the same size; a slot's number follows where an arena is shared."""
        self.name, self._shared_buffer = name, shared_buffer
        self._raw_bytes = HEAD_BYTES + len(pack_meta(name, [0] * n_pieces, [0] * n_pieces))
        self._have, self._want = 0, self._raw_bytes + (SLOT.size if shared_buffer else 0)
        self._small = memoryview(bytearray(self._want))

    def _begin(self, buffers: BufferPool) -> bool:
        """Head and meta are here: whether there is memory for the rest."""
        if self._meta is None:
            self._head = parse_head(self._small)
            if self._head.meta_bytes != self._raw_bytes - HEAD_BYTES:
                text = f"expected {self._raw_bytes - HEAD_BYTES} bytes of meta, got {self._head.meta_bytes:,}"
                raise FrameError(text)
            if self._head.payload_bytes > self._max_frame_bytes:
                raise FrameError(
                    f"a frame of {self._head.payload_bytes:,} bytes, expected {self._max_frame_bytes:,} at most"
                )
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
        if self._shared_buffer is None:
            return None
        [slot] = SLOT.unpack_from(self._small, self._raw_bytes)
        if slot == NO_SLOT:
            return None
        if slot >= self._shared_buffer.slots or size > self._shared_buffer.slot_bytes:
            raise FrameError(f"{size:,} bytes in slot {slot:,}, expected one of {self._shared_buffer.slots} slots")
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
        """The frame is whole: another may begin."""
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
        """The frames that have arrived were dealt with: their memory is free."""
        for frame in self.received:
            frame.payload.release()
            if frame.buffer is not None:
                buffers.release(frame.buffer)
        self.received = []

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


# All who are connected: greeted, refused, dropped; and what the selector looks at of each.

_log = logging.getLogger("holdfast.server")

_HELLO_S = 5.0  # a stranger who says nothing is gone by then
_STALLED_S = 30.0  # in the middle of a frame, while others wait for its memory
_MOST_UNAUTHENTICATED = 64
_RESERVED_FDS, _RESERVED_FDS_AUTHENTICATED = 12, 20  # descriptors: the journal and the sealer must always get theirs


class Connections:
    """`welcome` gives what a producer of that name is told. `held`: nothing more is read of them for now."""

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
        """`arena`: slots and their size, for producers on this machine."""
        self.all: set[Connection] = set()
        self.named: dict[str, Connection] = {}
        self.awaiting_buffer: list[Connection] = []  # they wait for memory
        self.refused = 0
        self.is_stopping = False
        self._selector, self._buffers = selector, buffers
        self._token = token.encode(errors="surrogatepass") if token else None
        self._n_pieces, self._shared_buffer, self._welcome = n_pieces, shared_buffer, welcome
        self._held = False

    # ---- they come and go

    def accept(self, listening: socket.socket) -> None:
        try:
            sock, peer = listening.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                _log.error("cannot take another producer: %s", error.strerror)
                time.sleep(0.01)  # it stays in the queue, and would be told of at once again
            return
        sock.setblocking(False)
        enlarge_buffers(sock)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        who = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a local process"
        unauthenticated = [one for one in self.all if one.name is None]
        one = Connection(sock, who, self._buffers.most_bytes)
        self.all.add(one)
        if is_short_of_fds(sock, _RESERVED_FDS):
            self.drop(one, "the server has no descriptors left (RLIMIT_NOFILE)")
            return
        if len(unauthenticated) >= _MOST_UNAUTHENTICATED:
            oldest = min(unauthenticated, key=lambda each: each.since_s)
            self.drop(oldest, "too many who have not said HELLO")
        self.watch(one)

    def serve(self, one: Connection, mask: int) -> bool:
        """Reads and sends what can be; whether frames have arrived."""
        if not one.is_open:
            return False  # dropped within this round
        try:
            if mask & selectors.EVENT_WRITE:
                one.send(b"")
            if mask & selectors.EVENT_READ:
                state = one.read(self._buffers)
                if state == "hello":
                    self._handshake(one)
                elif state == "memory":
                    self.awaiting_buffer.append(one)
        except FrameError as error:
            self.refuse(one, str(error))
        except (OSError, EOFError):
            if not one.received:
                self.drop(one, None)
        if one.is_open and not one.received:
            self.watch(one)
        return bool(one.received)

    def _handshake(self, one: Connection) -> None:
        content = one.hello()
        if not self._knows_token(content.get("token")):
            self.refuse(one, "wrong token")
            return
        if is_short_of_fds(one.socket, _RESERVED_FDS_AUTHENTICATED):
            self.refuse(one, "the server has no descriptors left for another producer (RLIMIT_NOFILE)")
            return
        if self.is_stopping:
            one.send(pack_message(STOPPING))
            self.drop(one, None)
            return
        try:
            name = check_task(content.get("producer") or "")
        except ValueError:
            self.refuse(one, f"expected a producer's name, got {str(content.get('producer'))[:80]!r}")
            return
        pid = content.get("pid")
        one.who = f"producer {name!r}, process {pid if isinstance(pid, int) else '?'}"
        before = self.named.get(name)
        if before is not None:
            self.refuse(before, f"{one.who}, has connected by the same name")
        answer = self._welcome(name)
        self.named[name] = one
        shared_buffer, fd = self._share(one) if content.get("shares") is True else (None, -1)
        one.begin_frames(name, self._n_pieces, shared_buffer)
        if shared_buffer is None:
            one.send(pack_message(WELCOME, 0, json.dumps(answer)))
            return
        try:
            answer["arena"] = [shared_buffer.slots, shared_buffer.slot_bytes]
            one.send_with(pack_message(WELCOME, 0, json.dumps(answer)), fd)
        finally:
            os.close(fd)

    def _share(self, one: Connection) -> tuple[SharedBuffer | None, int]:
        """Memory for its frames, if it is on this machine and there is enough; and the descriptor to send it by."""
        if self._shared_buffer is None or one.socket.family != socket.AF_UNIX:
            return None, -1
        slots, slot_bytes = self._shared_buffer
        if not self._buffers.reserve_shared(slots * slot_bytes):
            return None, -1
        try:
            return make_shared_buffer(slots, slot_bytes)
        except OSError as error:
            self._buffers.release_shared(slots * slot_bytes)
            _log.info("%s sends its rows through its socket: no memory to share: %s", one.who, error.strerror)
            return None, -1

    def _knows_token(self, said: Any) -> bool:
        if self._token is None:
            return True
        return isinstance(said, str) and hmac.compare_digest(said.encode(errors="surrogatepass"), self._token)

    def refuse(self, one: Connection, why: str) -> None:
        self.refused += 1
        try:
            one.send(pack_message(REFUSED, 0, why))
        except (OSError, EOFError):
            pass
        self.drop(one, why)

    def drop(self, one: Connection, why: str | None) -> None:
        if why is not None:
            _log.warning("%s: refused: %s", one.who, why)
        self.all.discard(one)
        if one.name is not None and self.named.get(one.name) is one:
            del self.named[one.name]
        if one in self.awaiting_buffer:
            self.awaiting_buffer.remove(one)
        if one.events:
            self._selector.unregister(one.socket)
            one.events = 0
        one.close(self._buffers)

    def drop_all(self) -> None:
        for one in list(self.all):
            self.drop(one, None)

    def drop_idle(self) -> None:
        now_s = time.monotonic()
        for one in list(self.all):
            if one.name is None and now_s - one.since_s > _HELLO_S:
                self.drop(one, f"no HELLO within {_HELLO_S:.0f} s")
            elif (
                self.awaiting_buffer
                and one.is_mid_frame
                and one not in self.awaiting_buffer
                and now_s - one.since_s > _STALLED_S
            ):
                self.drop(one, f"stopped in the middle of a frame for {_STALLED_S:.0f} s while others wait")

    # ---- what they are told

    def tell(self, one: Connection, message: bytes) -> None:
        try:
            one.send(message)
        except (OSError, EOFError):
            self.drop(one, None)
            return
        self.watch(one)

    def notify_all(self, message: bytes) -> None:
        for one in list(self.named.values()):
            self.tell(one, message)

    def ack(self, one: Connection, mark: int) -> None:
        if not one.is_open:
            return
        try:
            one.ack(mark)
        except (OSError, EOFError):
            self.drop(one, None)
            return
        self.watch(one)

    # ---- what the selector looks at

    def watch(self, one: Connection) -> None:
        if not one.is_open:
            return
        waits = bool(one.received) or (self._held and one.name is not None) or one in self.awaiting_buffer
        wanted = (0 if waits else selectors.EVENT_READ) | (selectors.EVENT_WRITE if one.has_unsent else 0)
        if wanted == one.events:
            return
        if not one.events:
            self._selector.register(one.socket, wanted, one)
        elif not wanted:
            self._selector.unregister(one.socket)
        else:
            self._selector.modify(one.socket, wanted, one)
        one.events = wanted

    def hold(self, held: bool) -> None:
        if held != self._held:
            self._held = held
            for one in self.all:
                self.watch(one)
