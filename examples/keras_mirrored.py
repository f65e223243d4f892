"""Trains on PNG images in TFRecord shards with Keras and MirroredStrategy. Kill it at any time, and start it again.

    python examples/make_images.py images
    python examples/keras_mirrored.py images run

Two logical CPU devices stand in for two GPUs. It goes on from its last checkpoint, in the middle of an epoch; `seen.py`
proves that every image is seen once an epoch.
"""

from __future__ import annotations

import argparse
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from make_images import LABELS, SCHEMA, SIZE
from seen import SeenLog

import holdfast as hold
from holdfast.tensorflow import Passes

numbers_seen: list[int] = []  # of the step that is going on, over all replicas


def decode(sample: dict[str, Any]) -> dict[str, Any]:
    pixels = hold.decode_image(sample["image"]).astype(np.float32) / 255
    return {"id": sample["id"], "label": sample["label"], "image": pixels}


class Note(keras.layers.Layer):
    """Passes images on, and notes their numbers: what the model itself has seen, not what was fetched for it."""

    def call(self, image: Any, number: Any) -> Any:
        noted = tf.numpy_function(lambda one: numbers_seen.extend(one.tolist()) or one, [number], number.dtype)
        with tf.control_dependencies([noted]):
            return tf.identity(image)

    def compute_output_shape(self, image_shape: Any, number_shape: Any) -> Any:
        return image_shape


def make_model() -> Any:
    image, number = keras.Input((SIZE, SIZE, 3), name="image"), keras.Input((), dtype="int64", name="id")
    hidden = keras.layers.Dense(16, "relu")(keras.layers.Flatten()(Note()(image, number)))
    model = keras.Model({"image": image, "id": number}, keras.layers.Dense(LABELS)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


class Checkpoints(keras.callbacks.Callback):
    """Model and place in the data, in one file, every few steps."""

    def __init__(self, passes: Passes, given: argparse.Namespace, step: int) -> None:
        super().__init__()
        self.passes, self.given, self.step = passes, given, step
        self.epoch = self.taken = 0
        self.log = SeenLog(given.run, step)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.passes.set_epoch(epoch)
        self.epoch, self.taken = epoch, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step, self.taken = self.step + 1, self.taken + 1
        self.log.write(self.epoch, self.step, numbers_seen)
        numbers_seen.clear()
        if self.step % self.given.save_every == 0:
            self.save(self.given.run / "checkpoint.pickle")
        if self.step == self.given.stand_still_at:
            print(f"standing still at step {self.step}", flush=True)
            signal.pause()

    def save(self, path: Path) -> None:
        """Whole or not at all: a kill while it is written leaves the one before."""
        parts = {
            "step": self.step,
            "data": self.passes.state_after(self.taken, epoch=self.epoch),
            "model": self.model.get_weights(),
            "optimizer": [variable.numpy() for variable in self.model.optimizer.variables],
        }
        part = path.with_suffix(".partial")
        part.write_bytes(pickle.dumps(parts))
        os.replace(part, path)


def arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("data", type=Path)
    asked.add_argument("run", type=Path)
    asked.add_argument("--epochs", type=int, default=2)
    asked.add_argument("--save-every", type=int, default=4, metavar="STEPS")
    asked.add_argument("--stand-still-at", type=int, metavar="STEP", help="to be killed there")
    return asked.parse_args()


def main() -> None:
    given = arguments()
    given.run.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(0)
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = make_model()

    checkpoint, step, begin, state = given.run / "checkpoint.pickle", 0, 0, None
    ds = hold.read(given.data / "*.tfrecord", SCHEMA).shuffle(seed=1).map(decode, num_workers=1).batch(32)
    if checkpoint.exists():
        saved = pickle.loads(checkpoint.read_bytes())
        model.set_weights(saved["model"])
        for variable, value in zip(model.optimizer.variables, saved["optimizer"], strict=True):
            variable.assign(value)
        step, state = saved["step"], saved["data"]
        begin = state["epoch"]
        if state["done"] == ds.samples:  # Keras wants at least one batch of an epoch
            begin, state = begin + 1, None

    passes = Passes(ds, epoch=begin, state=state)
    data = passes.dataset.map(lambda batch: ({"image": batch["image"], "id": batch["id"]}, batch["label"]))
    checkpoints = Checkpoints(passes, given, step)
    for epoch in range(begin, given.epochs):
        # One fit() an epoch: Keras cuts all epochs of a fit() to the length of the first, and that may be a rest.
        model.fit(data, initial_epoch=epoch, epochs=epoch + 1, verbose=2, callbacks=[checkpoints])
    checkpoints.log.close()


if __name__ == "__main__":
    main()
