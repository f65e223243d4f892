"""Copies chunks into the space that the library allocated: each is read, checked, written, read back and compared.

Threads do that without the library, a batch of adjacent chunks per C call.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ....._native import codec
from ....._util.atomic import pread_into, pwrite_all
from ....._util.failpoints import failpoint
from ....._util.parallel import Stop, run_all
from ..sandbox import Progress
from .copy_plan import CRC, FILE, OFFSET, SIZE
from .merge_model import Ints, MergeError, MergeInput
from .source_rows import check_crc

_BATCH_BYTES = 1 << 20  # stays in the CPU cache until it is read back
_MAX_THREADS = 4


class _Batch(NamedTuple):
    """Copies [first, last), whose bytes are adjacent in their source and in the result."""

    first: int
    last: int
    file: int
    offset: int
    place: int
    size: int


def copy_chunks(
    fd: int, copies: Ints, places: Ints, datasets: list[str], sources: list[MergeInput], progress: Progress
) -> npt.NDArray[np.uint32]:
    """Returns the crc32c of each. `datasets`: the path of the dataset of each copy, for messages."""
    batches, lock, stop = _batches(copies, places), threading.Lock(), Stop()
    sizes, expected = np.ascontiguousarray(copies[:, SIZE]), np.ascontiguousarray(copies[:, CRC])
    crcs = np.zeros(len(copies), np.uint32)

    def work(_: int) -> None:
        here, again = (memoryview(mmap.mmap(-1, _BATCH_BYTES)) for _ in range(2))
        number, source = -1, -1
        try:
            while True:
                with lock:
                    batch = next(batches, None)
                if batch is None:
                    return
                stop.check()
                if batch.file != number:
                    if source >= 0:
                        os.close(source)
                    number, source = batch.file, _open(sources[batch.file].path)
                if batch.size > len(here):
                    here, again = (memoryview(mmap.mmap(-1, batch.size)) for _ in range(2))
                some = slice(batch.first, batch.last)
                found = codec.copy_checked(
                    source, batch.offset, fd, batch.place, sizes[some].data, expected[some].data, here, again
                )
                if found is None:
                    crcs[some] = _copy_again(source, fd, batch, copies[some], sources[number].path, datasets[some])
                else:
                    crcs[some] = np.frombuffer(found, np.uint32)
                with lock:
                    progress(batch.size)
                failpoint("merge-filling", kill_parent=True)
        finally:
            if source >= 0:
                os.close(source)

    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0))) if codec.NATIVE else 1
    run_all(work, list(range(threads)), threads, stop)
    return crcs


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise MergeError("input", path, f"it cannot be read any more: {error.strerror}") from error


def _copy_again(source: int, fd: int, batch: _Batch, copies: Ints, path: str, datasets: list[str]) -> list[int]:
    """Copies a batch again in single steps, and raises what is wrong with it."""
    crcs = []
    for (_, _, offset, size, _, expected), dataset in zip(copies.tolist(), datasets, strict=True):
        data, again = memoryview(bytearray(size)), memoryview(bytearray(size))
        place = batch.place + offset - batch.offset
        try:
            n = pread_into(source, data, offset)
        except OSError as error:
            raise MergeError("input", path, f"it cannot be read any more: {error.strerror}") from error
        if n < size:
            text = "the file ends here: it was truncated while it was read"
            raise MergeError("corrupt", path, text, offset + n)
        crcs.append(codec.crc32c(data))
        check_crc(path, dataset, offset, crcs[-1], expected)
        pwrite_all(fd, data, place)
        pread_into(fd, again, place)
        if data != again:
            text = "reads differently than it was written: the disk or the memory may be failing"
            raise MergeError("write", "", text, place)
    return crcs


def _batches(copies: Ints, places: Ints) -> Iterator[_Batch]:
    batch: _Batch | None = None
    columns = zip(*(copies[:, one].tolist() for one in (FILE, OFFSET, SIZE)), places.tolist(), strict=True)
    for number, (file, offset, size, place) in enumerate(columns):
        if batch is not None:
            ends = batch.file, batch.offset + batch.size, batch.place + batch.size
            if (file, offset, place) == ends and batch.size + size <= _BATCH_BYTES:
                batch = batch._replace(last=number + 1, size=batch.size + size)
                continue
            yield batch
        batch = _Batch(number, number + 1, file, offset, place, size)
    if batch is not None:
        yield batch
