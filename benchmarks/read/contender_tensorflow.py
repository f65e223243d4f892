"""tf.data with as many threads as it likes, as in TensorFlow's performance guide."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.common.contenders import Job, serve
from benchmarks.common.workload import EMBED
from benchmarks.read.operations import Batches, operations
from benchmarks.read.tasks import BATCH, INTERLEAVED, MEAN, SHUFFLE, SIDE, STD

AUTOTUNE = tf.data.AUTOTUNE

EXAMPLE: dict[str, Any] = {
    "id": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "weight": tf.io.FixedLenFeature([], tf.float32),
    "embed": tf.io.FixedLenFeature([EMBED], tf.float32),
}
IMAGE: dict[str, Any] = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def examples(job: Job) -> Batches:
    return _examples(tuple(job["files"])).as_numpy_iterator()  # type: ignore[no-any-return]


@functools.cache
def _examples(files: tuple[str, ...]) -> Any:
    """Built once: a pass only iterates. Shuffles before parsing, and parses a batch at a time."""
    batches = _records(files).shuffle(SHUFFLE["examples"]).batch(BATCH["examples"])
    return batches.map(lambda rows: tf.io.parse_example(rows, EXAMPLE), AUTOTUNE).prefetch(AUTOTUNE)


def images(job: Job) -> Batches:
    return _images(tuple(job["files"]), job["data"]).as_numpy_iterator()  # type: ignore[no-any-return]


@functools.cache
def _images(files: tuple[str, ...], data: str) -> Any:
    decode = _decode_png if data == "png" else _decode_jpeg

    def one(record: Any) -> dict[str, Any]:
        sample = tf.io.parse_single_example(record, IMAGE)
        return {"image": decode(sample["image"]), "label": sample["label"]}

    return _records(files).shuffle(SHUFFLE[data]).map(one, AUTOTUNE).batch(BATCH[data]).prefetch(AUTOTUNE)


def files(job: Job) -> Batches:
    return _files(job["files"][0]).as_numpy_iterator()  # type: ignore[no-any-return]


@functools.cache
def _files(folder: str) -> Any:
    classes = sorted(os.listdir(folder))
    paths = [(os.path.join(folder, name, file), i) for i, name in enumerate(classes) for file in _listed(folder, name)]
    names, labels = zip(*paths, strict=True)

    def one(path: Any, label: Any) -> dict[str, Any]:
        return {"image": _decode_jpeg(tf.io.read_file(path)), "label": label}

    pairs = tf.data.Dataset.from_tensor_slices((list(names), np.array(labels, np.int64)))
    return pairs.shuffle(SHUFFLE["files"]).map(one, AUTOTUNE).batch(BATCH["files"]).prefetch(AUTOTUNE)


def resize(job: Job) -> Batches:
    return _resized(tuple(job["files"]), False).as_numpy_iterator()  # type: ignore[no-any-return]


def crop(job: Job) -> Batches:
    return _resized(tuple(job["files"]), True).as_numpy_iterator()  # type: ignore[no-any-return]


@functools.cache
def _resized(files: tuple[str, ...], is_random: bool) -> Any:
    """Its fastest ways: no antialiasing, the fast DCT and upsampling; a ratio of 2 would be smaller than the output."""

    def one(record: Any) -> dict[str, Any]:
        sample = tf.io.parse_single_example(record, IMAGE)
        fast = {"channels": 3, "fancy_upscaling": False, "dct_method": "INTEGER_FAST"}
        if is_random:
            shape = tf.io.extract_jpeg_shape(sample["image"])
            begin, size, _ = tf.image.sample_distorted_bounding_box(
                shape, tf.zeros([0, 0, 4]), 0, 0.1, [3 / 4, 4 / 3], [0.08, 1.0], 10, True
            )
            window = tf.stack([begin[0], begin[1], size[0], size[1]])
            image = tf.image.decode_and_crop_jpeg(sample["image"], window, **fast)
        else:
            image = tf.io.decode_jpeg(sample["image"], **fast)
        floats = tf.image.resize(image, [SIDE, SIDE])
        return {"image": (floats / 255.0 - MEAN) / STD, "label": sample["label"]}

    return _records(files).shuffle(SHUFFLE["photos"]).map(one, AUTOTUNE).batch(BATCH["photos"]).prefetch(AUTOTUNE)


def _listed(folder: str, name: str) -> list[str]:
    return sorted(os.listdir(os.path.join(folder, name)))


def _records(files: tuple[str, ...]) -> Any:
    names = tf.data.Dataset.from_tensor_slices(list(files))
    # deterministic=False is faster, and the order is shuffled anyway.
    return names.interleave(
        tf.data.TFRecordDataset, cycle_length=INTERLEAVED, num_parallel_calls=AUTOTUNE, deterministic=False
    )


def _decode_png(data: Any) -> Any:
    return tf.io.decode_png(data, 3)


def _decode_jpeg(data: Any) -> Any:
    return tf.io.decode_jpeg(data, 3, dct_method="INTEGER_ACCURATE")  # as Pillow, so that the pixels are the same


def facts() -> dict[str, Any]:
    return {"versions": {"tensorflow": tf.__version__, "numpy": np.__version__}}


if __name__ == "__main__":
    serve(operations(examples, images, files, resize, crop), facts)
