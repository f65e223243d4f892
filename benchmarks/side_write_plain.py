"""What people do without holdfast: cat, h5py in one process, a queue to a process with h5py, plain files."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from worker import Job, Pass, serve
from write_pass import BLOCK_ROWS, GZIP_LEVEL, ROW_FLOATS, Block, Blocks, Clock, write_synced

FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip", "compression_opts": GZIP_LEVEL},
    "lzf": {"compression": "lzf"},
}
SLAB_ROWS = 16 * BLOCK_ROWS
QUEUED = 64  # blocks
PATIENCE_S = 120.0


# ---- one file of many --------------------------------------------------------------------------------------


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
    told = clock.told()
    size = os.path.getsize(job["out"])
    if size != job["bytes"]:
        raise RuntimeError(f"wanted {job['bytes']:,} bytes, got {size:,}")
    return Pass(job["records"], Path(job["out"]).unlink, told)


def slabs(job: Job) -> Pass:
    """Read and written as numpy arrays, by 4 MiB."""
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
    return Pass(at, Path(job["out"]).unlink, clock.told())


def _dataset(file: h5py.File, codec: str, rows: int) -> h5py.Dataset:
    shape = {"shape": (rows, ROW_FLOATS), "maxshape": (None, ROW_FLOATS), "chunks": (BLOCK_ROWS, ROW_FLOATS)}
    return file.create_dataset("x", dtype=np.float32, **shape, **FILTERS[codec])


# ---- one writer --------------------------------------------------------------------------------------------


def append(job: Job) -> Pass:
    """One process that has all the rows."""
    blocks = [Blocks(number, job["codec"]) for number in range(job["producers"])]
    clock = Clock()
    rows = _append(job, (one[number] for number in range(job["blocks"]) for one in blocks))
    return Pass(rows, Path(job["out"]).unlink, clock.told())


def queue(job: Job) -> Pass:
    """Producers put blocks into a queue; this process writes them."""
    context = multiprocessing.get_context("fork")
    ready, blocks = context.Barrier(job["producers"] + 1), context.Queue(QUEUED)
    children = [
        context.Process(target=_put, args=(blocks, number, job, ready), daemon=True)
        for number in range(job["producers"])
    ]
    for child in children:
        child.start()
    ready.wait(PATIENCE_S)  # all have made their blocks
    clock = Clock()
    ready.wait(PATIENCE_S)
    number = job["producers"] * job["blocks"]
    rows = _append(job, (blocks.get(timeout=PATIENCE_S) for _ in range(number)))
    for child in children:
        child.join()
    told = clock.told()
    blocks.close()
    return Pass(rows, Path(job["out"]).unlink, told)


def _put(queue: Any, number: int, job: Job, ready: Any) -> None:
    blocks = Blocks(number, job["codec"])
    for _ in range(2):
        ready.wait(PATIENCE_S)
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


# ---- a file, and what is in files --------------------------------------------------------------------------


def plain_file(job: Job) -> Pass:
    """As many bytes as a part of so many rows has, and one fsync."""
    rows = np.ones((job["rows"], ROW_FLOATS), np.float32)
    write_s, fsync_s = write_synced(Path(job["out"]), rows)
    told = {"seconds": write_s + fsync_s, "write_s": write_s, "fsync_s": fsync_s}
    return Pass(job["rows"], Path(job["out"]).unlink, told)


def sums(job: Job) -> dict[str, int]:
    """Of all bits, the same in whatever order the rows are."""
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
    serve({one.__name__: one for one in (cat, cat_synced, slabs, append, queue, plain_file, sums)}, facts)
