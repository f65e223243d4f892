"""A segment of the journal: frames in the order they were acknowledged, in a file that only grows.

    HFSEG1, the size and crc32c of what follows; how its frames were made, as JSON; frames

Where frames are made of chunks as an HDF5 file has them, the segment becomes the part: it leaves room at its beginning
for what HDF5 has to say, and begins behind that. It is a segment all the time: frames are never touched.

A file may have been a segment before, whose frames are in a part: then old ones lie behind the new. Their rows are
below the marks of their producers, by which they are known and left out.

What a kill or a full disk left at the end is no frame, and is cut away. A bad frame with new ones behind it was damaged
later: everything from there on goes to `quarantine/`, and is told of.
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

from ..._native.codec import crc32c
from ..._util.atomic import sync_folder
from .protocol import HEAD_BYTES, MAGIC, VERSION, FrameError, Head, Meta, parse_head, parse_meta

SUFFIX = ".hfj"
_START = struct.Struct("<8sII")
_MAGIC = b"HFSEG1\n\0"
_MOST_IOV = 512
_MOST_SETTINGS_BYTES = 1 << 24
HEADER_GAP_BYTES = 60 << 10
_FIRST_FRAME_AT = 64 << 10  # of the frames, where room is left

Watermarks = dict[str, int]  # how many rows of each producer there are


class Placed(NamedTuple):
    """A frame in a segment. `at`: where its payload begins."""

    head: Head
    meta: Meta
    at: int


def segment_name(epoch: int, number: int) -> str:
    return f"{epoch:06d}-{number:06d}{SUFFIX}"


def task_of(name: str) -> str:
    """The task that a segment's part is committed as."""
    return f"server-{name.removesuffix(SUFFIX)}"


def parse_segment(name: str) -> tuple[int, int] | None:
    epoch, _, number = name.removesuffix(SUFFIX).partition("-")
    return (int(epoch), int(number)) if name.endswith(SUFFIX) and epoch.isdecimal() and number.isdecimal() else None


class Segment:
    """The one that is written to. `spare`: a file to be used again, whose memory or blocks are there already.
    `leaves_room`: for HDF5, if the settings are not too long for that."""

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
        """Of its frames."""
        return self.end - self._start

    def append(self, frames: Sequence[Any], count: int) -> None:
        """All of them, or an OSError and none."""
        for at in range(0, len(frames), _MOST_IOV):
            if at == 0:
                before = self.end
            try:
                self._write(frames[at : at + _MOST_IOV])
            except OSError:
                self._cut(before)
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
            self._cut(before)
            raise

    def _cut(self, end: int) -> None:
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
    """A segment read through memory. `settings` None: it ends before its first frame."""

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
        """Not through memory: the room is a hole, and to look into one takes room on a tmpfs, which may be full."""
        self.has_header_gap = False
        self.settings, self.start = _settings(fd, 0)
        if self.settings is None:
            self.settings, end = _settings(fd, HEADER_GAP_BYTES)
            self.has_header_gap = self.settings is not None and end <= _FIRST_FRAME_AT
            self.start = _FIRST_FRAME_AT if self.has_header_gap else 0

    def frames(self, end: int | None = None) -> Iterator[Placed]:
        """All up to `end`. FrameError: what follows is none."""
        at, end = self.start, self.size if end is None else end
        while at < end:
            placed = self.frame(at, end)
            yield placed
            at = placed.at + placed.head.payload_bytes

    def frame(self, at: int, end: int, check: bool = True) -> Placed:
        """`check`: the payload as well."""
        if end - at < HEAD_BYTES:
            raise FrameError("cut in the head of a frame")
        head = parse_head(self.view, at)
        payload = at + HEAD_BYTES + head.meta_bytes
        if payload > end:
            raise FrameError("cut in the meta of a frame")
        meta = parse_meta(head, self.view, at)
        if payload + head.payload_bytes > end:
            raise FrameError("cut in the payload of a frame")
        placed = Placed(head, meta, payload)
        if check:
            meta.check(self.payload(placed))
        return placed

    def payload(self, placed: Placed) -> memoryview:
        return self.view[placed.at : placed.at + placed.head.payload_bytes]

    def next_good(self, at: int) -> int | None:
        """Where a whole frame begins behind a bad one, if there is any."""
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
                pass  # an error's traceback still looks at a frame; it goes with that

    def __enter__(self) -> SegmentView:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _settings(fd: int, at: int) -> tuple[dict[str, Any] | None, int]:
    """And where they end."""
    head = os.pread(fd, _START.size, at)
    if len(head) < _START.size:
        return None, 0
    magic, size, crc = _START.unpack(head)
    if magic != _MAGIC or size > _MOST_SETTINGS_BYTES:
        return None, 0
    text = os.pread(fd, size, at + _START.size)
    good = len(text) == size and crc32c(text) == crc
    return (json.loads(text), at + _START.size + size) if good else (None, 0)


@dataclass(slots=True)
class FoundFrames:
    """What a look through a segment found. `end`: behind its last good frame; `bad`: why there is no next one."""

    path: Path
    size: int = 0
    end: int = 0
    start: int = 0
    has_header_gap: bool = False
    bad: str | None = None
    marks: Watermarks = field(default_factory=dict)  # behind the last rows of each producer in it
    resumes: int | None = None  # where good frames follow behind the bad one
    behind: Watermarks = field(default_factory=dict)  # the marks behind those


def scan(path: Path) -> FoundFrames:
    with SegmentView(path) as segment:
        found = FoundFrames(path, segment.size, segment.start, segment.start, segment.has_header_gap)
        try:
            if segment.settings is None:
                raise FrameError("its head is damaged, or not there")
            for placed in segment.frames():
                advance_watermark(found.marks, placed.meta.producer, placed.head.end)
                found.end = placed.at + placed.head.payload_bytes
        except FrameError as error:
            found.bad = str(error)
            found.resumes = at = segment.next_good(found.end)
            while at is not None:
                placed = segment.frame(at, segment.size)
                advance_watermark(found.behind, placed.meta.producer, placed.head.end)
                at = segment.next_good(placed.at + placed.head.payload_bytes)
    return found


def advance_watermark(marks: Watermarks, producer: str, mark: int) -> None:
    if mark > marks.get(producer, 0):
        marks[producer] = mark
