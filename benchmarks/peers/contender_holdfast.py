"""holdfast: TFRecord and HDF5. Every pass builds its pipeline from scratch."""

from __future__ import annotations

from typing import Any

import holdfast as hold
from benchmarks.common.contenders import Job
from benchmarks.peers.data import EMBED, IMAGE_BATCH, ROW_BYTES, SIDE, SMALL_BATCH, WINDOW, source
from benchmarks.peers.operations import Batches, serve

SMALL: dict[str, Any] = {"id": hold.Int64(), "emb": hold.Float32(EMBED)}
IMAGE: dict[str, Any] = {"id": hold.Int64(), "image": hold.Bytes()}
ROW: dict[str, Any] = {"id": hold.Int64(), "values": hold.Array("uint8", ROW_BYTES)}


def small(job: Job) -> Batches:
    return _each(_shuffled(job, "*.tfrecord", SMALL).batch(SMALL_BATCH))


def rows(job: Job) -> Batches:
    return _each(_shuffled(job, "rows.h5", ROW).batch(SMALL_BATCH))


def pictures(job: Job) -> Batches:
    crop = "random" if job["pipeline"] == "cropped" else None
    options = {"size": (SIDE, SIDE), "crop": crop, "dtype": "float32", "std": 1 / 255}  # 0 to 255, as the peers
    return _each(_shuffled(job, "*.tfrecord", IMAGE).decode("image", **options).batch(IMAGE_BATCH))


def _shuffled(job: Job, files: str, schema: dict[str, Any]) -> Any:
    return hold.read(f"{source(job)}/{files}", schema).shuffle(seed=7, window=WINDOW[job["data"]])


def _each(dataset: Any) -> Batches:
    with dataset.iterate(epoch=0) as batches:
        yield from batches


if __name__ == "__main__":
    serve(("holdfast-io", "numpy"), small, pictures, rows)
