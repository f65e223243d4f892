"""The samples as Arrow tables, and batches of them, for peers that store Arrow. Images are decoded in two threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from benchmarks.common.contenders import Job
from benchmarks.peers import images
from benchmarks.peers.data import EMBED, IMAGE_BATCH, SHUFFLE, SMALL_BATCH, jpeg_paths, small_columns
from benchmarks.peers.operations import Batches, Pipeline

POOL = ThreadPoolExecutor(2)
Taken = Callable[[Job, Callable[[Job], pa.Table], int], Iterator[pa.Table]]


def pipelines(taken: Taken) -> list[Pipeline]:
    """`taken(job, make, many)` yields `many` rows of a random order at a time; `make` returns all rows to store."""

    def small(job: Job) -> Batches:
        for table in taken(job, _small_table, SHUFFLE["small"]):
            ids = table["id"].to_numpy()
            emb = table["emb"].combine_chunks().flatten().to_numpy().reshape(len(ids), EMBED)
            for first in range(0, len(ids), SMALL_BATCH):
                yield {"id": ids[first : first + SMALL_BATCH], "emb": emb[first : first + SMALL_BATCH]}

    def pictures(job: Job) -> Batches:
        for table in taken(job, _image_table, IMAGE_BATCH):
            yield images.batch(table["id"].to_numpy(), POOL.map(images.decoder(job), table["image"].to_pylist()))

    return [small, pictures]


def _small_table(job: Job) -> pa.Table:
    ids, emb = small_columns(job)
    return pa.table({"id": np.array(ids), "emb": pa.FixedSizeListArray.from_arrays(np.array(emb).ravel(), EMBED)})


def _image_table(job: Job) -> pa.Table:
    files = [path.read_bytes() for path in jpeg_paths(job)]
    return pa.table({"id": np.arange(len(files)), "image": pa.array(files, pa.large_binary())})
