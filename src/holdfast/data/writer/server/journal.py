"""The journal of a dataset: the segment being written, those that wait for the sealer, and recovery at the start."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...._util.atomic import sync_file, write_atomically
from ...._util.failpoints import failpoint
from ....errors import InputError
from ..directory import find_committed
from .segment import FoundFrames, Segment, Watermarks, parse_segment, scan, task_of
from .watermarks import (
    advance_all,
    read_watermarks,
    remove_older,
    watermarks_of_parts,
    watermarks_of_runs,
    write_watermarks,
)

_log = logging.getLogger("holdfast.server")

LEAST_SPARE_BYTES = 1 << 20


@dataclass(slots=True)
class ClosedSegment:
    """A segment that waits for the sealer.

    bytes          of its frames
    in_place       it may become the part itself: nobody but this server's sealer writes to it
    before, after  the watermarks of its producers when it began and ended; rows below `before` are in other segments
    """

    path: Path
    end: int
    bytes: int = 0
    in_place: bool = False
    before: Watermarks = field(default_factory=dict)
    after: Watermarks = field(default_factory=dict)

    @property
    def task(self) -> str:
        return task_of(self.path.name)


class Journal:
    """`watermarks`: how many rows of each producer are written."""

    def __init__(self, folder: Path, epoch: int, settings: dict[str, Any], *, in_place: bool = False) -> None:
        self._in_place = in_place
        self.folder, self._journal, self.epoch, self._settings = folder, folder / "journal", epoch, settings
        self.watermarks: Watermarks = {}
        self.closed: deque[ClosedSegment] = deque()
        self.current: Segment | None = None
        self._before: Watermarks = {}  # of the producers with rows in the current segment
        self._number = 0
        self._spare: Path | None = None
        self._sealed: Watermarks = {}
        self._recover()

    # ---- writing

    def append(self, frames: Sequence[Any], count: int, watermarks: Watermarks) -> None:
        """Appends all frames, or raises an OSError and appends none. `watermarks`: of their producers, after them."""
        if self.current is None:
            self._number += 1
            spare, self._spare = self._spare, None
            self.current = Segment(
                self._journal, self.epoch, self._number, self._settings, spare, has_header_gap=self._in_place
            )
            failpoint("server-segment-made")
        self.current.append(frames, count)
        for producer, mark in watermarks.items():
            self._before.setdefault(producer, self.watermarks.get(producer, 0))
            self.watermarks[producer] = mark
        failpoint("server-frame-written")

    def roll_segment(self) -> None:
        """Closes the current segment; the next frame begins another."""
        if self.current is None:
            return
        segment, self.current = self.current, None
        segment.close()
        before, self._before = self._before, {}
        if not segment.n_frames:
            os.unlink(segment.path)
            return
        after = {producer: self.watermarks[producer] for producer in before}
        self.closed.append(
            ClosedSegment(segment.path, segment.end, segment.bytes, segment.has_header_gap, before, after)
        )
        failpoint("server-segment-closed")

    @property
    def waiting_bytes(self) -> int:
        """The size of all frames that are in no part yet."""
        return sum(one.bytes for one in self.closed) + (self.current.bytes if self.current else 0)

    @property
    def largest_bytes(self) -> int:
        """The size of the largest segment, and so of the largest part to be made."""
        return max([one.bytes for one in self.closed] + ([self.current.bytes] if self.current else []), default=0)

    def sealed(self, done: ClosedSegment) -> None:
        """Removes a segment whose part is committed, after its watermarks are on disk."""
        assert self.closed[0] is done
        advance_all(self._sealed, done.after)
        write_watermarks(self._journal, self.epoch, self._sealed)
        failpoint("server-marks-written")
        self._release(done)
        self.closed.popleft()
        self._remove_stale()
        failpoint("server-segment-deleted")

    def _release(self, done: ClosedSegment) -> None:
        """Keeps one file to overwrite, which costs a third of writing a new one, and half for a sync. Only one of this
        server's own, as an older server may still have its files open, and never one that became a part."""
        is_own = (parse_segment(done.path.name) or (0, 0))[0] == self.epoch
        if self._spare is None and is_own and not self._in_place and done.bytes >= LEAST_SPARE_BYTES:
            spare = self._journal / f".spare.{self.epoch}"
            os.rename(done.path, spare)
            self._spare = spare
        else:
            done.path.unlink(missing_ok=True)

    def drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.unlink(missing_ok=True)
            self._spare = None

    def close(self) -> None:
        self.drop_spare()
        if self.current is not None:
            self.current.close()

    # ---- recovery

    def _recover(self) -> None:
        """Reads the segments, then the watermarks: an older server deletes a segment only after writing those."""
        names = sorted(name for name in os.listdir(self._journal) if parse_segment(name))
        found = [one for name in names if (one := self._scan(self._journal / name)) is not None]
        watermarks = read_watermarks(self._journal)
        self._sealed = watermarks_of_parts(self.folder / "parts") if watermarks is None else watermarks
        done = []
        for segment in found:
            committed = find_committed(self.folder / "parts", task_of(segment.path.name))
            if committed is not None:
                advance_all(self._sealed, watermarks_of_runs(committed.runs or []))
                done.append(segment.path)
        self.watermarks = dict(self._sealed)
        for segment in found:
            if segment.path not in done:
                self._adopt(segment)
        write_watermarks(self._journal, self.epoch, self._sealed)
        remove_older(self._journal, self.epoch)
        for path in done:
            path.unlink(missing_ok=True)
        self._remove_stale()
        failpoint("server-recovered")

    def _remove_stale(self) -> None:
        """Removes older servers' drafts (`.address.json.7`), and segments they began after this one has taken over."""
        known = {one.path.name for one in self.closed}
        for name in os.listdir(self._journal):
            stem, _, number = name.rpartition(".")
            segment = parse_segment(name)
            is_draft = stem.startswith(".") and number.isdecimal() and int(number) < self.epoch
            if is_draft or (segment is not None and segment[0] < self.epoch and name not in known):
                (self._journal / name).unlink(missing_ok=True)

    def _adopt(self, segment: FoundFrames) -> None:
        before = {producer: self.watermarks.get(producer, 0) for producer in segment.watermarks}
        advance_all(self.watermarks, segment.watermarks)
        if segment.bad is not None:
            self._remove_tail(segment)
        if any(before[producer] < mark for producer, mark in segment.watermarks.items()):
            after = {producer: self.watermarks[producer] for producer in before}
            self.closed.append(
                ClosedSegment(segment.path, segment.end, segment.end - segment.start, False, before, after)
            )
        else:
            segment.path.unlink(missing_ok=True)  # empty, or all its rows are elsewhere as well

    def _scan(self, path: Path) -> FoundFrames | None:
        try:
            found = scan(path)
            sync_file(path)  # producers get its watermarks, which is an acknowledgement
            return found
        except FileNotFoundError:
            return None  # an older server sealed it just now
        except OSError as error:
            raise InputError(f"{path}: the journal cannot be read: {error.strerror}") from error

    def _remove_tail(self, found: FoundFrames) -> None:
        if any(mark > self.watermarks.get(producer, 0) for producer, mark in found.after_gap.items()):
            kept = self.folder / "quarantine" / f"{found.path.name}.from-{found.end}"
            with open(found.path, "rb") as file:
                file.seek(found.end)
                write_atomically(kept, file.read())
            text = "%s is corrupt at byte %s (%s): the rest is kept as %s, and its rows are missing"
            _log.error(text, found.path, f"{found.end:,}", found.bad, kept)
        elif found.size > found.end:
            _log.info("%s: removed %s bytes of an unfinished frame", found.path.name, f"{found.size - found.end:,}")
        # A segment with a header gap may just become a part, by the sealer of an older server: it is not truncated.
        if found.start and not found.has_header_gap:
            os.truncate(found.path, found.end)
