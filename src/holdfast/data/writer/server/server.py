"""The event loop of the central writer: one thread, one selector, one socket per producer.

Each round reads what has arrived, appends all complete frames to the journal with one write, checks that no other
server has taken over, and acknowledges. Nothing is done row by row.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...._util.fds import raise_nofile
from ....errors import WriteError
from ....schema import Column, schema_to_json
from .address import ServerListener
from .connections import BufferPool, Connection, Connections
from .ingest import DISK_FULL, Ingest
from .journal import Journal
from .leader_epoch import LeaderEpoch
from .protocol import STOPPING, FrameLayout, pack_message
from .sealer import Sealer
from .server_process import ServerSettings
from .shared_buffer import slots_for

_DRAIN_S = 5.0  # for frames in transit when the server is stopped
_TICK_S = 0.5
_WINDOW_BYTES = {"process": 4 << 20, "disk": 32 << 20}  # fits a CPU cache; worth a sync
_MAX_FAILURES = 3
LEAST_IN_PLACE_BYTES = 1 << 20  # of a segment; copying a smaller one takes no time

Control = Callable[[], None]


class CentralWriter:
    """One server. `run` returns after `stop`, when all rows are in parts."""

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
        """How much a producer may have sent without an acknowledgement."""
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
        """Returns the answer to a HELLO. It acknowledges rows, so these are synced first."""
        self.ingest.sync()
        return self._frame_settings | {
            "mark": self.journal.watermarks.get(name, 0),
            "epoch": self.journal.epoch,
            "folder": str(self.folder),
            "full": self.ingest.full,
            # How much a producer may have sent without an acknowledgement.
            "window_bytes": self._window_bytes,
            "frame_bytes": self.settings.queue_bytes,
        }

    # ---- control

    def watch(self, fd: int, control: Control) -> None:
        """Calls `control` when the descriptor is readable."""
        self._selector.register(fd, selectors.EVENT_READ, control)

    def unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

    def stop(self) -> None:
        """Makes `run` return. Safe in a signal handler and from other threads."""
        self._stopping = True
        try:
            os.write(self._wake_write, b"s")
        except OSError:
            pass  # the pipe is full, so it wakes up; or it has ended

    def stats(self) -> dict[str, Any]:
        return {
            **self.ingest.counts,
            "refused": self.connections.refused,
            "sealed": self._sealed,
            "producers": len(self.connections.named),
            "marks": dict(self.journal.watermarks),
            "memory_bytes": self.buffers.bytes,
            "journal_bytes": self.journal.waiting_bytes,
            "segments": len(self.journal.closed),
            "full": self.ingest.full,
            "trouble": self.sealer.last_error,
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
        """Waits for events and handles them. Returns whether there were any."""
        events = self._selector.select(0.0 if self.ingest.unsynced_bytes else min(wait_s, self._next_timeout_s()))
        for key, mask in events:
            if isinstance(key.data, Connection):
                self._serve(key.data, mask)
            else:
                key.data()
        self.ingest.store()
        for one in self.ingest.waiting:
            self.connections.watch(one)  # the disk is full: nothing more is read from them
        self.ingest.sync(not events)
        self._housekeeping()
        return bool(events)

    def _serve(self, one: Connection, mask: int) -> None:
        if self.connections.serve(one, mask) and one not in self.ingest.waiting:
            self.ingest.waiting.append(one)

    def _next_timeout_s(self) -> float:
        if self.ingest.waiting and self.ingest.full is None:
            return 0.0  # they got a buffer at the end of the last round
        waits = [_TICK_S]
        retry_s = self.ingest.wait_s()
        if retry_s is not None:
            waits.append(retry_s)
        if self.journal.closed and not self.sealer.busy and self.settings.seal:
            waits.append(self.sealer.wait_s())
        return min(waits)

    def _housekeeping(self) -> None:
        """Checks the epoch, drops idle connections, rolls and seals segments, and serves those that wait for memory."""
        assert self._epoch is not None
        self._epoch.check()
        now_s = time.monotonic()
        if now_s - self._last_check_s > _TICK_S / 2:
            self._last_check_s = now_s
            self.connections.drop_idle()
        is_backlogged = self.settings.seal and self.journal.waiting_bytes >= self.settings.backlog_bytes
        segment = self.journal.current
        if segment is not None and segment.n_frames and now_s - self.ingest.first_s > self.settings.seal_after_s:
            self.ingest.roll_segment()
        elif is_backlogged and not self.journal.closed:
            self.ingest.roll_segment()  # producers are paused, so the segment would never fill
        self._seal_next()
        waiting, self.connections.awaiting_buffer = self.connections.awaiting_buffer, []
        for one in waiting:
            self._serve(one, selectors.EVENT_READ)
        self.connections.pause(self.ingest.full is not None or is_backlogged)

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

    # ---- stopping

    def _drain(self) -> None:
        """Reads what was sent. Producers in the middle of a frame have a few seconds to send the rest."""
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
        """Makes parts of all segments. WriteError: sealing fails; the journal stays for the next server."""
        self.sealer.retry_now()
        while self.settings.seal and self.journal.closed:
            self._round(_TICK_S)
            if self.sealer.last_error and self.sealer.failures >= _MAX_FAILURES:
                left = len(self.journal.closed)
                text = f"{self.folder}: stopped with {left:,} unsealed segments of the journal"
                raise WriteError(f"{text}: {self.sealer.last_error}; no row is lost, the next server seals them")

    def close(self) -> None:
        """Releases everything. What is written stays on disk."""
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
