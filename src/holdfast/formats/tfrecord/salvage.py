"""A damaged file as a shard of its good records: what is damaged is left out, and nothing is written.

The good frames, one behind the other, are a file of their own that exists only here: `MendedSource` reads it. Offsets
in it are those of a whole file, so a shard of it is read as any other.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..._native import codec
from ...errors import CorruptError, DataError, UnfinishedError, WriteError, cannot_open
from ...procfs.locks import writers_of
from ..columns import Ints
from .diagnostics import Problem, error_for
from .frame_stream import Feed, FrameStream, Progress, Runs, Verify
from .manifest import renew_in_manifest
from .recovery import _masked
from .shard import _Framed
from .source import InflateSource, RecordSource, open_source, spool
from .verify import explain
from .writer import PackWith, TFRecordWriter

_RUN = 1 << 16  # frames a call
_HEADER = codec.HEADER_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class RepairMap:
    """Where the good frames of a file are. Small, and holds no file: it can be kept, and pickled.

    offsets:   of all records, and of the end, in the mended file
    pieces:    runs of good frames: where each begins in the mended file
    places:    the same, in the damaged one (in what it unpacks to, if it is packed)
    headers:   right ones, by where they belong in the mended file
    problems:  what was left out, and why
    """

    offsets: Ints
    pieces: Ints
    places: Ints
    headers: tuple[tuple[int, bytes], ...]
    problems: tuple[Problem, ...]
    packed: bool

    def place(self, offset: int) -> int:
        """Where a byte of the mended file is in the damaged one."""
        piece = max(int(np.searchsorted(self.pieces, offset, "right")) - 1, 0)
        return int(self.places[piece] + offset - self.pieces[piece])


def mend(
    path: str | os.PathLike[str], *, salvage: bool = False, most: int = 1000, keep_doubtful: bool = False
) -> RepairMap:
    """Goes through all of a file, its data's CRCs too, and behind every damage on to the next record.

    salvage:  a record whose header alone is damaged comes back
    most:     damages that are looked behind; the rest of the file is left out then
    keep_doubtful: what might be data of a damaged record is kept

    A file without any good record is the error that reading it is. So is one that a live process is writing: it is not
    damaged, and will be another one when the next rank looks at it.
    """
    with open_source(path) as source:
        packed = isinstance(source, InflateSource)
        unpacked, broken = spool(source) if isinstance(source, InflateSource) else (source, None)
        with unpacked:
            # Damaged packed data unpack to copies of what came before, good frames among them: nothing behind counts.
            mender = _Repairer(unpacked, salvage, 0 if broken else most, keep_doubtful)
            starts = mender.starts()
            problems = _with_packing(mender.problems, broken, mender.offset, len(starts))
            if problems:
                _refuse(unpacked, problems, len(starts))
            return _layout(starts, mender, tuple(problems), packed)


class _Repairer(FrameStream):
    """A walk over all frames that notes what it goes around."""

    def __init__(self, source: RecordSource, salvage: bool, most: int, keep_doubtful: bool) -> None:
        super().__init__(source, on_corrupt="salvage", keep_doubtful=keep_doubtful)
        self.gaps: list[int] = []  # where each begins
        self.repaired: list[tuple[int, bytes]] = []
        self._keep_repaired, self._most = salvage, most

    def starts(self) -> Ints:
        """The offsets of all good frames."""
        runs: list[Ints] = []

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            starts = np.empty(_RUN, np.int64)
            walk = codec.scan(buf, start, stop, True, starts, self.offset)
            runs.append(starts[: walk[0]].copy())
            return walk

        while self.pump(feed):
            pass
        found = np.concatenate([np.zeros(0, np.int64), *runs, np.array([at for at, _ in self.repaired], np.int64)])
        found.sort()
        return found

    def _salvage(self, feed: Feed, reason: str) -> None:
        at = self.offset
        if len(self.problems) >= self._most:
            self.gaps.append(at)
            self._give_up(reason)
            return
        found = self._recover()
        if found.repaired is not None and self._keep_repaired:
            self.repaired.append((at, _header(found.repaired[1] - found.repaired[0])))
            self.record += 1
        else:
            self.gaps.append(at)
            if found.repaired is not None:
                reason += "; its data are whole, and on_corrupt='salvage' gets them back"
                found = found._replace(records_lost=1)
            self._leave_out(found, reason)
        self.window.jump(found.resume)


def _header(length: int) -> bytes:
    right = length.to_bytes(8, "little")
    return right + _masked(codec.crc32c(right))


def _with_packing(problems: Sequence[Problem], broken: CorruptError | None, end: int, records: int) -> list[Problem]:
    """Where packed data break off, what that does to a record is no damage of its own."""
    if broken is None:
        return list(problems)
    return [problem._replace(reason=broken.reason) for problem in problems] or [Problem(end, records, broken.reason, 1)]


def _refuse(source: RecordSource, problems: Sequence[Problem], records: int) -> None:
    writers = writers_of(source.path)
    if writers:
        who = f"still being written by process {writers[0].pid} ({writers[0].command})"
        first = problems[-1]
        raise UnfinishedError(source.path, first.record, first.offset, f"{first.reason}; {who}", "Wait for it to end")
    if not records:
        error = error_for(source, 0, problems[0].offset, problems[0].reason)
        if isinstance(error, UnfinishedError):  # by a writer that is gone
            error = CorruptError(*error.args)
        raise error


def _layout(starts: Ints, mender: _Repairer, problems: tuple[Problem, ...], packed: bool) -> RepairMap:
    size = mender.source.size()
    bounds = np.sort(np.concatenate([starts, np.array([*mender.gaps, size], np.int64)]))
    stops = bounds[np.searchsorted(bounds, starts, "right")]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - starts)])
    begins = np.flatnonzero(np.concatenate([np.ones(1, np.bool_), starts[1:] != stops[:-1]])[: len(starts)])
    headers = tuple((int(offsets[np.searchsorted(starts, at)]), header) for at, header in mender.repaired)
    return RepairMap(offsets, offsets[begins], starts[begins], headers, problems, packed)


class RepairedSource(RecordSource):
    """The mended file's bytes, through a descriptor of its own."""

    def __init__(self, source: RecordSource, layout: RepairMap) -> None:
        super().__init__(source.path, os.dup(source.fd))
        self._size = int(layout.offsets[-1])
        self._pieces, self._places = layout.pieces.tolist(), layout.places.tolist()
        self._headers = sorted(layout.headers)
        self._header_places = [at for at, _ in self._headers]

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, view: memoryview) -> int:
        got, wanted = 0, min(len(view), max(self._size - offset, 0))
        while got < wanted:
            at = offset + got
            piece = bisect_right(self._pieces, at) - 1
            end = self._pieces[piece + 1] if piece + 1 < len(self._pieces) else self._size
            n = min(wanted - got, end - at)
            read = super().read_at(self._places[piece] + at - self._pieces[piece], view[got : got + n])
            got += read
            if read < n:
                break
        self._put_right(offset, view[:got])
        return got

    def _put_right(self, offset: int, view: memoryview) -> None:
        """Lays the right headers over the damaged ones."""
        first = bisect_right(self._header_places, offset - _HEADER)
        for at, header in self._headers[first:]:
            if at >= offset + len(view):
                break
            begin, end = max(at, offset), min(at + _HEADER, offset + len(view))
            view[begin - offset : end - offset] = header[begin - at : end - at]


class RepairedShard(_Framed):
    """The good records of a damaged file. A packed one is unpacked into a nameless temporary file for every read."""

    def __init__(self, path: str | os.PathLike[str], layout: RepairMap, *, verify: Verify = "all") -> None:
        super().__init__(path, verify)
        self.layout = layout
        self.seekable = not layout.packed
        self._offsets = layout.offsets
        self._closed = False
        self._kept = None if layout.packed else self._open()

    def _open(self) -> RecordSource:
        with open_source(self.path) as source:
            if not isinstance(source, InflateSource):
                return RepairedSource(source, self.layout)
            unpacked, _ = spool(source)
            with unpacked:
                return RepairedSource(unpacked, self.layout)

    @contextmanager
    def _opened(self) -> Iterator[RecordSource]:
        if self._closed:
            raise ValueError(f"{self.path}: it was closed")
        if self._kept is not None:
            yield self._kept
            return
        with self._open() as source:
            yield source

    def _unfit(self, *about: Any) -> DataError:
        return self._placed(super()._unfit(*about))

    def _broken(self, *about: Any) -> DataError:
        return self._placed(super()._broken(*about))

    def _placed(self, error: DataError) -> DataError:
        """Errors name the place in the file that is there."""
        place = None if error.offset is None else self.layout.place(error.offset)
        return type(error)(error.path, error.record, place, error.reason, error.hint)

    def close(self) -> None:
        self._closed = True
        if self._kept is not None:
            self._kept.close()


# Everything that can be got out of a damaged file, into a new one. The damaged file is never touched.


class Salvaged(NamedTuple):
    records_kept: int
    records_lost_at_least: int
    bytes_lost: int
    records_doubtful: int  # that might be data of a damaged record: left out, unless they were to be kept
    problems: list[Problem]

    def as_dict(self) -> dict[str, object]:
        problems = [{"offset": p.offset, "record": p.record, "reason": p.reason} for p in self.problems]
        return {
            "records_kept": self.records_kept,
            "records_lost_at_least": self.records_lost_at_least,
            "bytes_lost": self.bytes_lost,
            "records_doubtful": self.records_doubtful,
            "problems": problems,
        }


def salvage_file(
    damaged: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    compression: PackWith = "auto",
    overwrite: bool = False,
    keep_empty: bool = True,
    keep_doubtful: bool = False,
    progress: Progress | None = None,
) -> Salvaged:
    """Writes every intact record of `damaged` to `out`, in order. Nothing is invented.

    keep_empty      False: where nothing at all could be kept of a damaged file, `out` is not written
    keep_doubtful   True: also what might be data of a damaged record; right for files whose records hold no TFRecords
    """
    _refuse_same(damaged, out)
    writer = TFRecordWriter(out, compression=compression, overwrite=overwrite)
    try:

        def put(frames: memoryview, starts: Ints) -> None:
            writer.write_frames(frames, len(starts))

        with Runs(damaged, on_corrupt="salvage", keep_doubtful=keep_doubtful, progress=progress) as runs:
            while runs.next(put) is not None:
                pass
            explain(runs.stream)  # says "not a TFRecord" of what is none
            problems = runs.problems
        if writer.records or keep_empty or not problems:
            renew_in_manifest(writer.close())
    finally:
        writer.discard()
    lost = sum(problem.records_lost for problem in problems)
    doubtful = sum(problem.records_doubtful for problem in problems)
    return Salvaged(writer.records, lost, sum(problem.bytes_lost for problem in problems), doubtful, problems)


def _refuse_same(damaged: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    try:
        same = os.path.exists(out) and os.path.samefile(damaged, out)
    except OSError as error:
        raise cannot_open(os.fspath(damaged), error) from error
    if same:
        raise WriteError(f"{os.fspath(out)}: salvage never writes over the damaged file; name another one")
