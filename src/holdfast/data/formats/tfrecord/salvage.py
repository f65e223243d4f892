"""Recovers the intact records of a corrupt file: into a new file (`salvage_file`), or as a shard without writing.

A shard of a corrupt file reads the repaired view: its intact frames, one after the other. Offsets in the view are those
of an intact file, so the shard is read like any other. `RepairMap` maps them to the corrupt file.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...._native import codec
from ...._util.atomic import FileStamp, check_not_input
from ...._util.text import counted, format_bytes
from ....errors import CorruptError, DataError, UnfinishedError
from ....procfs.locks import writers_of
from ..base import Problem
from ..columns import Ints
from ..parts_manifest import check_not_only_copy
from ..sections import Section
from .diagnostics import error_for
from .frame_stream import Feed, FrameBatches, FrameStream, Progress, Verify
from .manifest import renew_in_manifest
from .recovery import _masked
from .shard import _Framed
from .source import InflateSource, RecordSource, open_source, spool
from .verify import explain
from .writer import PackWith, TFRecordWriter

_FRAMES_PER_CALL = 1 << 16
_HEADER = codec.HEADER_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class RepairMap:
    """Where the intact frames of a corrupt file are. Small, without an open file, and picklable.

    offsets:   of all records and of the end, in the repaired view
    pieces:    where each sequence of intact frames begins in the repaired view
    places:    where each of them begins in the corrupt file, or in its decompressed data
    headers:   corrected headers, with their offsets in the repaired view
    problems:  what was left out, and why
    packed:    whether the file is compressed
    """

    offsets: Ints
    pieces: Ints
    places: Ints
    headers: tuple[tuple[int, bytes], ...]
    problems: tuple[Problem, ...]
    packed: bool

    def open(self, path: str | os.PathLike[str], *, verify: Verify = "all") -> RepairedShard:
        """Opens the file again without another search. It must be the file that was searched."""
        return RepairedShard(path, self, verify=verify)

    def place(self, offset: int) -> int:
        """Returns where a byte of the repaired view is in the corrupt file."""
        piece = max(int(np.searchsorted(self.pieces, offset, "right")) - 1, 0)
        return int(self.places[piece] + offset - self.pieces[piece])


def build_repair_map(
    path: str | os.PathLike[str], *, salvage: bool = False, maximum: int = 1000, keep_doubtful: bool = False
) -> RepairMap:
    """Scans a whole file with all CRCs, and after every corrupt record searches for the next one.

    salvage:       keep a record if only its header is corrupt
    most:          how many corrupt places to search behind; after them the rest of the file is left out
    keep_doubtful: keep what might be data of a corrupt record

    A file without any intact record raises the error of reading it. So does one that a live process is writing: it is
    not corrupt, and the next rank would read another version of it.
    """
    with open_source(path) as source:
        packed = isinstance(source, InflateSource)
        decompressed, broken = spool(source) if isinstance(source, InflateSource) else (source, None)
        with decompressed:
            # Corrupt compressed data decompress to copies of earlier data, with valid frames: ignore all that follows.
            repairer = _Repairer(decompressed, salvage, 0 if broken else maximum, keep_doubtful)
            starts = repairer.starts()
            problems = _with_packing(repairer.problems, broken, repairer.offset, len(starts))
            if problems:
                _check_repairable(decompressed, problems, len(starts))
            return _layout(starts, repairer, tuple(problems), packed)


class _Repairer(FrameStream):
    """Scans all frames and records the gaps between the intact ones."""

    def __init__(self, source: RecordSource, salvage: bool, maximum: int, keep_doubtful: bool) -> None:
        super().__init__(source, on_corrupt="salvage", keep_doubtful=keep_doubtful)
        self.gaps: list[int] = []  # where each begins
        self.repaired: list[tuple[int, bytes]] = []
        self._keep_repaired, self._max = salvage, maximum

    def starts(self) -> Ints:
        """Returns the offsets of all intact frames."""
        parts: list[Ints] = []

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            starts = np.empty(_FRAMES_PER_CALL, np.int64)
            result = codec.scan(buf, start, stop, True, starts, self.offset)
            parts.append(starts[: result[0]].copy())
            return result

        while self.pump(feed):
            pass
        found = np.concatenate([np.zeros(0, np.int64), *parts, np.array([at for at, _ in self.repaired], np.int64)])
        found.sort()
        return found

    def _salvage(self, feed: Feed, reason: str) -> None:
        at = self.offset
        if len(self.problems) >= self._max:
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
                reason += "; its data are intact, and on_corrupt='salvage' gets them back"
                found = found._replace(records_lost=1)
            self._leave_out(found, reason)
        self.window.jump(found.resume)


def _header(length: int) -> bytes:
    right = length.to_bytes(8, "little")
    return right + _masked(codec.crc32c(right))


def _with_packing(problems: Sequence[Problem], broken: CorruptError | None, end: int, records: int) -> list[Problem]:
    """Reports the error of the compressed data instead of what it did to a record."""
    if broken is None:
        return list(problems)
    return [problem._replace(reason=broken.reason) for problem in problems] or [Problem(end, records, broken.reason, 1)]


def _check_repairable(source: RecordSource, problems: Sequence[Problem], records: int) -> None:
    writers = writers_of(source.path)
    if writers:
        who = f"still being written by process {writers[0].pid} ({writers[0].command})"
        first = problems[-1]
        raise UnfinishedError(source.path, first.record, first.offset, f"{first.reason}; {who}", "Wait for it to end")
    if not records:
        error = error_for(source, 0, problems[0].offset or 0, problems[0].reason)
        if isinstance(error, UnfinishedError):  # its writer is gone
            error = CorruptError(*error.args)
        raise error


def _layout(starts: Ints, repairer: _Repairer, problems: tuple[Problem, ...], packed: bool) -> RepairMap:
    size = repairer.source.size()
    bounds = np.sort(np.concatenate([starts, np.array([*repairer.gaps, size], np.int64)]))
    stops = bounds[np.searchsorted(bounds, starts, "right")]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - starts)])
    begins = np.flatnonzero(np.concatenate([np.ones(1, np.bool_), starts[1:] != stops[:-1]])[: len(starts)])
    headers = tuple((int(offsets[np.searchsorted(starts, at)]), header) for at, header in repairer.repaired)
    return RepairMap(offsets, offsets[begins], starts[begins], headers, problems, packed)


class RepairedSource(RecordSource):
    """The bytes of the repaired view, through a descriptor of its own."""

    def __init__(self, source: RecordSource, layout: RepairMap) -> None:
        super().__init__(source.path, os.dup(source.fd))
        self._size = int(layout.offsets[-1])
        self._pieces, self._places = layout.pieces.tolist(), layout.places.tolist()
        self._headers = sorted(layout.headers)
        self._header_places = [at for at, _ in self._headers]

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, view: memoryview) -> int:
        got, expected = 0, min(len(view), max(self._size - offset, 0))
        while got < expected:
            at = offset + got
            piece = bisect_right(self._pieces, at) - 1
            end = self._pieces[piece + 1] if piece + 1 < len(self._pieces) else self._size
            n = min(expected - got, end - at)
            read = super().read_at(self._places[piece] + at - self._pieces[piece], view[got : got + n])
            got += read
            if read < n:
                break
        self._correct_headers(offset, view[:got])
        return got

    def _correct_headers(self, offset: int, view: memoryview) -> None:
        """Replaces corrupt headers by the corrected ones."""
        first = bisect_right(self._header_places, offset - _HEADER)
        for at, header in self._headers[first:]:
            if at >= offset + len(view):
                break
            begin, end = max(at, offset), min(at + _HEADER, offset + len(view))
            view[begin - offset : end - offset] = header[begin - at : end - at]


class RepairedShard(_Framed):
    """The intact records of a corrupt file. Every read of a compressed one decompresses it to an unnamed temporary
    file."""

    def __init__(self, path: str | os.PathLike[str], layout: RepairMap, *, verify: Verify = "all") -> None:
        super().__init__(path, verify)
        self.layout = layout
        self.seekable = not layout.packed
        self._offsets = layout.offsets
        self._closed = False
        self._source = None if layout.packed else self._open()

    def _open(self) -> RecordSource:
        with open_source(self.path) as source:
            if not isinstance(source, InflateSource):
                return RepairedSource(source, self.layout)
            decompressed, _ = spool(source)
            with decompressed:
                return RepairedSource(decompressed, self.layout)

    @contextmanager
    def _opened(self) -> Iterator[RecordSource]:
        if self._closed:
            raise ValueError(f"{self.path}: the shard is closed")
        if self._source is not None:
            yield self._source
            return
        with self._open() as source:
            yield source

    def stamp(self) -> FileStamp | None:
        return None if self._source is None or self._closed else FileStamp.of(self._source.fd)

    def _mismatch_error(self, *about: Any) -> DataError:
        return self._with_real_offset(super()._mismatch_error(*about))

    def _corrupt_error(self, *about: Any) -> DataError:
        return self._with_real_offset(super()._corrupt_error(*about))

    def _with_real_offset(self, error: DataError) -> DataError:
        """Returns the error with its offset in the corrupt file instead of the repaired view."""
        place = None if error.offset is None else self.layout.place(error.offset)
        return type(error)(error.path, error.record, place, error.reason, error.hint)

    def close(self) -> None:
        self._closed = True
        if self._source is not None:
            self._source.close()


def open_damaged(
    path: str | os.PathLike[str],
    *,
    verify: Verify = "all",
    salvage: bool = False,
    maximum: int = 1000,
    keep_doubtful: bool = False,
) -> RepairedShard:
    """Opens the intact samples of a corrupt file. `salvage`, `maximum` and `keep_doubtful` are those of
    build_repair_map(), whose errors this raises."""
    repair_map = build_repair_map(path, salvage=salvage, maximum=maximum, keep_doubtful=keep_doubtful)
    return RepairedShard(path, repair_map, verify=verify)


class SalvagedRecords(NamedTuple):
    records_kept: int
    records_lost_at_least: int
    bytes_lost: int
    records_doubtful: int  # might be data of a corrupt record; left out unless keep_doubtful
    problems: list[Problem]

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be kept, and so no file was written."""
        return bool(self.problems) and not self.records_kept

    def summary(self, out: str) -> str:
        """Describes the result in a line; `out`: the file that was written."""
        kept = counted(self.records_kept, "record")
        lost = f"{counted(self.records_lost_at_least, 'record')} ({format_bytes(self.bytes_lost)})"
        if not self.problems and not self.records_kept:
            return f"nothing was corrupt, but the file has no records: {out} is empty too"
        if not self.problems:
            return f"nothing was corrupt: kept all {kept} in {out}"
        if not self.records_kept:
            return f"nothing could be kept, {out} was not written; lost at least {lost}"
        if not self.records_lost_at_least and not self.bytes_lost:
            return f"kept all {kept} in {out}"
        return f"kept {kept} in {out}; lost at least {lost}"

    def sections(self) -> tuple[Section, ...]:
        return ()

    def remarks(self, keep_doubtful: bool) -> Iterator[str]:
        if self.records_doubtful:
            left_out = "left out; if no record of this file contains TFRecords, use --keep-doubtful"
            records = counted(self.records_doubtful, "record")
            yield f"{records} may be data of corrupt records: {'kept' if keep_doubtful else left_out}"

    @staticmethod
    def total(reports: Sequence[SalvagedRecords]) -> str:
        lost = sum(one.records_lost_at_least for one in reports)
        return f"{counted(sum(one.records_kept for one in reports), 'record')} kept, at least {lost:,} lost"

    def as_dict(self) -> dict[str, object]:
        return {
            "records_kept": self.records_kept,
            "records_lost_at_least": self.records_lost_at_least,
            "bytes_lost": self.bytes_lost,
            "records_doubtful": self.records_doubtful,
            "problems": [problem.as_dict("offset", "record", "reason") for problem in self.problems],
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
) -> SalvagedRecords:
    """Writes every intact record of `damaged` to `out`, in order. The corrupt file is never changed.

    keep_empty      False: if no record could be recovered, `out` is not written
    keep_doubtful   True: also keep what might be data of a corrupt record; right if the records contain no TFRecords
    """
    check_not_input([damaged], [out])
    if overwrite:
        check_not_only_copy([damaged], [out])
    writer = TFRecordWriter(out, compression=compression, overwrite=overwrite)
    try:

        def put(frames: memoryview, starts: Ints) -> None:
            writer.write_frames(frames, len(starts))

        with FrameBatches(damaged, on_corrupt="salvage", keep_doubtful=keep_doubtful, progress=progress) as batches:
            while batches.next(put) is not None:
                pass
            explain(batches.stream)  # raises if the file is not a TFRecord
            problems = batches.problems
        if writer.records or keep_empty or not problems:
            renew_in_manifest(writer.close())
    finally:
        writer.discard()
    lost = sum(problem.records_lost for problem in problems)
    doubtful = sum(problem.records_doubtful for problem in problems)
    return SalvagedRecords(writer.records, lost, sum(problem.bytes_lost for problem in problems), doubtful, problems)
