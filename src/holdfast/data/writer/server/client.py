"""The producer's side of the central writer: `hold.connect`, which needs numpy and no HDF5.

`ClientConnection` is the socket, which reconnects. `Producer` collects rows, sends them as frames, and keeps each frame
until the server has acknowledged it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from ...._util.failpoints import failpoint
from ...._util.process import call_after_fork
from ...._util.text import time_argument
from ....errors import (
    ClosedWriterError,
    DiskFullError,
    ForkedWriterError,
    InputError,
    RefusedError,
    SchemaError,
    ServerLostError,
    WriteError,
)
from ....schema import Column, schema_from_json
from ...formats.row_buffers import buffers_of
from ..directory import check_task
from ..row_buffer import RowBuffer
from .address import open_connection, resolve
from .frame_builder import FrameBuilder, WireFrame
from .protocol import (
    ACK,
    FULL,
    FULL_CHUNK,
    REFUSED,
    SPACE,
    STOPPING,
    WELCOME,
    FrameLayout,
    ServerMessage,
    ServerMessageDecoder,
    pack_head,
    pack_hello,
    pack_meta,
)
from .server_process import TOKEN
from .shared_buffer import NO_SLOT, SLOT, SharedBuffer

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25
_ANSWER_S = 10.0
_LONGEST_WAIT_S = 3600.0  # poll cannot wait forever, and a timeout may be infinite
_READ_BYTES = 1 << 16
_LOST = (OSError, EOFError, ValueError)
_MAX_IOV = 64
_RETRY_S = 1.0
_SILENT_S = 10.0  # the server is suspended or unreachable: another may have taken over
_TOGETHER_BYTES = 1 << 20
_TOGETHER_S = 0.02


class ClientConnection:
    """A connection that uses at most one descriptor.

    welcome        the server's last answer to HELLO
    shared_buffer  memory for frames, if the server is on this machine
    full           why the server writes nothing now; None: it does
    last_error     why the last connection was lost
    """

    def __init__(self, target: str, producer: str, token: str | None) -> None:
        self._target = target
        self._hello: dict[str, Any] = {"producer": producer, "token": token}
        self._hello |= {"pid": os.getpid(), "host": socket.gethostname(), "shares": True}
        self._socket: socket.socket | None = None
        self._unpacker = ServerMessageDecoder()
        self._poll = select.poll()
        self.welcome: dict[str, Any] = {}
        self.shared_buffer: SharedBuffer | None = None
        self.full: str | None = None
        self.last_error = "no attempt yet"

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self, deadline_s: float) -> None:
        """Connects, with retries until the deadline. ServerLostError: no answer. RefusedError: the server refused."""
        pause_s = _FIRST_PAUSE_S
        while not self._try(deadline_s):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise ServerLostError(f"{self._target}: the central writer does not answer: {self.last_error}")
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _try(self, deadline_s: float) -> bool:
        left_s = max(0.05, min(_ANSWER_S, deadline_s - time.monotonic()))
        try:
            self._socket = open_connection(resolve(self._target), left_s)
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
            self._unpacker, self.full = ServerMessageDecoder(), None
            self._handshake(time.monotonic() + left_s)
            return True
        except InputError as error:
            self.last_error = str(error)
        except _LOST as error:
            self.last_error = getattr(error, "strerror", None) or str(error) or "it closed the connection"
        except BaseException:
            self.close()
            raise
        self.close()
        return False

    def _handshake(self, deadline_s: float) -> None:
        assert self._socket is not None
        left = pack_hello(self._hello)
        with suppress(BrokenPipeError):  # it has refused already, and closed: its reason is received below
            while left:
                left = left[self._socket.send(left) :]
        fds: list[int] = []
        try:
            while True:
                for message in self.receive(fds):
                    if message.kind == WELCOME:
                        self._take_welcome(json.loads(message.text), fds)
                        return
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("it accepted the connection, and sent no answer")
                self._poll.poll(left_s * 1000)
        finally:
            for fd in fds:
                os.close(fd)

    def _take_welcome(self, welcome: dict[str, Any], fds: list[int]) -> None:
        self.welcome, self.full, self.shared_buffer = welcome, welcome["full"], None
        if welcome.get("arena") and fds:  # without one, no descriptor was free for it
            with suppress(OSError):  # no memory: frames use the socket
                self.shared_buffer = SharedBuffer(fds[0], *welcome["arena"])

    def receive(self, fds: list[int] | None = None) -> list[ServerMessage]:
        """Returns the messages that have arrived, and adds their descriptors to `fds`.

        OSError, EOFError, ValueError: the connection is lost.
        """
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
            raise EOFError("it closed the connection")
        messages = self._unpacker.feed(data)
        for message in messages:
            if message.kind == REFUSED:
                raise RefusedError(
                    f"{self._target}: the central writer refused {self._hello['producer']!r}: {message.text}"
                )
            if message.kind == FULL:
                self.full = message.text
            elif message.kind == SPACE:
                self.full = None
            elif message.kind == STOPPING:
                self.last_error = "it is stopping"
        return messages

    def send(self, buffers: list[Any]) -> int:
        """Sends what the socket takes. Returns the number of bytes."""
        assert self._socket is not None
        try:
            return self._socket.sendmsg(buffers)
        except BlockingIOError:
            return 0

    def wait(self, wants_to_send: bool, wait_s: float) -> None:
        assert self._socket is not None
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if wants_to_send else 0))
        self._poll.poll(min(max(0.0, wait_s), _LONGEST_WAIT_S) * 1000)

    def set_lost(self, error: BaseException) -> None:
        self.last_error = getattr(error, "strerror", None) or str(error) or self.last_error
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def connect(
    target: str | os.PathLike[str],
    producer: str | None = None,
    *,
    timeout: float | str = 60.0,
    token: str | None = None,
) -> Producer:
    """Connects to the central writer of a dataset, as one producer of samples.

    Args:
        target: The server's address, or the dataset directory.
        producer: A name that stays the same after a restart; None: from the launcher's rank.
        timeout: How long to wait for progress (a connection, room for a sample, an acknowledgement), in seconds or as a
            text such as "10min".
        token: The token of a server that is reached over the network; None: HOLDFAST_TOKEN.
    """
    if producer is None:
        from ...._util.rank import default_task

        producer = default_task()
        if producer is None:
            raise ValueError('expected producer=, a name that stays the same after a restart, such as "rank3"')
    timeout_s = time_argument(timeout, "timeout", zero=False, endless=True)
    return Producer(os.fsdecode(target), check_task(producer), timeout_s, token or os.environ.get(TOKEN))


class Producer:
    """The result of hold.connect(…). The end of its `with` block commits, unless there was an exception.

    next_seq   the number of the next row: after a restart, continue from here
    acked      how many rows the server has acknowledged, of all that this producer ever sent

    Threads may share it. A forked child must connect under another name.
    """

    _state: Literal["open", "closed", "forked"] = "closed"

    def __init__(self, target: str, name: str, timeout_s: float, token: str | None) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._connection = ClientConnection(target, name, token)
        self._connection.open(time.monotonic() + timeout_s)
        self.schema: dict[str, Column] = schema_from_json(self._connection.welcome["schema"])
        self._server_settings = self._settings_of_server()
        self._layout = FrameLayout(
            self.schema, self._connection.welcome["chunk_rows"], self._connection.welcome["codec"]
        )
        self._window = int(self._connection.welcome["window_bytes"])
        self._max_frame_bytes = int(self._connection.welcome["frame_bytes"])
        self.acked: int = self._connection.welcome["mark"]
        self._seq = self.acked  # the number of the first row that is in no frame yet
        self._rows, self._frame_builder = RowBuffer(self.schema), FrameBuilder(self._layout, self._max_frame_bytes)
        fixed = zip(self.schema.items(), self._layout.columns, strict=True)
        self._frame_builder.share(self._connection.shared_buffer)
        self._exact_types = {n: (how.pieces[0].dtype, getattr(c, "shape", ())) for (n, c), how in fixed if how.is_fixed}
        self._frames: deque[WireFrame] = deque()  # not acknowledged
        self._unacked_bytes = 0
        self._sent = 0  # how many frames were sent over this connection
        self._retry_at_s = 0.0
        self._last_traffic_s = time.monotonic()  # when anything was sent or received
        self._unsent_bytes, self._sent_s = 0, 0.0
        self._being_sent: list[Any] = []  # buffers that the socket has not taken yet
        self._state = "open"
        call_after_fork(self)
        failpoint("producer-connected")

    @property
    def next_seq(self) -> int:
        return int(self._seq + self._frame_builder.rows + self._rows.rows)

    # ---- rows

    def append(self, /, *, timeout: float | str | None = None, **sample: Any) -> None:
        """Appends one sample: a value for every column. Blocks while the server is behind.

        ServerLostError, DiskFullError: no room within the timeout. The sample was not added: retry, or continue later
        from next_seq. (With a column called `timeout`, use extend.)
        """
        with self._lock:
            self._check()
            self._make_room(timeout)
            if self._rows.add(sample) or self._rows.rows + self._frame_builder.rows >= self._layout.chunk_rows:
                self._drain_rows(timeout)

    def extend(self, columns: Mapping[str, Any], timeout: float | str | None = None) -> None:
        """Appends many samples: columns of equal length. After an error, next_seq says how many were added."""
        with self._lock:
            self._check()
            if not isinstance(columns, Mapping):
                raise SchemaError(f"expected columns of samples by name, got {type(columns).__name__}")
            buffers, rows = self._exact_arrays(columns) or buffers_of(self.schema, columns)
            self._make_room(timeout)
            self._drain_rows(timeout)
            at = 0
            while at < rows:
                self._make_room(timeout)
                at = self._frame_builder.add(buffers, at, rows)
                if self._frame_builder.is_full:
                    self._frame(timeout)

    def _exact_arrays(self, columns: Mapping[str, Any]) -> tuple[list[Any], int] | None:
        """Returns arrays that have exactly the schema's types and shapes without checking values; else None."""
        buffers, rows = [], -1
        if columns.keys() != self.schema.keys():
            return None
        for name, (dtype, shape) in self._exact_types.items():
            array = columns[name]
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape[1:] != shape or not array.ndim:
                return None
            if rows not in (-1, len(array)):
                return None
            rows = len(array)
            buffers.append((array, None, None, None))
        return (buffers, rows) if len(buffers) == len(self.schema) else None

    def _drain_rows(self, timeout: float | str | None) -> None:
        if not self._rows.rows:
            return
        buffers, rows = buffers_of(self.schema, self._rows.take())
        at = 0
        while at < rows:
            at = self._frame_builder.add(buffers, at, rows)
            if self._frame_builder.is_full:
                self._frame(timeout)

    def _frame(self, timeout: float | str | None) -> None:
        """Packs the collected rows as a frame, and sends it. If the server is lost, the next call reports that."""
        frame = self._frame_builder.take(self._seq)
        if frame.bytes > self._max_frame_bytes:
            self.close()
            text = f"rows {frame.first:,} to {frame.end:,}: expected {self._max_frame_bytes:,} bytes at most"
            raise WriteError(f"{text}, got {frame.bytes:,}; start the server with more queue_bytes")
        self._frames.append(frame)
        self._seq, self._unacked_bytes = frame.end, self._unacked_bytes + frame.bytes
        now_s = time.monotonic()
        self._unsent_bytes += frame.bytes
        if self._unsent_bytes < _TOGETHER_BYTES and now_s - self._sent_s < _TOGETHER_S:
            return  # sent with the next ones: waking up costs the server more than the copy
        self._sent_s, self._unsent_bytes = now_s, 0
        try:
            if not self._connection.is_open and now_s > self._retry_at_s:
                self._retry_at_s = now_s + _RETRY_S
                self._reconnect(0.0)
            self._pump(lambda: self._nothing_to_send, timeout)
        except (ServerLostError, DiskFullError):
            pass

    def _make_room(self, timeout: float | str | None) -> None:
        """Waits until unacknowledged frames fit the window, which is the same while the server is away."""
        if self._unacked_bytes > self._window or self._being_sent:
            self._pump(lambda: self._unacked_bytes <= self._window and not self._is_mid_frame, timeout)

    def flush(self, timeout: float | str | None = None) -> None:
        """Sends all rows, also those that do not fill a chunk. Does not wait for the acknowledgement."""
        with self._lock:
            self._check()
            self._make_room(timeout)
            self._drain_rows(timeout)
            if self._frame_builder.rows:
                self._sent_s = 0.0
                self._frame(timeout)
            elif not self._handed_over:
                self._pump(lambda: self._nothing_to_send, timeout)

    def commit(self, timeout: float | str | None = None) -> int:
        """Waits until all rows are acknowledged. Returns how many those are, of all that this producer ever sent."""
        with self._lock:
            self.flush(timeout)
            self._pump(lambda: not self._frames, timeout)
            failpoint("producer-acked")
            return self.acked

    # ---- the connection

    @property
    def _is_mid_frame(self) -> bool:
        """Whether a frame is partly sent: the server keeps memory for the rest."""
        return bool(self._being_sent) and self._connection.is_open

    @property
    def _nothing_to_send(self) -> bool:
        """Whether all is sent, or there is no connection."""
        return self._handed_over or not self._connection.is_open

    def _pump(self, done: Callable[[], bool], timeout: float | str | None) -> None:
        """Sends and receives until `done`. Every acknowledgement restarts the timeout."""
        timeout_s = self._timeout_s if timeout is None else time_argument(timeout, "timeout", endless=True)
        deadline_s, acked = time.monotonic() + timeout_s, self.acked
        while True:
            try:
                if self._connection.is_open:
                    self._receive()
                if done():
                    return
                if not self._connection.is_open:
                    self._reconnect(deadline_s)
                moved = self._send()
                if moved:
                    self._last_traffic_s = time.monotonic()
                if self.acked != acked:
                    deadline_s, acked = time.monotonic() + timeout_s, self.acked
                elif time.monotonic() >= deadline_s:
                    raise self._timeout_error(timeout_s)
                if not moved and not done():
                    self._connection.wait(not self._handed_over, deadline_s - time.monotonic())
            except RefusedError:
                self.close()
                raise
            except WriteError:
                raise
            except (OSError, EOFError, ValueError) as error:
                self._connection.set_lost(error)
            except BaseException:  # Ctrl-C: it is unknown how much was sent, so the frame is sent again
                self._connection.close()
                raise

    @property
    def _handed_over(self) -> bool:
        return not self._being_sent and self._sent == len(self._frames)

    def _send(self) -> bool:
        """Returns whether the socket took anything."""
        if not self._being_sent:
            if self._sent == len(self._frames):
                return False
            while self._sent < len(self._frames) and len(self._being_sent) < _MAX_IOV:
                self._being_sent += self._packed(self._frames[self._sent])
                self._sent += 1
        n = self._connection.send(self._being_sent[:_MAX_IOV] if len(self._being_sent) > _MAX_IOV else self._being_sent)
        moved = n > 0
        while n and n >= len(self._being_sent[0]):
            n -= len(self._being_sent.pop(0))
        if n:
            self._being_sent[0] = memoryview(self._being_sent[0])[n:]
            failpoint("producer-half-sent")
        elif not self._being_sent:
            failpoint("producer-sent")
        return moved

    def _packed(self, frame: WireFrame) -> list[Any]:
        meta = pack_meta(self.name, [len(piece) for piece in frame.pieces], frame.crcs)
        head = pack_head(
            meta,
            flags=frame.flags,
            epoch=self._connection.welcome["epoch"],
            first=frame.first,
            rows=frame.rows,
            payload_bytes=frame.bytes,
        )
        if self._connection.welcome.get("arena"):
            is_shared = (
                frame.flags & FULL_CHUNK
                and frame.space.shared_buffer is not None
                and frame.space.shared_buffer is self._connection.shared_buffer
            )
            head += SLOT.pack(frame.space.slot if is_shared else NO_SLOT)
            if is_shared:
                return [head]
        return [head, *(piece for piece in frame.pieces if len(piece))]

    def _receive(self) -> None:
        for message in self._connection.receive():
            self._last_traffic_s = time.monotonic()
            if message.kind == ACK:
                self._acknowledged(message.number)

    def _acknowledged(self, mark: int) -> None:
        self.acked = max(self.acked, mark)
        while self._frames and self._frames[0].end <= mark and self._sent:
            frame = self._frames.popleft()
            self._unacked_bytes -= frame.bytes
            self._sent -= 1
            self._frame_builder.recycle(frame)

    def _reconnect(self, deadline_s: float) -> None:
        """Reconnects. All unacknowledged frames are sent again, and the server skips those it has."""
        self._being_sent, self._sent = [], 0
        self._connection.open(deadline_s)
        self._last_traffic_s = time.monotonic()
        mark: int = self._connection.welcome["mark"]
        if self._settings_of_server() != self._server_settings:
            found = self._settings_of_server()
            self._give_up(f"the server restarted with other settings: expected {self._server_settings}, got {found}")
        if mark < self.acked:
            text = f"the server has {mark:,} rows of {self.name!r}, but acknowledged {self.acked:,}"
            self._give_up(f"{text}: its journal was removed or is corrupt")
        if mark > self._seq:
            text = f"the server has {mark:,} rows of {self.name!r}, this process sent {self._seq:,}"
            self._give_up(f"{text}: does another process use the name?")
        self._sent = len(self._frames)  # frames that the server has count as sent
        self._acknowledged(mark)
        self._sent = 0
        self._frame_builder.share(self._connection.shared_buffer)

    def _give_up(self, last_error: str) -> None:
        self.close()
        raise RefusedError(last_error)

    def _settings_of_server(self) -> tuple[Any, ...]:
        welcome = self._connection.welcome
        return welcome["schema"], welcome["chunk_rows"], welcome["codec"]

    def _timeout_error(self, timeout_s: float) -> WriteError:
        if self._connection.full is not None:
            return DiskFullError(f"{self._connection.full}; {self.acked:,} rows are acknowledged, and safe")
        if time.monotonic() - self._last_traffic_s >= _SILENT_S:
            self._connection.close()  # the next call reconnects
        text = f"the central writer acknowledged nothing for {timeout_s:g} s: it is too far behind"
        return ServerLostError(f"{text}; {self.acked:,} rows are acknowledged")

    # ---- the end

    def _check(self) -> None:
        if self._state == "forked":
            raise ForkedWriterError(f"producer {self.name!r} belongs to the parent process; connect under another name")
        if self._state == "closed":
            raise ClosedWriterError(f"producer {self.name!r} is closed; connect again")

    def close(self) -> None:
        """Closes the connection. Unacknowledged rows may be lost: commit first. Safe to call twice."""
        with self._lock:
            if self._state == "open":
                self._state = "closed"
                self._connection.close()
                self._connection.shared_buffer = None
                self._being_sent = []
                self._frames.clear()
                self._frame_builder.release()

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()  # the thread that may hold it does not exist in the child
        if self._state == "open":
            self._state = "forked"
            self._connection.close()

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._state == "open":
                self.commit()
        finally:
            self.close()

    def __del__(self) -> None:
        if self._state == "open":
            if self._frames or self._frame_builder.rows or self._rows.rows:
                text = (
                    f"producer {self.name!r} was collected without commit(): rows from {self.acked:,} on may be missing"
                )
                warnings.warn(text, ResourceWarning, 2)
            self.close()

    def __repr__(self) -> str:
        return f"<Producer {self.name!r}, {self.acked:,} rows acknowledged, {self.next_seq - self.acked:,} not yet>"
