"""Indexes where every record of a file begins: built once, stored in a small file, discarded when stale.

An index file is a JSON line (what it was made from), then the offsets as little-endian int64, one more than there are
records. It is stale when the data file's size or mtime differ (in the user's cache: also its inode or ctime), or when a
sample of its frames is not where it should be.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ...._native import codec
from ...._util.atomic import cache_key, write_atomically
from ....errors import DataError, FormatError, InputError, WriteError
from ..columns import Ints
from .frame_stream import STRETCH_BYTES, FrameStream, Verify
from .source import RecordSource, open_source

Place = Literal["beside", "cache"]

RECENT_BYTES = 32 << 20  # of indexes that stay in memory after their files are closed: four million records
RECENT_MAX = 2048  # indexes: each takes two kilobytes besides its offsets
_MAGIC = "holdfast index 1"
_SAMPLES = 16
_FRAMES_PER_CALL = 1 << 16


def index_path(path: str | os.PathLike[str], place: Place) -> Path:
    data = Path(path)
    if place == "beside":
        return data.with_name(f".{data.name}.index")
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "holdfast" / "index" / hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:32]


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


def save_index(
    path: str | os.PathLike[str], source: RecordSource, offsets: Ints, place: Place, stamp: dict[str, int]
) -> Path:
    """Stores an index. `stamp` was taken before it was built: a file that has changed since is an error."""
    if stamp != cache_key(source.fd) or offsets[-1] != stamp["size"]:
        raise WriteError(f"{os.fspath(path)} changed while it was being indexed")
    target = index_path(path, place)
    if place == "cache":
        target.parent.mkdir(parents=True, exist_ok=True)
    head = {"kind": _MAGIC, **stamp, "records": len(offsets) - 1, "sample": _sample(source, offsets)}
    body = offsets.astype("<i8").tobytes()
    line = json.dumps({**head, "crc32c": codec.crc32c(body)}).encode() + b"\n"
    write_atomically(target, line + body)
    return target


def load_index(path: str | os.PathLike[str], source: RecordSource) -> Ints | None:
    """Returns a fresh index from memory, from beside the file or from the user's cache, or None."""
    kept = _recent.find(source)
    if kept is not None and _sample(source, kept.offsets) == kept.sample:
        return kept.offsets
    for place in ("beside", "cache"):
        try:
            content = index_path(path, place).read_bytes()
            found = _parse(content, source, place)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # absent, unreadable or of another program: it can be built again
        if found is not None:
            _recent.add(source, found)
            return found.offsets
    return None


class _Index(NamedTuple):
    offsets: Ints
    sample: list[str]  # CRCs of some frames, see _sample


class _Recent:
    """Recently used indexes, in memory: files are closed and reopened whenever another needs the descriptor."""

    def __init__(self) -> None:
        # least recently used first; each change is atomic, so there is no lock
        self._indexes: dict[tuple[int, ...], _Index] = {}

    def find(self, source: RecordSource) -> _Index | None:
        key = self._key(source)
        index = self._indexes.pop(key, None)
        if index is not None:
            self._indexes[key] = index
        return index

    def add(self, source: RecordSource, index: _Index) -> None:
        self._indexes[self._key(source)] = index
        left = sum(one.offsets.nbytes for one in list(self._indexes.values()))
        for key in list(self._indexes):
            if left <= RECENT_BYTES and len(self._indexes) <= RECENT_MAX:
                break
            gone = self._indexes.pop(key, None)
            left -= 0 if gone is None else gone.offsets.nbytes

    def _key(self, source: RecordSource) -> tuple[int, ...]:
        info = os.fstat(source.fd)
        return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


_recent = _Recent()


def _stamp(source: RecordSource, place: Place) -> dict[str, int]:
    """Returns what an index must have been made from. One beside its file is copied with it: both are as new as their
    mtime says, and the sample of frames tells another version of the same size and mtime."""
    key = cache_key(source.fd)
    return key if place == "cache" else {name: key[name] for name in ("size", "mtime_ns")}


def _parse(content: bytes, source: RecordSource, place: Place) -> _Index | None:
    line, _, body = content.partition(b"\n")
    head = json.loads(line)
    offsets: Ints = np.frombuffer(body, "<i8").astype(np.int64, copy=False)
    stamp = _stamp(source, place)
    if head["kind"] != _MAGIC or any(head[key] != value for key, value in stamp.items()):
        return None
    if len(offsets) != head["records"] + 1 or codec.crc32c(body) != head["crc32c"]:
        return None
    if offsets[0] != 0 or offsets[-1] != stamp["size"] or (np.diff(offsets) < codec.OVERHEAD_BYTES).any():
        return None
    return _Index(offsets, head["sample"]) if _sample(source, offsets) == head["sample"] else None


def _sample(source: RecordSource, offsets: Ints) -> list[str]:
    """Returns both CRCs of some frames, spread over the file: reveals a file rewritten in place within one mtime
    tick."""
    count = len(offsets) - 1
    crcs = []
    for i in sorted({round(k * (count - 1) / max(_SAMPLES - 1, 1)) for k in range(_SAMPLES)} if count else set()):
        crc = bytearray(8)
        view = memoryview(crc)
        source.read_at(int(offsets[i]) + 8, view[:4])
        source.read_at(int(offsets[i + 1]) - 4, view[4:])
        crcs.append(crc.hex())
    return crcs


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
        self._begin(path, open_source(path), verify, cache)

    @classmethod
    def of_source(cls, path: str | os.PathLike[str], source: RecordSource, *, verify: Verify, cache: bool) -> Records:
        """Returns the records of a file that is open already, and takes it over."""
        records = cls.__new__(cls)
        records._begin(path, source, verify, cache)
        return records

    def _begin(self, path: str | os.PathLike[str], source: RecordSource, verify: Verify, cache: bool) -> None:
        self.path = os.fspath(path)
        self._verify = verify == "all"
        self._source = source
        try:
            if verify not in ("all", "header"):
                raise ValueError(f"expected verify to be one of all, header, got {verify!r}")
            if self._source.compression != "none":
                raise FormatError(
                    self.path,
                    None,
                    None,
                    f"records of a {self._source.compression} file cannot be read by number",
                    f"`holdfast merge {self.path} -o PLAIN.tfrecord` decompresses it",
                )
            self._offsets = self._index(cache)
        except BaseException:
            self._source.close()
            raise

    def _index(self, cache: bool) -> Ints:
        found = load_index(self.path, self._source) if cache else None
        if found is None:
            stamp = cache_key(self._source.fd)
            found = build_index(self._source)
            if cache:
                try:
                    save_index(self.path, self._source, found, "cache", stamp)
                    _recent.add(self._source, _Index(found, _sample(self._source, found)))
                except (OSError, WriteError):
                    pass  # no home, a full disk, another process doing the same: the cache only saves time
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


def make_index(
    path: str | os.PathLike[str], place: Place = "beside", progress: Callable[[int], None] | None = None
) -> tuple[Path, int]:
    """Builds and stores a file's index, for `holdfast index`. Returns its path and the number of records."""
    with open_source(path) as source:
        if source.compression != "none":
            raise InputError(
                f"{os.fspath(path)}: a {source.compression} file cannot be read by record number, so it is not indexed"
            )
        stamp = cache_key(source.fd)
        offsets = build_index(source, progress)
        return save_index(path, source, offsets, place, stamp), len(offsets) - 1
