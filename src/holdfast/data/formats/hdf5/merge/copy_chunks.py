"""Writes the chunks into the space that the library allocated: each is read, checked, written, and read back.

Threads do that without the library. `states` records what is done and survives a kill: a resumed merge reads such a
chunk back, and copies it again only if its checksum differs.
"""

from __future__ import annotations

import bisect
import mmap
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....._native import codec
from ....._util.atomic import pread_into, pwrite_all
from ....._util.parallel import Stop, run_all
from ..sandbox import Progress
from .copy_plan import BUILT, CRC, FILE, NUMBER, OFFSET, SIZE, SPOOL, CopyPlan
from .input_rows import OpenInputs, check_crc
from .merge_model import NO_CRC, Ints, MergeError, MergeInput, Raw
from .rechunk import Builder

_BATCH_BYTES = 1 << 20  # stays in the CPU cache until it is read back
_DONE = 1 << 32
_FAILING = "reads differently than it was written: the disk or the memory may be failing"


class States:
    """For each job 0, or _DONE plus the crc32c of its bytes, in a memory-mapped file."""

    def __init__(self, path: Path, jobs: int) -> None:
        size = max(jobs, 1) * 8
        if not path.exists() or path.stat().st_size != size:
            path.write_bytes(bytes(size))  # allocated: writing to a mapped hole on a full disk would kill the process
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        self.array: npt.NDArray[np.uint64] = np.frombuffer(self._memory, np.uint64)

    def close(self) -> None:
        del self.array
        with suppress(BufferError):  # a traceback may still hold slices of it
            self._memory.close()


class CopyBatch(NamedTuple):
    """Jobs [first, last) whose bytes are adjacent in their source and in the result."""

    first: int
    last: int
    file: int
    offset: int
    target_offset: int
    size: int


class ChunkCopy:
    """`offsets`: where in the result each job's bytes go. `datasets`: the first job of each, and its path."""

    def __init__(
        self,
        fd: int,
        target: str,
        jobs: Ints,
        offsets: Ints,
        datasets: list[tuple[int, str]],
        states: States,
        sources: list[MergeInput],
    ) -> None:
        self._fd, self._target, self.jobs, self.offsets = fd, target, jobs, offsets
        self._datasets, self._states, self._sources = datasets, states, sources
        self._sizes, self._wanted = (np.ascontiguousarray(jobs[:, one]) for one in (SIZE, CRC))
        self.kept = 0  # jobs that a killed merge had finished
        self._lock = threading.Lock()

    def copy(self, spool_fd: int, threads: int, progress: Progress) -> None:
        """Copies all jobs whose bytes lie in a source or in the spool."""
        batches = iter(list(_batches(self.jobs, self.offsets)))
        stop = Stop()

        def work(_: int) -> None:
            files = OpenInputs(self._sources)
            buffers = [memoryview(mmap.mmap(-1, _BATCH_BYTES)) for _ in range(2)]
            try:
                while True:
                    with self._lock:
                        batch = next(batches, None)
                    if batch is None:
                        return
                    stop.check()
                    self._copy(batch, files, spool_fd, buffers)
                    progress(batch.size)
            finally:
                files.close()

        run_all(work, list(range(threads)), threads, stop)

    def _copy(self, batch: CopyBatch, files: OpenInputs, spool_fd: int, buffers: list[memoryview]) -> None:
        sizes = self.jobs[batch.first : batch.last, SIZE].tolist()
        states = self._states.array[batch.first : batch.last]
        if batch.size > len(buffers[0]):
            buffers[:] = [memoryview(mmap.mmap(-1, batch.size)) for _ in range(2)]
        here, again = buffers[0][: batch.size], buffers[1][: batch.size]
        if states.all() and self._read_crcs(batch, again, sizes) == [int(state) - _DONE for state in states]:
            self._add_kept(len(sizes))
            return
        crcs = self._copy_fast(batch, files, spool_fd, here, again)
        if crcs is not None:
            states[:] = crcs.astype(np.uint64) + np.uint64(_DONE)
        else:
            self._copy_checked(batch, files, spool_fd, here, again)

    def _copy_fast(
        self, batch: CopyBatch, files: OpenInputs, spool_fd: int, here: memoryview, again: memoryview
    ) -> npt.NDArray[np.uint32] | None:
        """Returns None if a checksum differed."""
        fd = spool_fd if batch.file == SPOOL else files.fd(batch.file)
        sizes, expected = self._sizes[batch.first : batch.last].data, self._wanted[batch.first : batch.last].data
        crcs = codec.copy_checked(fd, batch.offset, self._fd, batch.target_offset, sizes, expected, here, again)
        return None if crcs is None else np.frombuffer(crcs, np.uint32)

    def _copy_checked(
        self, batch: CopyBatch, files: OpenInputs, spool_fd: int, here: memoryview, again: memoryview
    ) -> None:
        """Copies again in single steps, to find out what is wrong."""
        sizes = self.jobs[batch.first : batch.last, SIZE].tolist()
        wanted_crcs = self.jobs[batch.first : batch.last, CRC].tolist()
        if batch.file == SPOOL:
            pread_into(spool_fd, here, batch.offset)  # its checksum detects missing bytes
        else:
            files.read_into(batch.file, here, batch.offset)
        crcs = _crcs(here, sizes)
        for number, crc, expected in zip(range(batch.first, batch.last), crcs, wanted_crcs, strict=True):
            if expected not in (NO_CRC, crc):
                self._raise_crc_error(batch, number, crc, files)
        pwrite_all(self._fd, here, batch.target_offset)
        if self._read_crcs(batch, again, sizes) != crcs:
            raise MergeError("write", self._target, _FAILING, batch.target_offset)
        self._states.array[batch.first : batch.last] = np.array(crcs, np.uint64) + np.uint64(_DONE)

    def _raise_crc_error(self, batch: CopyBatch, number: int, crc: int, files: OpenInputs) -> None:
        if batch.file == SPOOL:
            raise MergeError("again", self._target, "a spooled chunk was changed by a power failure")
        dataset = self._datasets[bisect.bisect_right(self._datasets, number, key=lambda one: one[0]) - 1][1]
        check_crc(files.path(batch.file), dataset, int(self.jobs[number, OFFSET]), crc, int(self.jobs[number, CRC]))

    def _read_crcs(self, batch: CopyBatch, view: memoryview, sizes: list[int]) -> list[int]:
        n = pread_into(self._fd, view, batch.target_offset)
        return _crcs(view, sizes) if n == len(view) else []

    def _add_kept(self, jobs: int) -> None:
        with self._lock:
            self.kept += jobs

    def build(self, plan: CopyPlan, first: int, last: int, builder: Builder, progress: Progress) -> None:
        """Writes uncompressed chunks that are built from rows. The jobs [first, last) are the plan's."""
        for low, high in _true_ranges(self.jobs[first:last, FILE] == BUILT):
            if self._states.array[first + low : first + high].all() and self._is_unchanged(first + low, first + high):
                self._add_kept(high - low)
                continue
            make = _flat if plan.flat else _grid
            made = make(plan, self.jobs[first + low : first + high], builder)
            for job, data in zip(range(first + low, first + high), made, strict=True):
                self._put(job, data)
                progress(len(data))

    def _is_unchanged(self, first: int, last: int) -> bool:
        buffer = memoryview(bytearray(int(self.jobs[first:last, SIZE].max())))
        for job in range(first, last):
            size = int(self.jobs[job, SIZE])
            batch = CopyBatch(job, job + 1, BUILT, 0, int(self.offsets[job]), size)
            if self._read_crcs(batch, buffer[:size], [size]) != [int(self._states.array[job]) - _DONE]:
                return False
        return True

    def _put(self, job: int, data: memoryview) -> None:
        crc, place = codec.crc32c(data), int(self.offsets[job])
        pwrite_all(self._fd, data, place)
        again = memoryview(bytearray(len(data)))
        if self._read_crcs(CopyBatch(job, job + 1, BUILT, 0, place, len(data)), again, [len(data)]) != [crc]:
            raise MergeError("write", self._target, _FAILING, place)
        self._states.array[job] = crc + _DONE

    @property
    def crcs(self) -> npt.NDArray[np.uint32]:
        return self._states.array[: len(self.jobs)].astype(np.uint32)

    @property
    def complete(self) -> bool:
        return bool(self._states.array[: len(self.jobs)].all())


def _crcs(view: memoryview, sizes: list[int]) -> list[int]:
    crcs, at = [], 0
    for size in sizes:
        crcs.append(codec.crc32c(view[at : at + size]))
        at += size
    return crcs


def _batches(jobs: Ints, offsets: Ints) -> Iterator[CopyBatch]:
    first = 0
    columns = zip(
        jobs[:, FILE].tolist(), jobs[:, OFFSET].tolist(), jobs[:, SIZE].tolist(), offsets.tolist(), strict=True
    )
    batch: list[int] = []  # file, offset, place, size
    for number, (file, offset, size, place) in enumerate(columns):
        if batch:
            adjacent = file == batch[0] and offset == batch[1] + batch[3] and place == batch[2] + batch[3]
            if adjacent and batch[3] + size <= _BATCH_BYTES:
                batch[3] += size
                continue
            if batch[0] != BUILT:
                yield CopyBatch(first, number, batch[0], batch[1], batch[2], batch[3])
        first, batch = number, [file, offset, place, size]
    if batch and batch[0] != BUILT:
        yield CopyBatch(first, len(jobs), batch[0], batch[1], batch[2], batch[3])


def _true_ranges(chosen: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _bytes(rows: Raw) -> memoryview:
    flat: Any = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    return memoryview(flat)


def _grid(plan: CopyPlan, jobs: Ints, builder: Builder) -> Iterator[memoryview]:
    across = plan.target.like.across
    first, last = int(jobs[0, NUMBER]), int(jobs[-1, NUMBER]) + 1
    for _, chunk in builder.row_chunks(first // across, last // across):
        yield _bytes(chunk)


def _flat(plan: CopyPlan, jobs: Ints, builder: Builder) -> Iterator[memoryview]:
    width = plan.target.like.row_bytes
    for start, size in jobs[:, [NUMBER, SIZE]].tolist():
        rows: list[Any] = list(builder.rows(start // width, (start + size) // width))
        yield _bytes(np.concatenate(rows))
