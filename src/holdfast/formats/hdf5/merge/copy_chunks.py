"""Chunks go into the room that was left for them: read, checked, written, and read again.

Done by some threads, past the library. What is done is noted in `states`, which outlives a kill: when the merge goes on
such a chunk is read again from the result, and copied anew only if it is not what was noted.
"""

from __future__ import annotations

import bisect
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...._native import codec
from ...._util.atomic import pwrite_all
from ...._util.parallel import Stop, run_all
from .chunk_filters import OpenInputs, check_crc
from .copy_plan import BUILT, CRC, FILE, NUMBER, OFFSET, SIZE, SPOOL, CopyPlan
from .model import NO_CRC, Ints, MergeError, MergeInput, Raw
from .rechunk import Builder

_BATCH_BYTES = 1 << 20  # it stays in the processor's cache until it is read again
_DONE = 1 << 32
_FAILING = "reads otherwise than it was written: is the disk, or the memory, failing?"

Told = Callable[[int], None]


class States:
    """For each job 0, or that it is done and the crc32c of its bytes. A file mapped to memory."""

    def __init__(self, path: Path, jobs: int) -> None:
        size = max(jobs, 1) * 8
        if not path.exists() or path.stat().st_size != size:
            path.write_bytes(bytes(size))  # really there: a mapped file without room would end the process
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        self.array: npt.NDArray[np.uint64] = np.frombuffer(self._memory, np.uint64)

    def close(self) -> None:
        del self.array
        with suppress(BufferError):  # an error on its way out still holds pieces of it
            self._memory.close()


class CopyBatch(NamedTuple):
    """Jobs [first, last) whose bytes follow each other, in their source and in the result."""

    first: int
    last: int
    file: int
    offset: int
    place: int
    size: int


class ChunkCopy:
    """`places`: where in the result each job's bytes go. `datasets`: the first job of each, and its path."""

    def __init__(
        self,
        fd: int,
        target: str,
        jobs: Ints,
        places: Ints,
        datasets: list[tuple[int, str]],
        states: States,
        sources: list[MergeInput],
    ) -> None:
        self._fd, self._target, self.jobs, self.places = fd, target, jobs, places
        self._datasets, self._states, self._sources = datasets, states, sources
        self._sizes, self._wanted = (np.ascontiguousarray(jobs[:, one]) for one in (SIZE, CRC))
        self.kept = self.copied = 0
        self._turn = threading.Lock()

    def copy(self, spool_fd: int, threads: int, told: Told) -> None:
        """All that is a copy of bytes elsewhere."""
        batches = iter(list(_batches(self.jobs, self.places)))
        stop = Stop()

        def work(_: int) -> None:
            files = OpenInputs(self._sources)
            pair = [memoryview(mmap.mmap(-1, _BATCH_BYTES)) for _ in range(2)]
            try:
                while True:
                    with self._turn:
                        batch = next(batches, None)
                    if batch is None:
                        return
                    stop.check()
                    self._copy(batch, files, spool_fd, pair)
                    told(batch.size)
            finally:
                files.close()

        run_all(work, list(range(threads)), threads, stop)

    def _copy(self, batch: CopyBatch, files: OpenInputs, spool_fd: int, pair: list[memoryview]) -> None:
        sizes = self.jobs[batch.first : batch.last, SIZE].tolist()
        states = self._states.array[batch.first : batch.last]
        if batch.size > len(pair[0]):
            pair[:] = [memoryview(mmap.mmap(-1, batch.size)) for _ in range(2)]
        here, again = pair[0][: batch.size], pair[1][: batch.size]
        if states.all() and self._reads(batch, again, sizes) == [int(state) - _DONE for state in states]:
            self._count(kept=len(sizes))
            return
        crcs = self._copy_at_once(batch, files, spool_fd, here, again)
        if crcs is not None:
            states[:] = crcs.astype(np.uint64) + np.uint64(_DONE)
            self._count(copied=len(sizes))
        else:
            self._copy_step_by_step(batch, files, spool_fd, here, again)

    def _copy_at_once(
        self, batch: CopyBatch, files: OpenInputs, spool_fd: int, here: memoryview, again: memoryview
    ) -> npt.NDArray[np.uint32] | None:
        """None: something was not as it should be."""
        fd = spool_fd if batch.file == SPOOL else files.fd(batch.file)
        sizes, wanted = self._sizes[batch.first : batch.last].data, self._wanted[batch.first : batch.last].data
        crcs = codec.copy_checked(fd, batch.offset, self._fd, batch.place, sizes, wanted, here, again)
        return None if crcs is None else np.frombuffer(crcs, np.uint32)

    def _copy_step_by_step(
        self, batch: CopyBatch, files: OpenInputs, spool_fd: int, here: memoryview, again: memoryview
    ) -> None:
        """To find out what is wrong; or that it is not any more."""
        sizes = self.jobs[batch.first : batch.last, SIZE].tolist()
        wanted_crcs = self.jobs[batch.first : batch.last, CRC].tolist()
        if batch.file == SPOOL:
            _read_spool(spool_fd, here, batch.offset)
        else:
            files.read_into(batch.file, here, batch.offset)
        crcs = _crcs(here, sizes)
        for number, crc, wanted in zip(range(batch.first, batch.last), crcs, wanted_crcs, strict=True):
            if wanted not in (NO_CRC, crc):
                self._refuse(batch, number, crc, files)
        pwrite_all(self._fd, here, batch.place)
        if self._reads(batch, again, sizes) != crcs:
            raise MergeError("write", self._target, _FAILING, batch.place)
        self._states.array[batch.first : batch.last] = np.array(crcs, np.uint64) + np.uint64(_DONE)
        self._count(copied=len(sizes))

    def _refuse(self, batch: CopyBatch, number: int, crc: int, files: OpenInputs) -> None:
        if batch.file == SPOOL:
            raise MergeError("again", self._target, "what was packed before a power cut is not there as it was")
        dataset = self._datasets[bisect.bisect_right(self._datasets, number, key=lambda one: one[0]) - 1][1]
        check_crc(files.path(batch.file), dataset, int(self.jobs[number, OFFSET]), crc, int(self.jobs[number, CRC]))

    def _reads(self, batch: CopyBatch, view: memoryview, sizes: list[int]) -> list[int]:
        done = 0
        while done < len(view):
            n = os.preadv(self._fd, [view[done:]], batch.place + done)
            if not n:
                return []
            done += n
        return _crcs(view, sizes)

    def _count(self, kept: int = 0, copied: int = 0) -> None:
        with self._turn:
            self.kept += kept
            self.copied += copied

    # ---- what is built, and not packed

    def build(self, plan: CopyPlan, first: int, last: int, builder: Builder, told: Told) -> None:
        """The jobs [first, last) are the plan's."""
        for low, high in _stretches(self.jobs[first:last, FILE] == BUILT):
            if self._states.array[first + low : first + high].all() and self._still(first + low, first + high):
                self._count(kept=high - low)
                continue
            make = _flat if plan.flat else _grid
            made = make(plan, self.jobs[first + low : first + high], builder)
            for job, data in zip(range(first + low, first + high), made, strict=True):
                self._put(job, data)
                told(len(data))

    def _still(self, first: int, last: int) -> bool:
        buffer = memoryview(bytearray(int(self.jobs[first:last, SIZE].max())))
        for job in range(first, last):
            size = int(self.jobs[job, SIZE])
            batch = CopyBatch(job, job + 1, BUILT, 0, int(self.places[job]), size)
            if self._reads(batch, buffer[:size], [size]) != [int(self._states.array[job]) - _DONE]:
                return False
        return True

    def _put(self, job: int, data: memoryview) -> None:
        crc, place = codec.crc32c(data), int(self.places[job])
        pwrite_all(self._fd, data, place)
        again = memoryview(bytearray(len(data)))
        if self._reads(CopyBatch(job, job + 1, BUILT, 0, place, len(data)), again, [len(data)]) != [crc]:
            raise MergeError("write", self._target, _FAILING, place)
        self._states.array[job] = crc + _DONE
        self._count(copied=1)

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


def _read_spool(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        n = os.preadv(fd, [view[done:]], offset + done)
        if not n:
            return  # what is missing is noticed by its checksum
        done += n


def _batches(jobs: Ints, places: Ints) -> Iterator[CopyBatch]:
    first = 0
    columns = zip(
        jobs[:, FILE].tolist(), jobs[:, OFFSET].tolist(), jobs[:, SIZE].tolist(), places.tolist(), strict=True
    )
    held: list[int] = []  # file, offset, place, size
    for number, (file, offset, size, place) in enumerate(columns):
        if held:
            near = file == held[0] and offset == held[1] + held[3] and place == held[2] + held[3]
            if near and held[3] + size <= _BATCH_BYTES:
                held[3] += size
                continue
            if held[0] != BUILT:
                yield CopyBatch(first, number, held[0], held[1], held[2], held[3])
        first, held = number, [file, offset, place, size]
    if held and held[0] != BUILT:
        yield CopyBatch(first, len(jobs), held[0], held[1], held[2], held[3])


def _stretches(chosen: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
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
