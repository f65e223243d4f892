"""h5py by hand: reads chunks in random order, and shuffles the rows of as many as fit into the window."""

from __future__ import annotations

import h5py
import numpy as np

from benchmarks.common.contenders import Job
from benchmarks.peers.blocks import shuffled_batches, windows
from benchmarks.peers.data import CHUNK_ROWS, source
from benchmarks.peers.operations import Batches, serve


def rows(job: Job) -> Batches:
    with h5py.File(source(job) / "rows.h5") as file:
        ids, values = file["id"][:], file["values"]
        for places in windows(len(ids)):
            block = np.empty((len(places), CHUNK_ROWS, values.shape[1]), np.uint8)
            for slot, start in enumerate(places):
                values.read_direct(block, np.s_[start : start + CHUNK_ROWS], np.s_[slot])
            yield from shuffled_batches(ids, places, block)


if __name__ == "__main__":
    serve(("h5py",), rows)
