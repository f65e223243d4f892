"""Trainings that log, as a program: `python log_tensorflow_child.py hook FOLDER`; says in JSON what it saw."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from holdfast.tensorflow import LogCallback, LogHook

v1 = tf.compat.v1
KILLED_AT, STEPS = 13, 20


def make_graph() -> Any:
    """A step that counts, and what it counts; and something that is run without being a step."""
    step = v1.train.get_or_create_global_step()
    total = v1.get_variable("total", [], tf.float32, v1.zeros_initializer())
    train = tf.group(v1.assign_add(step, 1), v1.assign_add(total, 2.0))
    with tf.control_dependencies([train]):
        return tf.identity(total.read_value(), "twice")


def quiet(**more: Any) -> dict[str, Any]:
    nothing = {"save_summaries_steps": None, "save_summaries_secs": None, "log_step_count_steps": None}
    return {**nothing, "save_checkpoint_steps": None, "save_checkpoint_secs": None, **more}


# ---- checkpoints: killed behind one, and started again


def train_hook(folder: Path) -> None:
    """The first time it is killed."""
    first = not (folder / "checkpoint").exists()
    with tf.Graph().as_default():
        twice = make_graph()
        hook = LogHook(folder, {"twice": "twice:0", "pair": tf.stack([twice, twice + 1])}, every_rows=5)
        saver = v1.train.CheckpointSaverHook(str(folder), save_steps=4, listeners=[hook.listener])
        stop = v1.train.StopAtStepHook(last_step=STEPS)
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(folder), hooks=[hook, saver, stop], **quiet()
        ) as session:
            while not session.should_stop():
                session.run(twice)
                if first and hook.log is not None and hook.log.last_step == KILLED_AT:
                    os.kill(os.getpid(), signal.SIGKILL)


def train_session(folder: Path, own_saver: bool) -> None:
    """With the session's own checkpoints; a saver that the graph does not list is one that the hook cannot see."""
    first = not (folder / "checkpoint").exists()
    with tf.Graph().as_default():
        twice = make_graph()
        scaffold = v1.train.Scaffold(saver=v1.train.Saver()) if own_saver else None
        hook = LogHook(folder, {"twice": twice}, every_steps=5)
        stop = v1.train.StopAtStepHook(last_step=STEPS)
        options = quiet(save_checkpoint_steps=10, scaffold=scaffold)
        with v1.train.MonitoredTrainingSession(checkpoint_dir=str(folder), hooks=[hook, stop], **options) as session:
            step = 0
            while not session.should_stop():
                session.run(twice)
                step += 1
                if first and step == KILLED_AT:
                    os.kill(os.getpid(), signal.SIGKILL)


# ---- what else a hook may meet


class Stop(Exception):
    pass


def restarted_hook(folder: Path) -> None:
    """In one process: a session is left by an exception, and the program starts over with a new graph and hook."""
    for last in (7, 9):
        try:
            with tf.Graph().as_default():
                twice = make_graph()
                hook = LogHook(folder, {"twice": twice}, rank=0)
                with v1.train.MonitoredTrainingSession(hooks=[hook], **quiet()) as session:
                    for _ in range(last):
                        session.run(twice)
                    raise Stop
        except Stop:
            pass


def sparse_hook(folder: Path) -> None:
    """Every third step; runs that are no step; two sessions, one after the other, the second from the beginning."""
    with tf.Graph().as_default():
        twice = make_graph()
        other = tf.constant(1.0)
        hook = LogHook(folder, {"step_again": v1.train.get_global_step()}, every_steps=3, rank=7)
        for _ in range(2):
            with v1.train.MonitoredTrainingSession(hooks=[hook], **quiet()) as session:
                for number in range(10):
                    session.run(twice)
                    if number % 4 == 0:
                        session.run(other)
    assert hook.log is None


def served_hook(folder: Path) -> None:
    """Through the central writer that serves the folder."""
    with tf.Graph().as_default():
        twice = make_graph()
        hook = LogHook(None, {"twice": twice}, server=str(folder / "served.hold"), rank=0, steps=range(1, 1 << 40))
        with v1.train.MonitoredTrainingSession(hooks=[hook], **quiet()) as session:
            for _ in range(6):
                session.run(twice)


def refusals(folder: Path) -> list[str]:
    said = []
    with tf.Graph().as_default():
        x = tf.constant(1.0)
        for work in (
            lambda: LogHook(folder, {"x": x}).begin(),
            lambda: LogHook(folder, {}),
            lambda: LogHook(folder, {"x": x}, every_steps=0),
            lambda: LogCallback(folder, every="hour"),
        ):
            try:
                work()
            except (RuntimeError, ValueError) as error:
                said.append(str(error))
    return said


# ---- Keras


class StopAt(tf.keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations.numpy()) == 10:
            raise Stop


def fit(folder: Path) -> dict[str, Any]:
    x = np.linspace(-1, 1, 24, dtype=np.float32)[:, None]
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    epochs = LogCallback(folder, name="epochs")
    batches = LogCallback(
        folder, name="batches", every="batch", arrays=lambda model: {"kernel": model.get_weights()[0]}, every_rows=5
    )
    options = {"batch_size": 8, "validation_data": (x, 3 * x), "verbose": 0, "shuffle": False}
    history = model.fit(x, 3 * x, epochs=2, callbacks=[epochs, batches], **options)
    kernel = float(model.get_weights()[0][0, 0])
    # Goes on in the same logs; then it is left by an exception, and the program's exit commits.
    try:
        model.fit(x, 3 * x, initial_epoch=2, epochs=5, callbacks=[epochs, batches, StopAt()], **options)
    except Stop:
        pass
    return {"history": history.history, "kernel": kernel}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    if name == "hook":
        train_hook(folder)
        print(json.dumps({}))
    elif name == "session":
        train_session(folder, own_saver=sys.argv[3] == "own")
    else:
        sparse_hook(folder / "sparse")
        served_hook(folder)
        restarted_hook(folder / "restarted")
        print(json.dumps({"refused": refusals(folder), **fit(folder)}))


if __name__ == "__main__":
    main()
