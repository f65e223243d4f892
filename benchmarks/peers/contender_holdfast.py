"""holdfast: TFRecord and HDF5. Every pass builds its pipeline from scratch."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

import holdfast as hold
from benchmarks.common.contenders import Job
from benchmarks.peers.data import EMBED, IMAGE_BATCH, ROW_BYTES, SIDE, SMALL_BATCH, WINDOW, source
from benchmarks.peers.operations import Batches, serve
from benchmarks.peers.random_box import random_box

SMALL: dict[str, Any] = {"id": hold.Int64(), "emb": hold.Float32(EMBED)}
IMAGE: dict[str, Any] = {"id": hold.Int64(), "image": hold.Bytes()}
ROW: dict[str, Any] = {"id": hold.Int64(), "values": hold.Array("uint8", ROW_BYTES)}


def small(job: Job) -> Batches:
    return _each(_shuffled(job, "*.tfrecord", SMALL).batch(SMALL_BATCH))


def resized(job: Job) -> Batches:
    return _images(job, _resized_by_pillow)


def cropped(job: Job) -> Batches:
    return _images(job, _cropped_by_pillow, crop="random")


def rows(job: Job) -> Batches:
    return _each(_shuffled(job, "rows.h5", ROW).batch(SMALL_BATCH))


def _images(job: Job, by_pillow: Callable[[Any], Any], **options: str) -> Batches:
    samples = _shuffled(job, "*.tfrecord", IMAGE)
    if hasattr(samples, "decode"):
        samples = samples.decode("image", size=(SIDE, SIDE), dtype="float32", **options)
    else:
        samples = samples.map(lambda row: {**row, "image": by_pillow(row["image"])}, num_workers=2, where="threads")
    return _each(samples.batch(IMAGE_BATCH))


def _resized_by_pillow(data: bytes) -> Any:
    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (SIDE, SIDE))
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR), np.float32)


def _cropped_by_pillow(data: bytes) -> Any:
    image = Image.open(io.BytesIO(data))
    top, left, height, width = random_box(image.height, image.width)
    box = (left, top, left + width, top + height)
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box), np.float32)


def _shuffled(job: Job, files: str, schema: dict[str, Any]) -> Any:
    return hold.read(f"{source(job)}/{files}", schema).shuffle(seed=7, window=WINDOW[job["data"]])


def _each(dataset: Any) -> Batches:
    with dataset.iterate(epoch=0) as batches:
        yield from batches


if __name__ == "__main__":
    serve(("holdfast-io", "numpy"), small, resized, cropped, rows)
