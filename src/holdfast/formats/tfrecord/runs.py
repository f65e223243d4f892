"""A file's records as runs of whole frames: for those who copy, count or measure without looking into them.

A frame is made of its record alone, so frames that were good in one file are good in the next, as they are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._native import codec
from ...errors import InputError
from ..columns import Ints
from .problems import Problem
from .source import open_source
from .stream import STRETCH_BYTES, Feed, FeedFile, FrameStream, OnCorrupt, Verify

Progress = Callable[[int], None]  # gets how many bytes of the file were gone through since the last call

# Gets the frames' bytes and where in them each frame starts. Both are used again for the next run.
Put = Callable[[memoryview, Ints], None]

MOST_RECORDS = 1 << 16  # of one run


class Runs:
    """One file from a record on, a buffer's worth at a time. Holds one descriptor and a buffer until close().

    spool            False: a packed file ends at its first damage with an error, because looking behind it
                     takes room to unpack it all
    offset, record   where to begin, in bytes of what the file unpacks to, and the number of the record there
    on_bytes         sees the file's own bytes, once and in order; not where damage is searched through
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify: Verify = "all",
        on_corrupt: OnCorrupt = "raise",
        keep_doubtful: bool = False,
        spool: bool = True,
        offset: int = 0,
        record: int = 0,
        progress: Progress | None = None,
        on_bytes: Callable[[memoryview], None] | None = None,
    ) -> None:
        source = open_source(path)
        try:
            self.compression = source.compression
            self.file_bytes = source.file_bytes()
            packed = source.compression != "none"
            # Only a plain file's place tells how much of it is done.
            self._progress = None if packed else progress
            source.on_bytes = _both(on_bytes, progress if packed else None)
            self._source = source
            mode: OnCorrupt = "raise" if packed and not spool else on_corrupt
            self._stream = FrameStream(source, verify=verify, on_corrupt=mode, keep_doubtful=keep_doubtful)
        except OSError as error:
            source.close()
            where = f"into {tempfile.gettempdir()} (TMPDIR names another place)"
            raise InputError(f"{source.path}: cannot be unpacked {where}: {error.strerror}") from error
        except BaseException:
            source.close()
            raise
        self._stream.offset = offset
        self._stream.record = record
        self._starts = np.empty(MOST_RECORDS, np.int64)

    @property
    def stream(self) -> FrameStream:
        return self._stream

    @property
    def offset(self) -> int:
        """Where the next run begins, in bytes of what the file unpacks to."""
        return self._stream.offset

    @property
    def record(self) -> int:
        """The number of the next run's first record."""
        return self._stream.record

    @property
    def problems(self) -> list[Problem]:
        """What was left out so far, and why."""
        return self._stream.problems

    def next(self, put: Put, most: int = MOST_RECORDS) -> int | None:
        """Hands at most `most` records to `put`. How many they were, or None when the file is at its end."""
        handed = 0

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            nonlocal handed
            starts = self._starts[: min(most - handed, MOST_RECORDS)]
            walk = codec.scan(buf, start, stop, self._stream.verify_data, starts)
            if walk[0]:
                put(memoryview(buf)[start : start + walk[1]], starts[: walk[0]])
                handed += walk[0]
            return walk

        return handed if self._pump(feed) else None

    def count(self) -> int | None:
        """How many records a next stretch of the file has, without showing them; None at its end."""
        counted = 0

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            nonlocal counted
            walk = codec.scan(buf, start, stop, self._stream.verify_data)
            counted += walk[0]
            return walk

        def feed_file(fd: int, buf: Any, start: int, stop: int, at: int) -> tuple[int, int, int, int, int, int]:
            nonlocal counted
            walk = codec.scan_file(fd, buf, start, stop, at, self._stream.verify_data, None, STRETCH_BYTES)
            counted += walk[0]
            return walk

        return counted if self._pump(feed, feed_file) else None

    def _pump(self, feed: Feed, feed_file: FeedFile | None = None) -> bool:
        before = self._stream.offset
        more = self._stream.pump(feed, feed_file)
        if self._stream.problems:
            self._source.on_bytes = None
        if self._progress and self._stream.offset > before:
            self._progress(self._stream.offset - before)
        return more

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _both(
    on_bytes: Callable[[memoryview], None] | None, progress: Progress | None
) -> Callable[[memoryview], None] | None:
    if progress is None:
        return on_bytes

    def see(data: memoryview) -> None:
        if on_bytes:
            on_bytes(data)
        progress(len(data))

    return see
