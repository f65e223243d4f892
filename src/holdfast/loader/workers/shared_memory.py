"""The memory a pool shares with its workers: one nameless file, mapped once.

    board   a line for the pool, then one for each worker: the task and sample it is at, and how often it said so
    slots   of equal length; each takes one task's data, then its result

The file has its full length from the start, but a page of it takes memory only once it is written to. So a slot grows
as it is used, and there is nothing to map anew and no name to be left in /dev/shm.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from ..._util.text import format_bytes
from ...errors import WorkerError

_LINE_ITEMS = 8  # of 8 bytes: a cache line, so that workers do not slow each other down
_RUN, _SAMPLE, _TELLS, _TASK = 0, 0, 1, 2
NO_SAMPLE = -1


class SharedLayout(NamedTuple):
    workers: int
    slots: int
    slot_bytes: int
    memory_bytes: int

    @property
    def board_bytes(self) -> int:
        return _pages(8 * _LINE_ITEMS * (self.workers + 1))

    @property
    def file_bytes(self) -> int:
        return self.board_bytes + self.slots * self.slot_bytes


def lay_out(workers: int, slots: int, memory_bytes: int) -> SharedLayout:
    slot_bytes = memory_bytes // slots // mmap.PAGESIZE * mmap.PAGESIZE
    if not slot_bytes:
        least = slots * mmap.PAGESIZE
        text = f"expected at least {least:,} bytes of memory for {slots} slots, got {memory_bytes:,}"
        raise ValueError(f"{text}: raise limits(memory=…), or take fewer workers")
    return SharedLayout(workers, slots, slot_bytes, memory_bytes)


def _pages(n_bytes: int) -> int:
    return -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def make_file(layout: SharedLayout) -> int:
    fd = os.memfd_create("holdfast-pool", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, layout.file_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


class WorkerProgress(NamedTuple):
    """What a worker last said: task, sample, and how often it has said anything."""

    task: int
    sample: int
    tells: int


class SharedMemory:
    """Maps the file and closes `fd`: the mapping keeps a descriptor of its own."""

    def __init__(self, layout: SharedLayout, fd: int) -> None:
        self.layout = layout
        try:
            self._map = mmap.mmap(fd, layout.file_bytes)
        finally:
            os.close(fd)
        self._whole = memoryview(self._map)
        self._board = self._whole[: layout.board_bytes].cast("q")

    def slot(self, number: int) -> memoryview:
        start = self.layout.board_bytes + number * self.layout.slot_bytes
        return self._whole[start : start + self.layout.slot_bytes]

    def check_fits(self, n_bytes: int, what: str) -> None:
        layout = self.layout
        if n_bytes > layout.slot_bytes:
            raise WorkerError(
                f"{what} of {format_bytes(n_bytes)} does not fit: {layout.slots} slots share "
                f"{format_bytes(layout.memory_bytes)}, {format_bytes(layout.slot_bytes)} each; "
                f"raise limits(memory=…) to at least {n_bytes * layout.slots:,} bytes, or make batches smaller"
            )

    def set_run(self, run: int) -> None:
        self._board[_RUN] = run

    @property
    def run(self) -> int:
        return self._board[_RUN]

    def line(self, worker: int) -> memoryview:
        start = _LINE_ITEMS * (worker + 1)
        return self._board[start : start + _LINE_ITEMS]

    def where(self, worker: int) -> WorkerProgress:
        line = self.line(worker)
        return WorkerProgress(line[_TASK], line[_SAMPLE], line[_TELLS])

    def close(self) -> None:
        self._board.release()
        self._whole.release()
        self._map.close()


class ProgressCell:
    """In a worker: its line of the board. Called with a sample's number it says that this one is worked on now."""

    __slots__ = ("_line",)

    def __init__(self, line: memoryview) -> None:
        self._line = line

    def begin(self, task: int) -> None:
        self._line[_TASK] = task
        self(NO_SAMPLE)

    def __call__(self, sample: int) -> None:
        self._line[_SAMPLE] = sample
        self._line[_TELLS] += 1

    @property
    def sample(self) -> int:
        sample: int = self._line[_SAMPLE]
        return sample
