"""torch's DataLoader with two workers, over Datasets written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from read_pass import Batches, operations
from read_rows import BATCH, CHUNK_ROWS, REACH, WORKERS
from read_torch_sets import ByBlocks, ExampleBatches, ImageFolder, ImageRecords, RowByRow
from worker import Job, serve
from workload import EMBED


def examples(job: Job) -> Batches:
    data = job["data"]
    # Each worker has a buffer of its own: half the reach in each is the whole of it.
    dataset = ExampleBatches(job["files"], REACH[data] // WORKERS, BATCH[data], EMBED)
    return iter(DataLoader(dataset, batch_size=None, num_workers=WORKERS))


def images(job: Job) -> Batches:
    data = job["data"]
    dataset = ImageRecords(job["files"], REACH[data] // WORKERS)
    return iter(DataLoader(dataset, BATCH[data], num_workers=WORKERS))


def files(job: Job) -> Batches:
    dataset = ImageFolder(job["files"][0])
    return iter(DataLoader(dataset, BATCH["files"], shuffle=True, num_workers=WORKERS))


def hdf5(job: Job) -> Batches:
    dataset = RowByRow(job["files"][0])
    order = ByBlocks(len(dataset), CHUNK_ROWS, REACH["hdf5"])
    return iter(DataLoader(dataset, BATCH["hdf5"], sampler=order, num_workers=WORKERS))


def hdf5_anywhere(job: Job) -> Batches:
    dataset = RowByRow(job["files"][0])
    return iter(DataLoader(dataset, BATCH["hdf5"], shuffle=True, num_workers=WORKERS))


def facts() -> dict[str, Any]:
    return {"versions": {"torch": str(torch.__version__), "numpy": np.__version__}}


if __name__ == "__main__":
    pipelines = [examples, images, files, hdf5, hdf5_anywhere]
    serve(operations({pipeline.__name__: pipeline for pipeline in pipelines}), facts)
