"""What people use without holdfast: cat, h5py in one process, a queue to a process with h5py, plain files."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.common.contenders import Job, Pass, serve
from benchmarks.common.processes import Clock
from benchmarks.write.tasks import BLOCK_ROWS, GZIP_LEVEL, ROW_FLOATS, Block, Blocks
from holdfast._native import codec  # faster than zlib.crc32

FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip", "compression_opts": GZIP_LEVEL},
    "lzf": {"compression": "lzf"},
}
SLAB_ROWS = 16 * BLOCK_ROWS
QUEUED = 64  # blocks
TIMEOUT_S = 120.0


# ---- one file from many ------------------------------------------------------------------------------------


def cat(job: Job) -> Pass:
    return _cat(job, sync=False)


def cat_synced(job: Job) -> Pass:
    return _cat(job, sync=True)


def _cat(job: Job, sync: bool) -> Pass:
    clock = Clock()
    with open(job["out"], "xb") as out:
        subprocess.run(["cat", *job["files"]], stdout=out, check=True)
        if sync:
            os.fsync(out.fileno())
    extra = clock.read()
    size = os.path.getsize(job["out"])
    if size != job["bytes"]:
        raise RuntimeError(f"expected {job['bytes']:,} bytes, got {size:,}")
    return Pass(job["records"], Path(job["out"]).unlink, extra)


def slabs(job: Job) -> Pass:
    """Copies numpy arrays of 4 MiB."""
    clock = Clock()
    with h5py.File(job["out"], "x") as out:
        into = _dataset(out, job["codec"], job["records"])
        at = 0
        for path in job["files"]:
            with h5py.File(path) as file:
                rows = file["x"]
                for first in range(0, len(rows), SLAB_ROWS):
                    slab = rows[first : first + SLAB_ROWS]
                    into[at : at + len(slab)] = slab
                    at += len(slab)
    return Pass(at, Path(job["out"]).unlink, clock.read())


def direct(job: Job) -> Pass:
    return _direct(job, compare=False)


def direct_compared(job: Job) -> Pass:
    return _direct(job, compare=True)


def _direct(job: Job, compare: bool) -> Pass:
    """Copies stored chunks of files that end with a full chunk, and calls fsync; then opens the file again and compares
    the CRC of every chunk with that of its source."""
    clock, crcs, at = Clock(), [], 0
    with h5py.File(job["out"], "x", libver="v110") as out:
        into = _dataset(out, job["codec"], job["records"])
        for path in job["files"]:
            with h5py.File(path) as file:
                rows = file["x"].id
                for first in range(0, rows.shape[0], BLOCK_ROWS):
                    mask, data = rows.read_direct_chunk((first, 0))
                    into.id.write_direct_chunk((at + first, 0), data, mask)
                    if compare:
                        crcs.append(codec.crc32c(data))
                at += rows.shape[0]
    with open(job["out"], "rb") as raw:
        os.fsync(raw.fileno())
    with h5py.File(job["out"]) as out:
        rows = out["x"].id
        for number, crc in enumerate(crcs):
            if codec.crc32c(rows.read_direct_chunk((number * BLOCK_ROWS, 0))[1]) != crc:
                raise RuntimeError(f"chunk {number} differs from its source")
    return Pass(at, Path(job["out"]).unlink, clock.read())


def _dataset(file: h5py.File, codec: str, rows: int) -> h5py.Dataset:
    shape = {"shape": (rows, ROW_FLOATS), "maxshape": (None, ROW_FLOATS), "chunks": (BLOCK_ROWS, ROW_FLOATS)}
    return file.create_dataset("x", dtype=np.float32, **shape, **FILTERS[codec])


# ---- one writer --------------------------------------------------------------------------------------------


def append(job: Job) -> Pass:
    """Writes from one process that has all the rows."""
    blocks = [Blocks(number, job["codec"]) for number in range(job["producers"])]
    clock = Clock()
    rows = _append(job, (one[number] for number in range(job["blocks"]) for one in blocks))
    return Pass(rows, Path(job["out"]).unlink, clock.read())


def append_synced(job: Job) -> Pass:
    """Does the same, and calls fsync."""
    blocks = [Blocks(number, job["codec"]) for number in range(job["producers"])]
    clock = Clock()
    rows = _append(job, (one[number] for number in range(job["blocks"]) for one in blocks))
    with open(job["out"], "rb") as file:
        os.fsync(file.fileno())
    return Pass(rows, Path(job["out"]).unlink, clock.read())


def queue(job: Job) -> Pass:
    """Writes in this process what producers put into a queue."""
    context = multiprocessing.get_context("fork")
    ready, blocks = context.Barrier(job["producers"] + 1), context.Queue(QUEUED)
    children = [
        context.Process(target=_put, args=(blocks, number, job, ready), daemon=True)
        for number in range(job["producers"])
    ]
    for child in children:
        child.start()
    ready.wait(TIMEOUT_S)  # all producers have made their blocks
    clock = Clock()
    ready.wait(TIMEOUT_S)
    number = job["producers"] * job["blocks"]
    rows = _append(job, (blocks.get(timeout=TIMEOUT_S) for _ in range(number)))
    for child in children:
        child.join()
    extra = clock.read()
    blocks.close()
    return Pass(rows, Path(job["out"]).unlink, extra)


def _put(queue: Any, number: int, job: Job, ready: Any) -> None:
    blocks = Blocks(number, job["codec"])
    for _ in range(2):
        ready.wait(TIMEOUT_S)
    for block in range(job["blocks"]):
        queue.put(blocks[block])


def _append(job: Job, blocks: Iterator[Block]) -> int:
    rows = 0
    with h5py.File(job["out"], "x") as out:
        into = _dataset(out, job["codec"], 0)
        for block in blocks:
            into.resize(rows + len(block), 0)
            into[rows : rows + len(block)] = block
            rows += len(block)
    return rows


# ---- a plain file, and sums --------------------------------------------------------------------------------


def plain_file(job: Job) -> Pass:
    """Writes as many bytes as a part of that many rows has, and calls fsync."""
    rows = np.ones((job["rows"], ROW_FLOATS), np.float32)
    write_s, fsync_s = _write_synced(job["out"], rows)
    extra = {"seconds": write_s + fsync_s, "write_s": write_s, "fsync_s": fsync_s}
    return Pass(job["rows"], Path(job["out"]).unlink, extra)


def _write_synced(path: str, data: Any) -> tuple[float, float]:
    """Returns how long the write and the fsync took."""
    view = memoryview(data).cast("B")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        start_s = time.perf_counter()
        for at in range(0, len(view), 1 << 20):
            os.write(fd, view[at : at + (1 << 20)])
        written_s = time.perf_counter()
        os.fsync(fd)
        return written_s - start_s, time.perf_counter() - written_s
    finally:
        os.close(fd)


def sums(job: Job) -> dict[str, int]:
    """Adds up all bits, whatever the order of rows."""
    total = rows = 0
    for path in job["files"]:
        with h5py.File(path) as file:
            for first in range(0, len(file["x"]), SLAB_ROWS):
                slab = file["x"][first : first + SLAB_ROWS]
                rows += len(slab)
                total += int(slab.view(np.uint32).sum(dtype=np.uint64))
    return {"records": rows, "sum": total}


def facts() -> dict[str, Any]:
    return {"versions": {"h5py": h5py.__version__, "HDF5": h5py.version.hdf5_version}}


if __name__ == "__main__":
    serve([cat, cat_synced, slabs, direct, direct_compared, append, append_synced, queue, plain_file, sums], facts)
