"""Finds where every record of a file begins, and reads records by number. The folder's index stores it."""

from __future__ import annotations

import operator
import os
import shlex
from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np

from ...._native import codec
from ....errors import DataError, FormatError, InputError, WriteError
from ..columns import Ints
from ..folder_index import FileKey, await_tick, find_places, note_places
from .frame_stream import STRETCH_BYTES, FrameStream, Verify
from .source import RecordSource, open_source

QUICK_S = 0.05
_COMPARED = 16
_FRAMES_PER_CALL = 1 << 16


def build_index(source: RecordSource, progress: Callable[[int], None] | None = None) -> Ints:
    """Returns the offsets of all records and of the end. Checks the CRC of every length, but not of the data."""
    stream = FrameStream(source, verify="header")
    found: list[Ints] = []

    def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
        starts = np.empty(_FRAMES_PER_CALL, np.int64)
        walk = codec.scan(buf, start, stop, False, starts, stream.offset)
        found.append(starts[: walk[0]].copy())
        return walk

    def feed_file(fd: int, buf: Any, start: int, stop: int, offset: int) -> tuple[int, int, int, int, int, int]:
        starts = np.empty(_FRAMES_PER_CALL, np.int64)
        walk = codec.scan_file(fd, buf, start, stop, offset, False, starts, STRETCH_BYTES)
        found.append(starts[: walk[0]].copy())
        return walk

    done = 0
    while stream.pump(feed, feed_file):
        if progress:
            progress(stream.offset - done)
            done = stream.offset
    return np.concatenate([*found, np.array([stream.offset], np.int64)])


def check_index(source: RecordSource, offsets: Ints) -> None:
    """Raises a FormatError if these are not the offsets of a file that can be read: then the index is at fault. Call it
    before a file is called corrupt."""
    try:
        fresh = build_index(source)
    except DataError:
        return
    if not np.array_equal(fresh, offsets):
        hint = f"`holdfast index {shlex.quote(source.path)}` makes a new one"
        reason = "its index was made from another version of the file, which had the same size and modification time"
        raise FormatError(source.path, None, None, reason, hint)


def load_index(path: str | os.PathLike[str], source: RecordSource) -> Ints | None:
    """Returns the offsets of a file from the index of its folder, or None."""
    for places, is_beside in find_places(path, source.fd):
        offsets: Ints = np.frombuffer(places, "<i8") if len(places) % 8 == 0 else np.zeros(0, np.int64)
        is_whole = len(offsets) and offsets[0] == 0 and offsets[-1] == os.fstat(source.fd).st_size
        if not is_whole or (np.diff(offsets) < codec.OVERHEAD_BYTES).any():
            continue
        if not is_beside or _fit(source, offsets):
            return offsets
    return None


def _fit(source: RecordSource, offsets: Ints) -> bool:
    """Tells whether some records, spread over the file, begin where an index says that was copied with it."""
    head = bytearray(codec.HEADER_BYTES)
    for record in np.unique(np.linspace(0, len(offsets) - 2, _COMPARED).astype(np.int64)) if len(offsets) > 1 else ():
        source.read_at(int(offsets[record]), memoryview(head))
        size = int(offsets[record + 1] - offsets[record]) - codec.OVERHEAD_BYTES
        if codec.find_header(head, 0, len(head)) or int.from_bytes(head[:8], "little") != size:
            return False
    return True


def _number(i: Any) -> int:
    if isinstance(i, (bool, np.bool_)):
        raise TypeError("expected a record's number, got True or False; a mask is a numpy array of them")
    return operator.index(i)


class Records:
    """A file's records by number: `records[5]`, `records[-1]`, `records[2:9]`, `records[[5, 9]]`, `len(records)`.

    The index is read from beside the file or from the user's cache, else built and cached. Holds one descriptor until
    close().
    """

    __module__ = "holdfast"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify: Verify = "all",
        cache: bool = True,
    ) -> None:
        if verify not in ("all", "header"):
            raise ValueError(f"expected verify to be one of all, header, got {verify!r}")
        self.path = os.fspath(path)
        self._verify = verify == "all"
        self._source = open_source(path)
        try:
            if self._source.compression != "none":
                raise FormatError(
                    self.path,
                    None,
                    None,
                    f"records of a {self._source.compression} file cannot be read by number",
                    f"`holdfast merge {self.path} -o PLAIN.tfrecord` decompresses it",
                )
            found = load_index(path, self._source) if cache else None
            self._offsets = self._build(cache) if found is None else found
        except BaseException:
            self._source.close()
            raise

    def _build(self, cache: bool) -> Ints:
        key, begun = FileKey.of(os.fstat(self._source.fd)), monotonic()
        await_tick(key.ctime_ns)
        found = build_index(self._source)
        # Storing it copies the index of the whole folder: a file that is scanned at once is scanned again.
        if cache and monotonic() - begun > QUICK_S and key == FileKey.of(os.fstat(self._source.fd)):
            note_places(self.path, key, found.tobytes())
        return found

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, np.ndarray) and which.dtype == bool:
            if which.shape != (len(self),):
                raise IndexError(f"{self.path}: expected a mask of {len(self):,}, got one of shape {which.shape}")
            which = np.flatnonzero(which)
        if isinstance(which, slice):
            return [self._read(i) for i in range(*which.indices(len(self)))]
        if hasattr(which, "__index__") and not getattr(which, "shape", ()):
            return self._read(_number(which))
        return [self._read(_number(i)) for i in which]

    def _read(self, i: int) -> bytes:
        if not -len(self) <= i < len(self):
            raise IndexError(f"{self.path}: expected a record from 0 to {len(self) - 1:,}, got {i:,}")
        i %= len(self)
        offset = int(self._offsets[i])
        frame = bytearray(int(self._offsets[i + 1]) - offset)
        n = self._source.read_at(offset, memoryview(frame))
        records, _, status, needed = codec.records(frame, 0, n, self._verify, 1)
        if not records:
            from .diagnostics import describe, error_for

            check_index(self._source, self._offsets)
            raise error_for(self._source, i, offset, describe(status, needed, n))
        return records[0]

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def find_records(path: str | os.PathLike[str], progress: Callable[[int], None] | None = None) -> tuple[FileKey, Ints]:
    """Returns the offsets of a file's records, for `holdfast index`, and which version of the file has them."""
    with open_source(path) as source:
        if source.compression != "none":
            raise InputError(
                f"{os.fspath(path)}: a {source.compression} file cannot be read by record number, so it is not indexed"
            )
        key = FileKey.of(os.fstat(source.fd))
        await_tick(key.ctime_ns)
        offsets = build_index(source, progress)
        if key != FileKey.of(os.fstat(source.fd)) or offsets[-1] != key.size:
            raise WriteError(f"{os.fspath(path)} changed while it was being indexed")
        return key, offsets
