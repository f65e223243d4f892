"""Which record goes into which part, and how to come to it."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..._base.threads import Stop, run_all
from ..._base.units import format_bytes
from ...errors import InputError
from ..columns import Ints
from .runs import Progress, Put, Runs

Files = Sequence[str | os.PathLike[str]]

MOST_PARTS = 99_999  # names have five digits, so that they sort


class Mark(NamedTuple):
    """A place to begin reading at: a record's number over all files; its file, number and offset there."""

    record: int
    file: int
    record_in_file: int
    offset: int


class Plan(NamedTuple):
    files: Files
    marks: list[Mark]  # one for each run of frames: some hundred bytes for half a megabyte of input
    counts: list[int]  # of records in each part
    firsts: list[int]  # each part's first record


def make_plan(files: Files, parts: int | None, part_bytes: int | None, jobs: int, stop: Stop, tick: Progress) -> Plan:
    by_size = None if part_bytes is None else _BySize(part_bytes)

    def look(number: int) -> tuple[list[Mark], int]:
        return _marks(number, files[number], by_size, tick)

    # Borders by size depend on every record before them: then it is one file after the other.
    looked = run_all(look, range(len(files)), 1 if by_size else jobs, stop)
    bases = list(accumulate((count for _, count in looked), initial=0))
    marks = [
        mark._replace(record=base + mark.record)
        for base, (found, _) in zip(bases, looked, strict=False)
        for mark in found
    ]
    if by_size:
        counts = by_size.counts
    else:
        assert parts is not None
        base, more = divmod(bases[-1], parts)
        counts = [base + (i < more) for i in range(parts)]
    return Plan(files, marks, counts, list(accumulate(counts, initial=0))[:-1])


def _marks(
    number: int, file: str | os.PathLike[str], by_size: _BySize | None, tick: Progress
) -> tuple[list[Mark], int]:
    """Where the runs of one file begin, and how many records it has. Lengths are checked, data not yet."""
    marks: list[Mark] = []
    put = by_size or (lambda frames, starts: None)
    with Runs(file, verify="header", progress=tick) as runs:
        while True:
            mark = Mark(runs.record, number, runs.record, runs.offset)
            handed = runs.next(put)
            if handed is None:
                return marks, runs.record
            if handed:
                marks.append(mark)


class _BySize:
    """Deals records out to parts of at most `part_bytes`, in order."""

    def __init__(self, part_bytes: int) -> None:
        self.counts = [0]
        self._part_bytes = part_bytes
        self._held = 0  # bytes in the last part

    def __call__(self, frames: memoryview, starts: Ints) -> None:
        ends = np.append(starts[1:], len(frames))
        done = done_bytes = 0
        while True:
            room = self._part_bytes - self._held
            fit = int(np.searchsorted(ends, done_bytes + room, side="right")) - done
            if not fit and not self._held:
                fit = 1  # larger than a part may be
            if fit:
                done += fit
                self.counts[-1] += fit
                self._held += int(ends[done - 1]) - done_bytes
                done_bytes = int(ends[done - 1])
            if done == len(ends):
                return
            self._next_part()

    def _next_part(self) -> None:
        if len(self.counts) == MOST_PARTS:
            size = format_bytes(self._part_bytes)
            raise ValueError(f"files of {size} would be more than {MOST_PARTS:,}: expected a larger size")
        self.counts.append(0)
        self._held = 0


def lanes_of(parts: int, jobs: int) -> list[range]:
    """Parts next to each other, for one thread to write one after the other: it reads on where it was.

    Several for each thread, so that none is done long before the others.
    """
    lanes = min(parts, 1 if jobs <= 1 else 4 * jobs)
    return [range(parts * i // lanes, parts * (i + 1) // lanes) for i in range(lanes)]


class Cursor:
    """Reads the input from any record on; going on from where it stands costs nothing. One file is open."""

    def __init__(self, plan: Plan, tick: Progress) -> None:
        self._plan = plan
        self._tick = tick
        self._runs: Runs | None = None
        self._file = -1
        self._record = -1

    def copy(self, first: int, count: int, put: Put) -> None:
        """Hands `count` records to `put`, from the one numbered `first` over all files."""
        if count and first != self._record:
            self._seek(first)
        self._take(count, put)

    def _seek(self, record: int) -> None:
        mark = self._plan.marks[bisect_right(self._plan.marks, record, key=lambda mark: mark.record) - 1]
        self._open(mark.file, mark.record_in_file, mark.offset)
        self._record = mark.record
        self._take(record - mark.record, lambda frames, starts: None)

    def _take(self, count: int, put: Put) -> None:
        while count:
            assert self._runs is not None
            taken = self._runs.next(put, count)
            if taken is None:
                self._open(self._file + 1, 0, 0)
            else:
                count -= taken
                self._record += taken

    def _open(self, file: int, record: int, offset: int) -> None:
        self.close()
        if file == len(self._plan.files):
            raise InputError(
                f"{os.fspath(self._plan.files[-1])}: records are gone that were there when they were counted"
            )
        self._runs = Runs(self._plan.files[file], record=record, offset=offset, progress=self._tick)
        self._file = file

    def close(self) -> None:
        if self._runs is not None:
            self._runs.close()
