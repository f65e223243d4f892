"""Copies chunks into the space that the library allocated: each is read, checked, written, read back and compared.

Threads do that without the library, a batch of adjacent chunks per C call, and decode gzip chunks in addition.
"""

from __future__ import annotations

import mmap
import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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


def copy_chunks(
    fd: int,
    copies: Ints,
    places: Ints,
    datasets: list[str],
    inflated: Ints,
    sources: list[MergeInput],
    progress: Progress,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
    """Returns the crc32c of each, and whether zlib has decoded it.

    datasets: the path of the dataset of each copy, for messages
    inflated: the size of what zlib must decode it to, so that its checksum is compared; 0: not to be decoded here
    """
    batches, lock, stop = _batches(copies, places), threading.Lock(), Stop()
    sizes, expected = np.ascontiguousarray(copies[:, SIZE]), np.ascontiguousarray(copies[:, CRC])
    crcs, is_decoded = np.zeros(len(copies), np.uint32), np.zeros(len(copies), bool)
    buffer_bytes = max(_BATCH_BYTES, int(sizes.max(initial=0)))

    def work(_: int) -> None:
        here, again = (memoryview(mmap.mmap(-1, buffer_bytes)) for _ in range(2))
        while True:
            with lock:
                batch = next(batches, None)
            if batch is None:
                return
            stop.check()
            first, path = batch.start, sources[copies[batch.start, FILE]].path
            with _opened(path) as source:
                at = int(copies[first, OFFSET]), fd, int(places[first])
                found = codec.copy_checked(source, *at, sizes[batch].data, expected[batch].data, here, again)
                if found is None:
                    crcs[batch] = _copy_again(source, path, fd, copies[batch], places[batch], datasets[batch])
                else:
                    crcs[batch] = np.frombuffer(found, np.uint32)
                    is_decoded[batch] = list(_inflate(here, sizes[batch].tolist(), inflated[batch].tolist()))
            with lock:
                progress(int(sizes[batch].sum()))
            failpoint("merge-filling", kill_parent=True)

    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0))) if codec.NATIVE else 1
    run_all(work, list(range(threads)), threads, stop)
    return crcs, is_decoded


def _inflate(data: memoryview, sizes: list[int], decoded_sizes: list[int]) -> Iterator[bool]:
    """Yields whether zlib decodes each of adjacent chunks to its size. Where not, the library says what is wrong."""
    at = 0
    for size, decoded_bytes in zip(sizes, decoded_sizes, strict=True):
        stream, is_good = zlib.decompressobj(), False
        if decoded_bytes:
            with suppress(zlib.error):
                is_good = (
                    len(stream.decompress(data[at : at + size], decoded_bytes + 1)) == decoded_bytes and stream.eof
                )
        yield is_good
        at += size


@contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise MergeError("input", path, f"it cannot be read any more: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _copy_again(source: int, path: str, fd: int, copies: Ints, places: Ints, datasets: list[str]) -> list[int]:
    """Copies a batch again in single steps, and raises what is wrong with it."""
    crcs = []
    for (_, _, offset, size, _, expected), place, dataset in zip(
        copies.tolist(), places.tolist(), datasets, strict=True
    ):
        data, again = memoryview(bytearray(size)), memoryview(bytearray(size))
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


def _batches(copies: Ints, places: Ints) -> Iterator[slice]:
    """Yields copies whose bytes are adjacent in their source and in the result."""
    files, offsets, sizes = copies[:, FILE], copies[:, OFFSET], copies[:, SIZE]
    is_next = (np.diff(files) == 0) & (np.diff(offsets) == sizes[:-1]) & (np.diff(places) == sizes[:-1])
    first = total = 0
    for number, (size, adjacent) in enumerate(zip(sizes.tolist(), [False, *is_next.tolist()], strict=False)):
        if number and not (adjacent and total + size <= _BATCH_BYTES):
            yield slice(first, number)
            first, total = number, 0
        total += size
    if len(copies):
        yield slice(first, len(copies))
