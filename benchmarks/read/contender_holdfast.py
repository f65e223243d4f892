"""holdfast. Every pass builds its pipeline from scratch, including the list of files."""

from __future__ import annotations

from typing import Any

import numpy as np

import holdfast as hold
from benchmarks.common.contenders import Job, serve
from benchmarks.common.workload import EMBED
from benchmarks.read.data import decode
from benchmarks.read.operations import Batches, operations
from benchmarks.read.tasks import BATCH, MEAN, SIDE, STD, WINDOW, WORKERS

SEED = 7

EXAMPLE: dict[str, Any] = {
    "id": hold.Bytes(),
    "label": hold.Int64(),
    "weight": hold.Float32(),
    "embed": hold.Float32(EMBED),
}
IMAGE: dict[str, Any] = {"image": hold.Bytes(), "label": hold.Int64()}
FILE: dict[str, Any] = {"image": hold.Bytes(key="data"), "label": hold.Int64()}
ROW: dict[str, Any] = {"values": hold.Float32(1024), "label": hold.Int64()}


def examples(job: Job) -> Batches:
    return _each(_shuffled(job, EXAMPLE).batch(BATCH[job["data"]]))


def examples_torch(job: Job) -> Batches:
    return iter(_shuffled(job, EXAMPLE).batch(BATCH[job["data"]]).torch())


def images(job: Job) -> Batches:
    return _each(_shuffled(job, IMAGE).map(_decoded, num_workers=WORKERS, where="threads").batch(BATCH[job["data"]]))


def images_pillow(job: Job) -> Batches:
    return _each(
        _shuffled(job, IMAGE).map(_decoded_by_pillow, num_workers=WORKERS, where="threads").batch(BATCH[job["data"]])
    )


def files(job: Job) -> Batches:
    return _each(
        _shuffled(job, FILE, labels_from_folders=True)
        .map(_decoded, num_workers=WORKERS, where="threads")
        .batch(BATCH["files"])
    )


def resize(job: Job) -> Batches:
    return _resized(job, None)


def crop(job: Job) -> Batches:
    return _resized(job, "random")


def _resized(job: Job, crop: Any) -> Batches:
    images = _shuffled(job, IMAGE)
    decoded = images.decode("image", size=SIDE, crop=crop, dtype="float32", mean=MEAN, std=STD, num_workers=WORKERS)
    return _each(decoded.batch(BATCH["photos"]))


def hdf5(job: Job) -> Batches:
    return _each(_shuffled(job, ROW).batch(BATCH[job["data"]]))


def _shuffled(job: Job, schema: dict[str, Any], **options: bool) -> Any:
    return hold.read(job["files"], schema, **options).shuffle(seed=SEED, window=WINDOW[job["data"]])


def _decoded(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": hold.decode_image(sample["image"]), "label": sample["label"]}


def _decoded_by_pillow(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": decode(sample["image"]), "label": sample["label"]}


def _each(dataset: Any) -> Batches:
    with dataset.iterate(epoch=0) as batches:
        yield from batches


def facts() -> dict[str, Any]:
    return {"versions": {"holdfast": hold.__version__, "numpy": np.__version__}}


if __name__ == "__main__":
    serve(operations(examples, examples_torch, images, images_pillow, files, resize, crop, hdf5), facts)
