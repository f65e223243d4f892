"""tf.data on TFRecord: interleaved, AUTOTUNE everywhere, whole batches parsed, built once."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from benchmarks.common.contenders import Job
from benchmarks.peers.data import EMBED, HEIGHT, IMAGE_BATCH, SHARDS, SHUFFLE, SIDE, SMALL_BATCH, WIDTH, source
from benchmarks.peers.operations import Batches, serve

AUTOTUNE = tf.data.AUTOTUNE
SMALL = {"id": tf.io.FixedLenFeature([], tf.int64), "emb": tf.io.FixedLenFeature([EMBED], tf.float32)}
IMAGE = {"id": tf.io.FixedLenFeature([], tf.int64), "image": tf.io.FixedLenFeature([], tf.string)}


def small(job: Job) -> Batches:
    return _small(str(source(job))).as_numpy_iterator()  # type: ignore[no-any-return]


def pictures(job: Job) -> Batches:
    decode = _crop if job["pipeline"] == "cropped" else _whole
    return _pictures(str(source(job)), decode).as_numpy_iterator()  # type: ignore[no-any-return]


@functools.cache
def _small(folder: str) -> Any:
    batches = _records(folder).shuffle(SHUFFLE["small"]).batch(SMALL_BATCH)
    return batches.map(lambda rows: tf.io.parse_example(rows, SMALL), AUTOTUNE).prefetch(AUTOTUNE)


@functools.cache
def _pictures(folder: str, decode: Any) -> Any:
    def one(record: Any) -> dict[str, Any]:
        sample = tf.io.parse_single_example(record, IMAGE)
        return {"id": sample["id"], "image": tf.image.resize(decode(sample["image"]), (SIDE, SIDE))}

    return _records(folder).shuffle(SHUFFLE["images"]).map(one, AUTOTUNE).batch(IMAGE_BATCH).prefetch(AUTOTUNE)


def _records(folder: str) -> Any:
    names = tf.data.Dataset.list_files(f"{folder}/*.tfrecord")
    return names.interleave(tf.data.TFRecordDataset, SHARDS, num_parallel_calls=AUTOTUNE, deterministic=False)


def _whole(data: Any) -> Any:
    return tf.io.decode_jpeg(data, 3)  # half the size would be too small


def _crop(data: Any) -> Any:
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
    shape = tf.constant([HEIGHT, WIDTH, 3])
    top, size, _ = tf.image.sample_distorted_bounding_box(
        shape, whole, min_object_covered=0.0, aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0)
    )
    return tf.io.decode_and_crop_jpeg(data, tf.concat([top[:2], size[:2]], 0), 3)


if __name__ == "__main__":
    serve(("tensorflow_cpu",), small, pictures)
