"""A segment of the journal: frames in the order they were acknowledged, in a file that only grows.

    HFSEG1; size and crc32c of the settings; the settings as JSON; frames

Where frames consist of chunks as they are in an HDF5 file, the segment becomes the part: it has a gap at its beginning
for the HDF5 header, and its content starts after that. It stays a valid segment: frames are never changed.

A file may be reused whose frames are in a part: then old frames follow the new ones. Their rows are below the
watermarks of their producers, and so they are skipped.

What a kill or a full disk left at the end is no complete frame, and is removed. A bad frame that is followed by new
ones was corrupted later: everything from there on is moved to `quarantine/` and reported.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...._native.codec import crc32c
from ...._util.atomic import sync_folder
from .protocol import HEAD_BYTES, MAGIC, VERSION, FrameError, Head, Meta, parse_head, parse_meta

SUFFIX = ".hfj"
_START = struct.Struct("<8sII")
_MAGIC = b"HFSEG1\n\0"
_MAX_IOV = 512
_MAX_SETTINGS_BYTES = 1 << 24
HEADER_GAP_BYTES = 60 << 10
_FIRST_FRAME_AT = 64 << 10  # where there is a header gap

Watermarks = dict[str, int]  # how many rows of each producer are stored


class Placed(NamedTuple):
    """A frame in a segment. `at`: the offset of its payload."""

    head: Head
    meta: Meta
    at: int


def segment_name(epoch: int, number: int) -> str:
    return f"{epoch:06d}-{number:06d}{SUFFIX}"


def task_of(name: str) -> str:
    """Returns the task that a segment's part is committed as."""
    return f"server-{name.removesuffix(SUFFIX)}"


def parse_segment(name: str) -> tuple[int, int] | None:
    epoch, _, number = name.removesuffix(SUFFIX).partition("-")
    return (int(epoch), int(number)) if name.endswith(SUFFIX) and epoch.isdecimal() and number.isdecimal() else None


class Segment:
    """The segment that is written to.

    spare           a file to overwrite, which saves allocating its blocks
    has_header_gap  leave a gap for the HDF5 header, unless the settings are too long
    """

    def __init__(
        self,
        folder: Path,
        epoch: int,
        number: int,
        settings: dict[str, Any],
        spare: Path | None = None,
        *,
        has_header_gap: bool = False,
    ) -> None:
        self.path = folder / segment_name(epoch, number)
        self.n_frames = 0
        self._has_synced_name = False
        text = json.dumps(settings).encode()
        if spare is None:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        else:
            os.rename(spare, self.path)
            self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self.has_header_gap = has_header_gap and HEADER_GAP_BYTES + _START.size + len(text) <= _FIRST_FRAME_AT
        self.end = HEADER_GAP_BYTES if self.has_header_gap else 0
        try:
            self._write([_START.pack(_MAGIC, len(text), crc32c(text)), text])
            if self.has_header_gap:
                self.end = _FIRST_FRAME_AT
            self._start = self.end
        except OSError:
            os.unlink(self.path)
            self.close()
            raise

    @property
    def bytes(self) -> int:
        """The size of its frames."""
        return self.end - self._start

    def append(self, frames: Sequence[Any], count: int) -> None:
        """Appends all frames, or raises an OSError and appends none."""
        for at in range(0, len(frames), _MAX_IOV):
            if at == 0:
                before = self.end
            try:
                self._write(frames[at : at + _MAX_IOV])
            except OSError:
                self._remove_tail(before)
                raise
        self.n_frames += count

    def _write(self, buffers: Sequence[Any]) -> None:
        before, left = self.end, list(buffers)
        try:
            while left:
                n = os.pwritev(self.fd, left, self.end)
                self.end += n
                while left and n >= len(left[0]):
                    n -= len(left.pop(0))
                if n:
                    left[0] = memoryview(left[0])[n:]
        except OSError:
            self._remove_tail(before)
            raise

    def _remove_tail(self, end: int) -> None:
        self.end = end
        os.ftruncate(self.fd, end)

    def sync(self) -> None:
        os.fdatasync(self.fd)
        if not self._has_synced_name:
            sync_folder(self.path.parent)
            self._has_synced_name = True

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SegmentView:
    """A memory-mapped segment. `settings` None: it has no valid header, and so no frames."""

    def __init__(self, path: Path) -> None:
        self._map: mmap.mmap | None = None
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(fd).st_size
            self._read_head(fd)
            if self.size:
                self._map = mmap.mmap(fd, self.size, prot=mmap.PROT_READ)
                self._map.madvise(mmap.MADV_SEQUENTIAL)
        finally:
            os.close(fd)
        self.view = memoryview(b"" if self._map is None else self._map)

    def _read_head(self, fd: int) -> None:
        """Reads with pread: a mapping of the gap, which is a hole, would allocate memory on a tmpfs."""
        self.has_header_gap = False
        self.settings, self.start = _settings(fd, 0)
        if self.settings is None:
            self.settings, end = _settings(fd, HEADER_GAP_BYTES)
            self.has_header_gap = self.settings is not None and end <= _FIRST_FRAME_AT
            self.start = _FIRST_FRAME_AT if self.has_header_gap else 0

    def frames(self, end: int | None = None) -> Iterator[Placed]:
        """Yields all frames up to `end`. FrameError: the next bytes are no valid frame."""
        at, end = self.start, self.size if end is None else end
        while at < end:
            placed = self.frame(at, end)
            yield placed
            at = placed.at + placed.head.payload_bytes

    def frame(self, at: int, end: int, check: bool = True) -> Placed:
        """Parses the frame at `at`. `check`: verify the payload's CRC as well."""
        if end - at < HEAD_BYTES:
            raise FrameError("truncated in the head of a frame")
        head = parse_head(self.view, at)
        payload = at + HEAD_BYTES + head.meta_bytes
        if payload > end:
            raise FrameError("truncated in the meta of a frame")
        meta = parse_meta(head, self.view, at)
        if payload + head.payload_bytes > end:
            raise FrameError("truncated in the payload of a frame")
        placed = Placed(head, meta, payload)
        if check:
            meta.check(self.payload(placed))
        return placed

    def payload(self, placed: Placed) -> memoryview:
        return self.view[placed.at : placed.at + placed.head.payload_bytes]

    def next_good(self, at: int) -> int | None:
        """Returns the offset of the next valid frame from `at` on, if there is any."""
        magic = MAGIC + bytes([VERSION])
        while self._map is not None and (at := self._map.find(magic, at)) >= 0:
            try:
                self.frame(at, self.size)
            except FrameError:
                at += 1
                continue
            return at
        return None

    def close(self) -> None:
        self.view.release()
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:
                pass  # an error's traceback still has a view of a frame, and frees it later

    def __enter__(self) -> SegmentView:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _settings(fd: int, at: int) -> tuple[dict[str, Any] | None, int]:
    """Returns the settings at `at`, and where they end."""
    head = os.pread(fd, _START.size, at)
    if len(head) < _START.size:
        return None, 0
    magic, size, crc = _START.unpack(head)
    if magic != _MAGIC or size > _MAX_SETTINGS_BYTES:
        return None, 0
    text = os.pread(fd, size, at + _START.size)
    good = len(text) == size and crc32c(text) == crc
    return (json.loads(text), at + _START.size + size) if good else (None, 0)


@dataclass(slots=True)
class FoundFrames:
    """The result of a scan. `end`: after the last good frame; `bad`: why there is no further one."""

    path: Path
    size: int = 0
    end: int = 0
    start: int = 0
    has_header_gap: bool = False
    bad: str | None = None
    watermarks: Watermarks = field(default_factory=dict)  # after the last good frame
    resumes: int | None = None  # the offset of the next good frame after the bad one
    after_gap: Watermarks = field(default_factory=dict)  # the watermarks of those further frames


def scan(path: Path) -> FoundFrames:
    with SegmentView(path) as segment:
        found = FoundFrames(path, segment.size, segment.start, segment.start, segment.has_header_gap)
        try:
            if segment.settings is None:
                raise FrameError("its header is corrupt or missing")
            for placed in segment.frames():
                advance_watermark(found.watermarks, placed.meta.producer, placed.head.end)
                found.end = placed.at + placed.head.payload_bytes
        except FrameError as error:
            found.bad = str(error)
            found.resumes = at = segment.next_good(found.end)
            while at is not None:
                placed = segment.frame(at, segment.size)
                advance_watermark(found.after_gap, placed.meta.producer, placed.head.end)
                at = segment.next_good(placed.at + placed.head.payload_bytes)
    return found


def advance_watermark(watermarks: Watermarks, producer: str, mark: int) -> None:
    if mark > watermarks.get(producer, 0):
        watermarks[producer] = mark
