"""h5py by hand in one thread, at its best: chunks in random order into one buffer, and batches taken from that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - registers lz4 and zstd
import numpy as np

from benchmarks.common.contenders import Job, serve
from benchmarks.read.operations import Batches, operations
from benchmarks.read.tasks import BATCH, CHUNK_ROWS, SHUFFLE

_files: dict[str, h5py.File] = {}


def hdf5(job: Job) -> Batches:
    path = job["files"][0]
    if path not in _files:
        _files[path] = h5py.File(path)
    return _shuffled(_files[path], BATCH[job["data"]], SHUFFLE[job["data"]])


def _shuffled(file: h5py.File, batch: int, window: int) -> Iterator[dict[str, Any]]:
    values, label = file["values"], file["label"]
    rows, rng = len(values), np.random.default_rng()
    buffers = [np.empty((window, *values.shape[1:]), values.dtype), np.empty(window, label.dtype)]
    starts = rng.permutation(-(-rows // CHUNK_ROWS)) * CHUNK_ROWS
    for some in np.split(starts, range(window // CHUNK_ROWS, len(starts), window // CHUNK_ROWS)):
        filled = 0
        for start in some.tolist():
            n = min(CHUNK_ROWS, rows - start)
            for dataset, buffer in zip((values, label), buffers, strict=True):
                dataset.read_direct(buffer, np.s_[start : start + n], np.s_[filled : filled + n])
            filled += n
        order = rng.permutation(filled)
        for at in range(0, filled, batch):
            which = order[at : at + batch]
            yield {"values": buffers[0][which], "label": buffers[1][which]}


def facts() -> dict[str, Any]:
    return {"versions": {"h5py": h5py.__version__, "HDF5": h5py.version.hdf5_version}}


if __name__ == "__main__":
    serve(operations(hdf5), facts)
