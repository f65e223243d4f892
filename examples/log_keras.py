"""Trains with Keras and MultiWorkerMirroredStrategy, and logs from every worker into one run.hold.

    python examples/log_keras.py run --ports 2201 2202 --worker 0 &
    python examples/log_keras.py run --ports 2201 2202 --worker 1

Kill the workers at any time, and start them again: they go on from their last backup, and no step is logged twice.
The strategy needs Keras 2 (the package tf_keras): Keras 3 does not train with it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

from holdfast.tensorflow import LogCallback

STEPS_PER_EPOCH = 10


class StandStill(tf.keras.callbacks.Callback):
    """To be killed there."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations.numpy()) == self.step:
            print(f"standing still at step {self.step}", flush=True)
            signal.pause()


def arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("run", type=Path)
    asked.add_argument("--ports", type=int, nargs=2, required=True)
    asked.add_argument("--worker", type=int, choices=[0, 1], required=True)
    asked.add_argument("--epochs", type=int, default=3)
    asked.add_argument("--stand-still-at", type=int, metavar="STEP", help="to be killed there")
    return asked.parse_args()


def main() -> None:
    given = arguments()
    cluster = {"worker": [f"127.0.0.1:{port}" for port in given.ports]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": given.worker}})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="zeros", input_shape=(3,))])
        model.compile(tf.keras.optimizers.SGD(0.05), "mse")

    x = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((x, x @ [[1.0], [2.0], [3.0]])).repeat().batch(32)
    log = LogCallback(
        given.run,
        every="batch",
        arrays=lambda model: {"weights": model.layers[-1].kernel.numpy()[:, 0]},
        every_rows=3,
    )
    # The log first: it commits at the end of an epoch, and what is in a backup must be in the log.
    callbacks = [log, tf.keras.callbacks.BackupAndRestore(str(given.run / "backup"))]
    if given.stand_still_at is not None:
        callbacks.append(StandStill(given.stand_still_at))
    model.fit(
        data.with_options(options),
        steps_per_epoch=STEPS_PER_EPOCH,
        epochs=given.epochs,
        verbose=0,
        callbacks=callbacks,
    )
    print("weights", *model.layers[-1].kernel.numpy()[:, 0].tolist(), flush=True)


if __name__ == "__main__":
    main()
