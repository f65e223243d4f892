"""TensorFlow: tf.data with as many threads as it likes, TFRecordWriter."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.common.contenders import Job, Pass, serve
from benchmarks.common.workload import EMBED, Sums, small_columns
from benchmarks.tfrecord.tasks import BATCH, SHARDS

AUTOTUNE = tf.data.AUTOTUNE

FEATURES: dict[str, Any] = {
    "small": {
        "id": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "weight": tf.io.FixedLenFeature([], tf.float32),
        "embed": tf.io.FixedLenFeature([EMBED], tf.float32),
    },
    "big": {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)},
}


# ---- pipelines, made once: a pass only iterates ------------------------------------------------------------


@functools.cache
def interleaved(data: str, files: tuple[str, ...]) -> Any:
    """As in TensorFlow's performance guide."""
    names = tf.data.Dataset.from_tensor_slices(list(files))
    rows = names.interleave(tf.data.TFRecordDataset, cycle_length=SHARDS, num_parallel_calls=AUTOTUNE)
    return parsed(rows, data)


@functools.cache
def in_turn(data: str, files: tuple[str, ...]) -> Any:
    """One file after the other: for small records, interleaving costs more than it gains."""
    return parsed(tf.data.TFRecordDataset(list(files)), data)


def parsed(rows: Any, data: str) -> Any:
    features = FEATURES[data]
    batches = rows.batch(BATCH[data])
    return batches.map(lambda row: tf.io.parse_example(row, features), AUTOTUNE).prefetch(AUTOTUNE)


@functools.cache
def raw(data: str, files: tuple[str, ...]) -> Any:
    return tf.data.TFRecordDataset(list(files)).batch(BATCH[data]).prefetch(AUTOTUNE)


# ---- what is timed -----------------------------------------------------------------------------------------


def columns(job: Job) -> Pass:
    return count_rows(interleaved(job["data"], tuple(job["files"])).as_numpy_iterator(), job["data"])


def columns_in_turn(job: Job) -> Pass:
    return count_rows(in_turn(job["data"], tuple(job["files"])).as_numpy_iterator(), job["data"])


def count_rows(batches: Iterator[Any], data: str) -> Pass:
    first = next(iter(FEATURES[data]))
    rows = 0
    for batch in batches:
        rows += len(batch[first])
    return finished(rows, batches)


def records(job: Job) -> Pass:
    batches = raw(job["data"], tuple(job["files"])).as_numpy_iterator()
    count = 0
    for batch in batches:
        for _ in batch:
            count += 1
    return finished(count, batches)


def finished(count: int, iterator: Any) -> Pass:
    # Deleting an iterator can wait for the autotuner's next tick: 0.6, 1.3, 2.6, 5.1 … s from its start.
    # That is not part of reading, so it happens when the clock has stopped.
    kept = [iterator]
    return Pass(count, kept.clear)


_small_columns = functools.cache(small_columns)


def write(job: Job) -> Pass:
    """The fastest way with protobuf: sets fields in place, from Python numbers rather than numpy's."""
    made = _small_columns(job["rows"])
    numbers = made["label"].tolist(), made["weight"].tolist(), map(np.ndarray.tolist, made["embed"])
    count = 0
    with tf.io.TFRecordWriter(job["out"]) as writer:
        for name, label, weight, embed in zip(made["id"], *numbers, strict=True):
            example = tf.train.Example()
            feature = example.features.feature
            feature["id"].bytes_list.value.append(name)
            feature["label"].int64_list.value.append(label)
            feature["weight"].float_list.value.append(weight)
            feature["embed"].float_list.value.extend(embed)
            writer.write(example.SerializeToString())
            count += 1
    return Pass(count, Path(job["out"]).unlink)


# ---- proof -------------------------------------------------------------------------------------------------


def sums(job: Job) -> dict[str, int]:
    total = Sums()
    for batch in in_turn(job["data"], tuple(job["files"])).as_numpy_iterator():
        total.records += len(batch["label"])
        for name, column in batch.items():
            if column.dtype == object:
                for value in column:
                    total.text(name, value)
            else:
                total.numbers(name, column)
    return total.as_dict()


def facts() -> dict[str, Any]:
    return {"versions": {"tensorflow": tf.__version__, "numpy": np.__version__}}


if __name__ == "__main__":
    serve([sums, columns, columns_in_turn, records, write], facts)
