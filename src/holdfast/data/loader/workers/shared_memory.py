"""The memory that a pool shares with its workers: one memory file, mapped once.

    progress table  a line for the pool, then one a worker: its task, its sample, and a count of its heartbeats
    slots           of equal length; each holds the data of one task, then its result

The file has its full length from the start, but a page of it takes memory only once it is written. So nothing is
remapped as results get larger, and no name can be left in /dev/shm.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from ...._util.text import format_bytes
from ....errors import WorkerError

_LINE_ITEMS = 8  # of 8 bytes: a cache line, so that workers do not slow each other down
_RUN, _SAMPLE, _HEARTBEATS, _TASK = 0, 0, 1, 2
NO_SAMPLE = -1


class SharedLayout(NamedTuple):
    workers: int
    slots: int
    slot_bytes: int
    memory_bytes: int

    @property
    def table_bytes(self) -> int:
        return -(-8 * _LINE_ITEMS * (self.workers + 1) // mmap.PAGESIZE) * mmap.PAGESIZE

    @property
    def file_bytes(self) -> int:
        return self.table_bytes + self.slots * self.slot_bytes


def lay_out(workers: int, slots: int, memory_bytes: int) -> SharedLayout:
    slot_bytes = memory_bytes // slots // mmap.PAGESIZE * mmap.PAGESIZE
    if not slot_bytes:
        least = slots * mmap.PAGESIZE
        text = f"expected at least {least:,} bytes of memory for {slots} slots, got {memory_bytes:,}"
        raise ValueError(f"{text}: raise limits(memory=…), or use fewer workers")
    return SharedLayout(workers, slots, slot_bytes, memory_bytes)


def create_file(layout: SharedLayout) -> int:
    fd = os.memfd_create("holdfast-pool", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, layout.file_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


class WorkerProgress(NamedTuple):
    """A worker's line of the progress table."""

    task: int
    sample: int
    heartbeats: int


class SharedMemory:
    """Maps the file and closes `fd`: the mapping keeps a descriptor of its own."""

    def __init__(self, layout: SharedLayout, fd: int) -> None:
        self.layout = layout
        try:
            self._map = mmap.mmap(fd, layout.file_bytes)
        finally:
            os.close(fd)
        self._memory = memoryview(self._map)
        self._table = self._memory[: layout.table_bytes].cast("q")

    def slot(self, number: int) -> memoryview:
        start = self.layout.table_bytes + number * self.layout.slot_bytes
        return self._memory[start : start + self.layout.slot_bytes]

    def check_fits(self, n_bytes: int, what: str) -> None:
        layout = self.layout
        if n_bytes > layout.slot_bytes:
            raise WorkerError(
                f"{what} of {format_bytes(n_bytes)} does not fit: {layout.slots} slots share "
                f"{format_bytes(layout.memory_bytes)}, {format_bytes(layout.slot_bytes)} each; "
                f"raise limits(memory=…) to at least {n_bytes * layout.slots:,} bytes, or make batches smaller"
            )

    def set_run(self, run: int) -> None:
        self._table[_RUN] = run

    @property
    def run(self) -> int:
        return self._table[_RUN]

    def line(self, worker: int) -> memoryview:
        start = _LINE_ITEMS * (worker + 1)
        return self._table[start : start + _LINE_ITEMS]

    def progress_of(self, worker: int) -> WorkerProgress:
        line = self.line(worker)
        return WorkerProgress(line[_TASK], line[_SAMPLE], line[_HEARTBEATS])

    def close(self) -> None:
        self._table.release()
        self._memory.release()
        self._map.close()


class ProgressCell:
    """In a worker: its line of the progress table. Calling it with a sample's number is a heartbeat."""

    __slots__ = ("_line",)

    def __init__(self, line: memoryview) -> None:
        self._line = line

    def begin(self, task: int) -> None:
        self._line[_TASK] = task
        self(NO_SAMPLE)

    def __call__(self, sample: int) -> None:
        self._line[_SAMPLE] = sample
        self._line[_HEARTBEATS] += 1

    @property
    def sample(self) -> int:
        sample: int = self._line[_SAMPLE]
        return sample
