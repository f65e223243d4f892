"""Ingests received frames: checks them, appends them to the journal, syncs if asked to, and acknowledges them."""

from __future__ import annotations

import errno
import logging
import os
import time
from typing import Any

from ...._util.failpoints import failpoint
from ....errors import WriteError
from .connections import BufferPool, Connection, Connections, ReceivedFrame
from .journal import Journal
from .leader_epoch import LeaderEpoch
from .protocol import FULL, SPACE, FrameError, FrameLayout, pack_message
from .server_process import ServerSettings

_log = logging.getLogger("holdfast.server")

_SYNC_BYTES = 16 << 20
_RETRY_S = 0.5
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Ingest:
    """Frames on their way from connections into the journal.

    waiting  connections with received frames that are not written yet
    full     why nothing is written now: the disk is full; None otherwise
    """

    def __init__(
        self,
        connections: Connections,
        journal: Journal,
        epoch: LeaderEpoch,
        layout: FrameLayout,
        buffers: BufferPool,
        settings: ServerSettings,
    ) -> None:
        self._connections, self._journal, self._epoch = connections, journal, epoch
        self._layout, self._buffers, self._settings = layout, buffers, settings
        self.waiting: list[Connection] = []
        self.full: str | None = None
        self.counts = {"frames": 0, "rows": 0, "bytes": 0}
        self.unsynced_bytes = 0
        self._unsynced: dict[Connection, int] = {}
        self._retry_s = 0.0
        self.first_s = 0.0  # when the current segment got its first frame

    def store(self) -> None:
        """Appends all received frames with one write."""
        if not self.waiting or (self.full is not None and time.monotonic() < self._retry_s):
            return
        watermarks: dict[str, int] = {}
        taken: list[tuple[Connection, int]] = []  # and the watermark after its frames
        new: list[ReceivedFrame] = []
        for connection in self.waiting:
            mark = before = self._journal.watermarks.get(connection.name or "", 0)
            found: list[ReceivedFrame] = []
            for frame in connection.received:
                state = self._check(connection, frame, mark)
                if state == "bad":
                    break
                if state == "new":
                    mark = frame.head.end
                    found.append(frame)
            else:
                taken.append((connection, mark))
                new += found
                if mark > before:
                    watermarks[connection.name or ""] = mark
        if self._write(new, watermarks):
            self._finish(taken, new)

    def _write(self, frames: list[ReceivedFrame], watermarks: dict[str, int]) -> bool:
        """Returns False if the disk is full; then none of the frames is written."""
        if not frames:
            return True
        buffers: list[Any] = [part for frame in frames for part in (frame.raw, frame.payload) if len(part)]
        try:
            self._check_space(sum(frame.bytes for frame in frames))
            self._journal.append(buffers, len(frames), watermarks)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise WriteError(f"cannot write {self._journal.folder / 'journal'}: {error.strerror}") from error
            self._pause_for_space(str(error.strerror))
            return False
        return True

    def _check(self, connection: Connection, frame: ReceivedFrame, mark: int) -> str:
        """Returns "new": to be written; "old": written before; "bad": the connection was refused."""
        head, meta = frame.head, frame.meta
        try:
            if meta.producer != connection.name or head.epoch != self._journal.epoch:
                text = f"expected a frame of {connection.name!r} in epoch {self._journal.epoch}"
                raise FrameError(f"{text}, got {meta.producer!r} in {head.epoch}")
            if head.end <= mark:
                return "old"
            if head.first != mark:
                raise FrameError(f"expected row {mark:,} next, got {head.first:,} to {head.end:,}")
            self._layout.check(head, meta.sizes)
            meta.check(frame.payload)
            self._layout.check_ends(head.rows, frame.payload, meta.sizes)
            return "new"
        except FrameError as error:
            why = str(error)
        self._connections.refuse(connection, why)  # outside: the error's traceback holds a view of the frame
        return "bad"

    def _finish(self, taken: list[tuple[Connection, int]], new: list[ReceivedFrame]) -> None:
        """Releases the memory of written frames, and acknowledges them or leaves that to the next sync."""
        segment, size = self._journal.current, sum(frame.bytes for frame in new)
        if new:
            if self.full is not None:
                self.full = None
                self._connections.notify_all(pack_message(SPACE))
            assert segment is not None
            if segment.n_frames == len(new):
                self.first_s = time.monotonic()
        self.counts["frames"] += len(new)
        self.counts["bytes"] += size
        self.counts["rows"] += sum(frame.head.rows for frame in new)
        self.waiting = []
        new.clear()
        for connection, mark in taken:
            connection.done(self._buffers)
            self._unsynced[connection] = mark
        self.unsynced_bytes += size
        if self._settings.ack == "process" or not self.unsynced_bytes:
            self._acknowledge()
        else:
            failpoint("server-unsynced")
        if segment is not None and segment.bytes >= self._settings.segment_bytes:
            self.roll_segment()

    def sync(self, nothing_came: bool = True) -> None:
        """With ack="disk": syncs and acknowledges when enough was written, or when no frames came in this round."""
        if self.unsynced_bytes and (nothing_came or self.unsynced_bytes >= _SYNC_BYTES):
            if self._journal.current is not None:
                self._journal.current.sync()
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledges what is written, after a check that no other server has taken over."""
        self._epoch.check()
        acks, self._unsynced, self.unsynced_bytes = self._unsynced, {}, 0
        for connection, mark in acks.items():
            self._connections.ack(connection, mark)
        failpoint("server-acked")

    def roll_segment(self) -> None:
        self.sync()
        self._journal.roll_segment()

    # ---- disk full

    def _check_space(self, size: int) -> None:
        """Raises ENOSPC unless the part fits on the disk as well: a journal that cannot be sealed would stay."""
        if not self._settings.seal:
            return
        info = os.statvfs(self._journal.folder)
        current = self._journal.current.bytes if self._journal.current else 0
        need = size + max(self._journal.largest_bytes, current + size)
        if info.f_bavail * info.f_frsize < need:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _pause_for_space(self, why: str) -> None:
        self._retry_s = time.monotonic() + _RETRY_S
        if self.full is None:
            self.full = f"{self._journal.folder}: {why}"
            _log.error("%s: the server writes nothing until there is space again", self.full)
            self._connections.notify_all(pack_message(FULL, 0, self.full))
            self._journal.drop_spare()
            self.roll_segment()  # sealing it may free space

    def wait_s(self) -> float | None:
        """Returns the time until the next attempt to write. None: nothing waits for space."""
        return max(0.0, self._retry_s - time.monotonic()) if self.waiting and self.full is not None else None
