"""The central writer's loop: one thread, one selector, one socket for each producer.

A round: read what came, write all frames that are whole into the journal at once, see that no other server has taken
over, acknowledge. Nothing in it is done row by row.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..._util.fds import raise_nofile
from ...errors import WriteError
from ...schema import Column, schema_to_json
from .address import ServerListener
from .connections import BufferPool, Connection, Connections
from .ingest import DISK_FULL, Ingest
from .journal import Journal
from .leader_epoch import LeaderEpoch
from .protocol import STOPPING, FrameLayout, pack_message
from .sealer import Sealer
from .server_process import ServerSettings
from .shared_buffer import slots_for

_DRAIN_S = 5.0  # for frames under way when the server is told to stop
_TICK_S = 0.5
_WINDOW_BYTES = {"process": 4 << 20, "disk": 32 << 20}  # it stays in a cache; it is worth a sync
_MOST_FAILURES = 3
LEAST_IN_PLACE_BYTES = 1 << 20  # of a segment: smaller ones are copied into their part in no time

Control = Callable[[], None]


class CentralWriter:
    """Everything of one server. `run` returns when it was told to stop and everything is in parts."""

    def __init__(self, folder: Path, schema: dict[str, Column], settings: ServerSettings) -> None:
        self.folder, self.settings = folder, settings
        self.layout = FrameLayout(schema, settings.chunk_rows, settings.codec)
        self._check_sizes()
        raise_nofile()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.buffers = BufferPool(settings.queue_bytes)
        self.connections = Connections(
            self._selector,
            self.buffers,
            token=settings.token,
            n_pieces=self.layout.n_pieces,
            shared_buffer=slots_for(self.layout.chunk_bytes, self._window_bytes) if self.layout.is_plain else None,
            welcome=self._welcome,
        )
        self.sealer = Sealer()
        self._sealer_fd = -1
        self._sealed = 0
        self._last_check_s = 0.0
        self._stopping = False
        self._listener: ServerListener | None = None
        self._journal: Journal | None = None
        self._epoch: LeaderEpoch | None = None
        self._frame_settings = {
            "schema": schema_to_json(schema, stored=True),
            "chunk_rows": self.layout.chunk_rows,
            "codec": settings.codec,
        }
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _check_sizes(self) -> None:
        chunk_bytes = self.layout.chunk_bytes
        if chunk_bytes > self.settings.queue_bytes // 2:
            text = f"a chunk of {self.layout.chunk_rows:,} rows has {chunk_bytes:,} bytes"
            raise ValueError(f"{text}: expected queue_bytes to be twice that, got {self.settings.queue_bytes:,}")

    @property
    def _window_bytes(self) -> int:
        """What a producer may have sent that is not acknowledged."""
        return max(1, min(_WINDOW_BYTES[self.settings.ack], self.settings.queue_bytes // 4))

    def _begin(self) -> None:
        settings = self.settings
        self._epoch = LeaderEpoch(self.folder, take_over=settings.take_over)
        in_place = self.layout.is_as_stored and settings.segment_bytes >= LEAST_IN_PLACE_BYTES
        self._journal = Journal(self.folder, self._epoch.number, self._frame_settings, in_place=in_place)
        self.ingest = Ingest(self.connections, self._journal, self._epoch, self.layout, self.buffers, settings)
        self._listener = listener = ServerListener(self.folder / "journal", settings.address, self._epoch.number)
        self._selector.register(listener.socket, selectors.EVENT_READ, lambda: self.connections.accept(listener.socket))
        self._selector.register(self._wake_read, selectors.EVENT_READ, lambda: os.read(self._wake_read, 64))
        if settings.seal:
            self.sealer.start()

    @property
    def address(self) -> str:
        assert self._listener is not None
        return self._listener.address

    @property
    def journal(self) -> Journal:
        assert self._journal is not None
        return self._journal

    def _welcome(self, name: str) -> dict[str, Any]:
        """What a producer is told of its rows counts as acknowledged."""
        self.ingest.sync()
        return self._frame_settings | {
            "mark": self.journal.marks.get(name, 0),
            "epoch": self.journal.epoch,
            "folder": str(self.folder),
            "full": self.ingest.full,
            "window_bytes": self._window_bytes,
            "frame_bytes": self.settings.queue_bytes,
        }

    # ---- for those who run it

    def watch(self, fd: int, control: Control) -> None:
        """Calls `control` when there is something to read."""
        self._selector.register(fd, selectors.EVENT_READ, control)

    def unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

    def stop(self) -> None:
        """Safe in a signal handler and from other threads."""
        self._stopping = True
        try:
            os.write(self._wake_write, b"s")
        except OSError:
            pass  # it is awake, or has ended

    def stats(self) -> dict[str, Any]:
        return {
            **self.ingest.counts,
            "refused": self.connections.refused,
            "sealed": self._sealed,
            "producers": len(self.connections.named),
            "marks": dict(self.journal.marks),
            "memory_bytes": self.buffers.bytes,
            "journal_bytes": self.journal.waiting_bytes,
            "segments": len(self.journal.closed),
            "full": self.ingest.full,
            "trouble": self.sealer.trouble,
            "sealer_pid": self.sealer.pid,
            "epoch": self.journal.epoch,
        }

    # ---- the loop

    def run(self) -> None:
        try:
            while not self._stopping:
                self._round(_TICK_S)
            self._drain()
            self._seal_all()
        finally:
            self.close()

    def _round(self, wait_s: float) -> bool:
        """Whether anything came."""
        events = self._selector.select(0.0 if self.ingest.unsynced_bytes else min(wait_s, self._next_timeout_s()))
        for key, mask in events:
            if isinstance(key.data, Connection):
                self._serve(key.data, mask)
            else:
                key.data()
        self.ingest.store()
        for one in self.ingest.waiting:
            self.connections.watch(one)  # there is no room: they are not read on
        self.ingest.sync(not events)
        self._housekeeping()
        return bool(events)

    def _serve(self, one: Connection, mask: int) -> None:
        if self.connections.serve(one, mask) and one not in self.ingest.waiting:
            self.ingest.waiting.append(one)

    def _next_timeout_s(self) -> float:
        if self.ingest.waiting and self.ingest.full is None:
            return 0.0  # they got memory at the end of a round
        waits = [_TICK_S]
        retry_s = self.ingest.wait_s()
        if retry_s is not None:
            waits.append(retry_s)
        if self.journal.closed and not self.sealer.busy and self.settings.seal:
            waits.append(self.sealer.wait_s())
        return min(waits)

    def _housekeeping(self) -> None:
        """What is to be done now and then, and costs nothing otherwise."""
        assert self._epoch is not None
        self._epoch.check()
        now_s = time.monotonic()
        if now_s - self._last_check_s > _TICK_S / 2:
            self._last_check_s = now_s
            self.connections.drop_idle()
        behind = self.settings.seal and self.journal.waiting_bytes >= self.settings.backlog_bytes
        segment = self.journal.current
        if segment is not None and segment.n_frames and now_s - self.ingest.first_s > self.settings.seal_after_s:
            self.ingest.roll_segment()
        elif behind and not self.journal.closed:
            self.ingest.roll_segment()  # nothing comes that would fill the segment
        self._seal_next()
        hungry, self.connections.awaiting_buffer = self.connections.awaiting_buffer, []
        for one in hungry:
            self._serve(one, selectors.EVENT_READ)
        self.connections.hold(self.ingest.full is not None or behind)

    # ---- parts

    def _seal_next(self) -> None:
        if self.sealer.fd != self._sealer_fd:
            self._watch_sealer()
        if self.settings.seal and self.journal.closed and not self.sealer.busy and not self.sealer.wait_s():
            self.sealer.begin(self.journal.closed[0])
            self._watch_sealer()

    def _watch_sealer(self) -> None:
        if self._sealer_fd >= 0:
            self._selector.unregister(self._sealer_fd)
        self._sealer_fd = self.sealer.fd
        if self._sealer_fd >= 0:
            self._selector.register(self._sealer_fd, selectors.EVENT_READ, self._on_sealer_output)

    def _on_sealer_output(self) -> None:
        self._selector.unregister(self._sealer_fd)  # before it is closed
        self._sealer_fd = -1
        done = self.sealer.answer()
        if done is not None:
            try:
                self.journal.sealed(done)
                self._sealed += 1
            except OSError as error:
                self.sealer.failed(f"{self.folder / 'journal'}: {error.strerror}", error.errno in DISK_FULL)
        self._watch_sealer()

    # ---- the end

    def _drain(self) -> None:
        """What was sent is taken; who is in the middle of a frame has a little time to send the rest."""
        assert self._listener is not None
        self.connections.is_stopping = True
        self._selector.unregister(self._listener.socket)
        self._listener.close()
        self.connections.notify_all(pack_message(STOPPING))
        deadline = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline:
            came = self._round(0.0)
            is_mid_frame = any(one.is_mid_frame for one in self.connections.all)
            if not came and not is_mid_frame and not self.ingest.waiting and not self.ingest.unsynced_bytes:
                break
            if not came and is_mid_frame:
                self._round(0.05)
        self.connections.drop_all()
        self.ingest.roll_segment()

    def _seal_all(self) -> None:
        """WriteError: it cannot be done; the journal is kept, and the next server does it."""
        self.sealer.try_now()
        while self.settings.seal and self.journal.closed:
            self._round(_TICK_S)
            if self.sealer.trouble and self.sealer.failures >= _MOST_FAILURES:
                left = len(self.journal.closed)
                text = f"{self.folder}: stopped with {left:,} segments of the journal in no part"
                raise WriteError(f"{text}: {self.sealer.trouble}; nothing is lost, the next server makes parts of them")

    def close(self) -> None:
        """Everything is let go of; what is written stays."""
        self.connections.drop_all()
        if self._sealer_fd >= 0:
            self._selector.unregister(self._sealer_fd)
            self._sealer_fd = -1
        self.sealer.stop()
        if self._listener is not None:
            self._listener.close()
        if self._journal is not None:
            self._journal.close()
        if self._epoch is not None:
            self._epoch.close()
        self._selector.close()
        for fd in (self._wake_read, self._wake_write):
            if fd >= 0:
                os.close(fd)
        self._wake_read = self._wake_write = -1
