"""holdfast: TFRecord and HDF5. Every pass builds its pipeline from scratch."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

import holdfast as hold
from benchmarks.common.contenders import Job
from benchmarks.peers.data import EMBED, IMAGE_BATCH, ROW_BYTES, SIDE, SMALL_BATCH, WINDOW, random_box, source
from benchmarks.peers.operations import Batches, serve

SMALL: dict[str, Any] = {"id": hold.Int64(), "emb": hold.Float32(EMBED)}
IMAGE: dict[str, Any] = {"id": hold.Int64(), "image": hold.Bytes()}
ROW: dict[str, Any] = {"id": hold.Int64(), "values": hold.Array("uint8", ROW_BYTES)}


def small(job: Job) -> Batches:
    return _each(_shuffled(job, "*.tfrecord", SMALL).batch(SMALL_BATCH))


def rows(job: Job) -> Batches:
    return _each(_shuffled(job, "rows.h5", ROW).batch(SMALL_BATCH))


def pictures(job: Job) -> Batches:
    samples, crop = _shuffled(job, "*.tfrecord", IMAGE), "random" if job["pipeline"] == "cropped" else None
    if hasattr(samples, "decode"):
        samples = samples.decode("image", size=(SIDE, SIDE), crop=crop, dtype="float32")
    else:
        samples = samples.map(lambda row: _by_pillow(row, crop), num_workers=2, where="threads")
    return _each(samples.batch(IMAGE_BATCH))


def _by_pillow(row: dict[str, Any], crop: str | None) -> dict[str, Any]:
    image = Image.open(io.BytesIO(row["image"]))
    top, left, height, width = random_box(image.height, image.width) if crop else (0, 0, image.height, image.width)
    resized = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
    return {"id": row["id"], "image": np.asarray(resized, np.float32)}


def _shuffled(job: Job, files: str, schema: dict[str, Any]) -> Any:
    return hold.read(f"{source(job)}/{files}", schema).shuffle(seed=7, window=WINDOW[job["data"]])


def _each(dataset: Any) -> Batches:
    with dataset.iterate(epoch=0) as batches:
        yield from batches


if __name__ == "__main__":
    serve(("holdfast-io", "numpy"), small, pictures, rows)
