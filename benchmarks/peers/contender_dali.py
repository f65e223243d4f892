"""DALI on the CPU: TFRecord with an index, its own decoder and random crop, two threads."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, fn, tfrecord, types

from benchmarks.common.contenders import Job
from benchmarks.peers.data import EMBED, IMAGE_BATCH, SHUFFLE, SIDE, SMALL_BATCH, own_format, source
from benchmarks.peers.operations import Batches, serve

ID = tfrecord.FixedLenFeature((), tfrecord.int64, 0)
FEATURES = {
    "small": {"id": ID, "emb": tfrecord.FixedLenFeature((EMBED,), tfrecord.float32, 0.0)},
    "images": {"id": ID, "image": tfrecord.FixedLenFeature((), tfrecord.string, "")},
}


def small(job: Job) -> Batches:
    return _read(job, SMALL_BATCH, _as_is)


def pictures(job: Job) -> Batches:
    return _read(job, IMAGE_BATCH, _cropped if job["pipeline"] == "cropped" else _whole)


def _as_is(emb: Any) -> Any:
    return emb


def _whole(data: Any) -> Any:
    return _fitted(fn.decoders.image(data))


def _cropped(data: Any) -> Any:
    return _fitted(fn.decoders.image_random_crop(data, random_area=(0.08, 1.0), random_aspect_ratio=(3 / 4, 4 / 3)))


def _fitted(pixels: Any) -> Any:
    return fn.resize(pixels, size=(SIDE, SIDE), antialias=False, dtype=types.FLOAT)


def _read(job: Job, batch: int, transform: Callable[[Any], Any]) -> Iterator[dict[str, Any]]:
    home = own_format(job, "dali", lambda home: _write_indexes(source(job), home))
    pipeline, value = _built(source(job), home, job["data"], batch, transform)
    left = pipeline.reader_meta("reader")["epoch_size"]
    while left > 0:  # the last batch is filled with copies
        ids, values = (np.asarray(column.as_tensor())[:left] for column in pipeline.run())
        yield {"id": ids, value: values}
        left -= batch


@functools.cache
def _built(folder: Path, home: Path, data: str, batch: int, transform: Callable[[Any], Any]) -> tuple[Any, str]:
    files, indexes = sorted(folder.glob("*.tfrecord")), sorted(home.glob("*.idx"))
    value = "emb" if data == "small" else "image"
    pipeline = Pipeline(batch, num_threads=2, device_id=None, prefetch_queue_depth=2)
    with pipeline:
        sample = fn.readers.tfrecord(
            path=[str(path) for path in files],
            index_path=[str(path) for path in indexes],
            features=FEATURES[data],
            random_shuffle=True,
            initial_fill=SHUFFLE[data],
            pad_last_batch=True,
            name="reader",
        )
        pipeline.set_outputs(sample["id"], transform(sample[value]))
    pipeline.build()
    return pipeline, value


def _write_indexes(folder: Path, home: Path) -> None:
    """Offset and size of every record, as DALI's tfrecord2idx writes them."""
    for path in folder.glob("*.tfrecord"):
        data, start, lines = path.read_bytes(), 0, []
        while start < len(data):
            size = 16 + struct.unpack_from("<Q", data, start)[0]
            lines.append(f"{start} {size}\n")
            start += size
        (home / f"{path.stem}.idx").write_text("".join(lines))


if __name__ == "__main__":
    serve(("nvidia-dali-cuda130",), small, pictures)
