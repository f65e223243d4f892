"""Verifies the finished file: opens it anew, and compares it with its sources."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ....._native.checksum import combine_all, crc32c_of_file
from ..chunks import chunk_table
from ..filters import describe_filters, filters_of, is_compressed, same_filters
from ..object_walk import reason_of
from .compatibility import MergeSchema
from .copy_plan import CRC, FILE, MASK, NUMBER, OFFSET, SIZE, CopyPlan, placed_runs
from .input_rows import OpenInputs, is_gzip, rows_of, run_ahead
from .merge_model import NO_CRC, Ints, MergeError, Raw
from .metadata_file import Heartbeat, object_runs, read_objects
from .rechunk import Builder

_PIECE_BYTES = 4 << 20
_LIBRARY_ERRORS = (OSError, RuntimeError, ValueError, KeyError)


def find_places(file: h5py.File, plan: CopyPlan, jobs: Ints) -> Ints:
    """Returns where in the file each job's bytes go. MergeError "again": the file is not the planned one."""
    if not len(jobs):
        return np.zeros(0, np.int64)
    dataset = file[plan.target.path]
    if dataset.shape != plan.target.shape:
        raise MergeError("again", plan.target.path, f"has the shape {dataset.shape}, expected {plan.target.shape}")
    if plan.flat:
        base = dataset.id.get_offset()
        if base is None:
            raise MergeError("again", plan.target.path, "it was not allocated")
        places: Ints = jobs[:, NUMBER] + base
        return places
    table = chunk_table(dataset)
    if not np.array_equal(table[:, [0, 2, 3]], jobs[:, [NUMBER, SIZE, MASK]]):
        raise MergeError("again", plan.target.path, "its chunks are not those that were planned")
    return table[:, 1]


def verify_result(
    path: str,
    schema: MergeSchema,
    plans: list[CopyPlan],
    jobs: list[Ints],
    places: list[Ints],
    files: OpenInputs,
    builder_of: Callable[[CopyPlan], Builder],
    pool: ThreadPoolExecutor | None,
    heartbeat: Heartbeat,
) -> None:
    """Compares the file with its sources, through the library on both sides.

    - Chunks that were built are read in full, and so are the same rows of the sources: every value must be equal.
    - Chunks that were copied lie where copy_chunks.py compared their checksums, with the filter mask and filters of
      their source, so they decode to the same values. Those without a recorded checksum are decoded as well, if they
      are compressed: a codec may detect corruption.
    - The first and last row of every run are compared in addition.
    """
    with h5py.File(path, "r") as file:
        for plan, listed, placed_at in zip(plans, jobs, places, strict=True):
            target = plan.target
            if target.path not in file or file[target.path].shape != target.shape:
                raise MergeError(
                    "write", path, f"{target.path!r} is not what was written: expected the shape {target.shape}"
                )
            if plan.method == "objects":
                _same_objects(path, file, plan, files, heartbeat)
                continue
            if not np.array_equal(find_places(file, plan, listed), placed_at):
                raise MergeError(
                    "write", path, f"dataset {target.path!r} has its chunks at other offsets than they were written to"
                )
            check = _ResultCheck(path, file, plan, files, builder_of(plan), pool, heartbeat)
            if plan.method != "view":
                check.filters()
                check.built(listed)
                check.copied(listed, placed_at)
            if not target.splits:
                check.run_edges()
            heartbeat()


def without_crc(jobs: Ints) -> npt.NDArray[np.bool_]:
    """Selects jobs that copy a chunk without a recorded checksum."""
    unknown: npt.NDArray[np.bool_] = (jobs[:, FILE] >= 0) & (jobs[:, CRC] == NO_CRC)
    return unknown


class _ResultCheck:
    """Verifies one dataset."""

    def __init__(
        self,
        path: str,
        file: h5py.File,
        plan: CopyPlan,
        files: OpenInputs,
        builder: Builder,
        pool: ThreadPoolExecutor | None,
        heartbeat: Heartbeat,
    ) -> None:
        self._path, self._plan, self._target, self._files = path, plan, plan.target, files
        self._dataset = file[plan.target.path]
        self._builder, self._pool, self._heartbeat = builder, pool, heartbeat

    def filters(self) -> None:
        found = filters_of(self._dataset.id.get_create_plist())
        if not same_filters(found, self._target.like.filters):
            raise self._error(f"has the filters {found}, expected {self._target.like.filters}")

    def built(self, jobs: Ints) -> None:
        for low, high in self._stretches(jobs, jobs[:, FILE] < 0):
            for first, last in self._pieces(low, high):
                if not self._equal(self._read(first, last), self._read_sources(first, last)):
                    raise self._error(f"has other values than its sources in rows {first:,} to {last:,}")
                self._heartbeat()

    def copied(self, jobs: Ints, places: Ints) -> None:
        """Decodes chunks without a recorded checksum."""
        if not is_compressed(self._target.like.filters):
            return
        unknown = without_crc(jobs)
        if is_gzip(self._target.like):  # in threads, which the library does not allow
            packed = unknown & (jobs[:, MASK] == 0)
            self._decompress_all(jobs[packed].tolist(), places[packed].tolist())
            unknown &= ~packed
        for low, high in self._stretches(jobs, unknown):
            for first, last in self._pieces(low, high):
                try:
                    rows_of(self._dataset, first, last)
                except _LIBRARY_ERRORS:
                    self._raise_corrupt(jobs[unknown], first, last)
                self._heartbeat()

    def _decompress_all(self, jobs: list[list[int]], places: list[int]) -> None:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            work = (partial(self._decompress, fd, job, place) for job, place in zip(jobs, places, strict=True))
            for _ in run_ahead(self._pool, work):
                self._heartbeat()
        finally:
            os.close(fd)

    def _decompress(self, fd: int, job: list[int], place: int) -> None:
        size = self._target.like.chunk_bytes
        try:
            found = len(zlib.decompress(os.pread(fd, job[SIZE], place), bufsize=size))
            reason = "" if found == size else f"expected {size:,} bytes, got {found:,}"
        except zlib.error as error:
            reason = str(error)
        if reason:
            text = f"dataset {self._target.path!r}: a chunk cannot be decoded: {reason}"
            raise MergeError("corrupt", self._files.path(job[FILE]), text, job[OFFSET])

    def _raise_corrupt(self, jobs: Ints, first: int, last: int) -> None:
        """Finds which chunk of these rows cannot be decoded."""
        like = self._target.like
        assert like.chunks is not None
        numbers = jobs[:, NUMBER] // like.across
        for job in jobs[(numbers >= first // like.chunks[0]) & (numbers * like.chunks[0] < last)]:
            row = int(job[NUMBER]) // like.across * like.chunks[0]
            try:
                rows_of(self._dataset, row, min(row + like.chunks[0], self._target.rows))
            except _LIBRARY_ERRORS as error:
                text = f"dataset {self._target.path!r}: a chunk cannot be decoded: {reason_of(error)}"
                raise MergeError("corrupt", self._files.path(int(job[FILE])), text, int(job[OFFSET])) from error

    def run_edges(self) -> None:
        for at, run in placed_runs(self._target):
            source = self._files.hdf5(run.file)[self._target.path]
            for ours, theirs in {(at, run.start), (at + run.rows - 1, run.stop - 1)}:
                here, there = self._read(ours, ours + 1), self._read_source(run.file, source, theirs, theirs + 1)
                if not self._equal(here, there):
                    raise self._error(f"row {ours:,} is not row {theirs:,} of {self._files.path(run.file)}")

    def _stretches(self, jobs: Ints, chosen: Any) -> list[tuple[int, int]]:
        """Returns the rows [low, high) of the result that the chosen jobs hold."""
        like, rows = self._target.like, self._target.rows
        if self._plan.flat:
            width = like.row_bytes
            return [(job[NUMBER] // width, (job[NUMBER] + job[SIZE]) // width) for job in jobs[chosen].tolist()]
        assert like.chunks is not None
        size = like.chunks[0]
        numbers = np.unique(jobs[chosen, NUMBER] // like.across)
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        return [
            (int(one[0]) * size, min((int(one[-1]) + 1) * size, rows)) for one in np.split(numbers, breaks) if len(one)
        ]

    def _pieces(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        like = self._target.like
        size = like.chunks[0] if like.chunks else 1
        step = max(1, _PIECE_BYTES // max(1, like.row_bytes * size)) * size
        return ((at, min(at + step, high)) for at in range(low, high, step))

    def _read(self, first: int, last: int) -> Raw:
        try:
            return rows_of(self._dataset, first, last)
        except _LIBRARY_ERRORS as error:
            filters = describe_filters(self._target.like.filters)
            text = (
                f"rows {first:,} to {last:,} were written (filters: {filters}) and cannot be read: {reason_of(error)}"
            )
            raise self._error(text) from error

    def _read_sources(self, first: int, last: int) -> Raw:
        if self._target.splits:
            return np.concatenate(list(self._builder.rows(first, last)))
        found = []
        for at, run in placed_runs(self._target):
            low, high = max(first - at, 0), min(last - at, run.rows)
            if low < high:
                source = self._files.hdf5(run.file)[self._target.path]
                found.append(self._read_source(run.file, source, run.start + low, run.start + high))
        return np.concatenate(found)

    def _read_source(self, file: int, source: h5py.Dataset, first: int, last: int) -> Raw:
        try:
            return rows_of(source, first, last)
        except _LIBRARY_ERRORS as error:
            text = f"dataset {self._target.path!r}: rows {first:,} to {last:,} cannot be read: {reason_of(error)}"
            raise MergeError("corrupt", self._files.path(file), text) from error

    def _equal(self, ours: Raw, theirs: Raw) -> bool:
        return ours.tobytes() == theirs.tobytes() or self._values(ours) == self._values(theirs)

    def _values(self, rows: Raw) -> str:
        """Returns values without padding: between fields, or after a long double, it is arbitrary in fill values."""
        return repr(np.frombuffer(rows.tobytes(), h5py.h5t.decode(self._target.like.type).dtype).tolist())

    def _error(self, text: str) -> MergeError:
        return MergeError("write", self._path, f"dataset {self._target.path!r} {text}; nothing was kept")


def _same_objects(path: str, file: h5py.File, plan: CopyPlan, files: OpenInputs, heartbeat: Heartbeat) -> None:
    for at, n, number, row in object_runs(plan.target):
        ours, theirs = (
            read_objects(file, plan.target.path, at, n),
            read_objects(files.hdf5(number), plan.target.path, row, n),
        )
        if not _equal(ours, theirs):
            where = f"rows from {at:,} on are not those from {row:,} on of {files.path(number)}"
            text = f"dataset {plan.target.path!r}: {where}"
            raise MergeError("write", path, text)
        heartbeat()


def _equal(ours: Any, theirs: Any) -> bool:
    if ours.dtype.names:
        return all(_equal(ours[name], theirs[name]) for name in ours.dtype.names)
    if not ours.dtype.hasobject:
        return bool(ours.tobytes() == theirs.tobytes())
    pairs = zip(ours.reshape(-1), theirs.reshape(-1), strict=True)
    return all(_plain(one) == _plain(two) for one, two in pairs)


def _plain(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) else value


def file_crc(fd: int, places: Ints, sizes: Ints, crcs: Any) -> int:
    """Returns the crc32c of the file: the bytes between the chunks are read, the chunks' own checksums are known."""
    order = np.argsort(places, kind="stable")
    at, parts, lengths = 0, [], []
    for place, size, crc in zip(places[order].tolist(), sizes[order].tolist(), crcs[order].tolist(), strict=True):
        if place < at:
            raise MergeError("write", "", "two chunks lie on the same place", place)
        if place > at:
            parts.append(_crc(fd, at, place - at))
            lengths.append(place - at)
        parts.append(crc)
        lengths.append(size)
        at = place + size
    rest = os.fstat(fd).st_size - at
    return combine_all([*parts, _crc(fd, at, rest)], [*lengths, rest])


def _crc(fd: int, offset: int, size: int) -> int:
    crc, n = crc32c_of_file(fd, offset, size)
    if n < size:
        raise MergeError("write", "", "it is shorter than it was written", offset + n)
    return crc
