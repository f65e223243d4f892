"""grain on ArrayRecord files, shuffled as a whole; its threads read and decode, batches are made of raw bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.common.contenders import Job
from benchmarks.peers import images
from benchmarks.peers.data import EMBED, IMAGE_BATCH, SMALL_BATCH, jpeg_paths, own_format, small_columns
from benchmarks.peers.operations import Batches, serve

SMALL = np.dtype([("id", np.int64), ("emb", np.float32, EMBED)])


def small(job: Job) -> Batches:
    def write(home: Path) -> None:
        rows = np.empty(len(small_columns(job)[0]), SMALL)
        rows["id"], rows["emb"] = small_columns(job)
        _write(home, [row.tobytes() for row in rows])

    samples = _opened(own_format(job, "arrayrecord", write)).batch(SMALL_BATCH, batch_fn=_rows)
    return samples.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=16))


def resized(job: Job) -> Batches:
    return _images(job, images.resized)


def cropped(job: Job) -> Batches:
    return _images(job, images.cropped)


def _images(job: Job, decode: Callable[[Any], Any]) -> Batches:
    def write(home: Path) -> None:
        _write(home, [np.int64(i).tobytes() + path.read_bytes() for i, path in enumerate(jpeg_paths(job))])

    def one(record: bytes) -> tuple[bytes, Any]:
        return record[:8], decode(record[8:])

    samples = _opened(own_format(job, "arrayrecord", write)).map(one).batch(IMAGE_BATCH, batch_fn=_pixels)
    return samples.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8))


def _rows(records: list[bytes]) -> dict[str, Any]:
    rows = np.frombuffer(b"".join(records), SMALL)
    return {"id": np.ascontiguousarray(rows["id"]), "emb": np.ascontiguousarray(rows["emb"])}


def _pixels(samples: list[tuple[bytes, Any]]) -> dict[str, Any]:
    ids, pixels = zip(*samples, strict=True)
    return images.batch(np.frombuffer(b"".join(ids), np.int64), pixels)


def _write(home: Path, records: list[bytes]) -> None:
    writer = ArrayRecordWriter(f"{home}/rows.arrayrecord", "group_size:1,uncompressed")
    for record in records:
        writer.write(record)
    writer.close()


@functools.cache
def _opened(home: Path) -> Any:
    return grain.MapDataset.source(grain.sources.ArrayRecordDataSource(f"{home}/rows.arrayrecord")).shuffle(seed=7)


if __name__ == "__main__":
    serve(("grain", "array_record", "opencv-python-headless"), small, resized, cropped)
