"""Trains in two processes that share their variables, TF1-style, and logs from both into one run.hold.

    python examples/log_mts.py run --ports 2201 2202 --task 0 &
    python examples/log_mts.py run --ports 2201 2202 --task 1

Task 0 is the chief: it has the variables, and saves them. Task 1 may be killed at any time, and started again: of its
log the last uncommitted rows are missing, at most five here. The two train asynchronously: a step is one run of either.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from holdfast.tensorflow import LogHook

v1 = tf.compat.v1


def arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("run", type=Path)
    asked.add_argument("--ports", type=int, nargs=2, required=True)
    asked.add_argument("--task", type=int, choices=[0, 1], required=True)
    asked.add_argument("--runs", type=int, default=40, help="of this task")
    asked.add_argument("--stand-still-at", type=int, metavar="RUN", help="to be killed there")
    return asked.parse_args()


def make_graph(task: int) -> dict[str, Any]:
    """A line is fitted to points. Variables, the step among them, are the chief's."""
    chief, here = "/job:train/task:0", f"/job:train/task:{task}"
    with v1.device(v1.train.replica_device_setter(ps_tasks=1, ps_device=chief, worker_device=here)):
        v1.train.get_or_create_global_step()
        x = v1.placeholder(tf.float32, [None])
        run = v1.placeholder(tf.int64, [])
        slope, offset = v1.get_variable("slope", []), v1.get_variable("offset", [])
        error = x * slope + offset - (3 * x + 1)
        loss = tf.reduce_mean(error**2)
        train = v1.train.GradientDescentOptimizer(0.05).minimize(loss, v1.train.get_global_step())
    with v1.device(chief):
        done = tf.queue.FIFOQueue(2, tf.int64, [()], shared_name="done")
    logged = {"loss": loss, "run": run, "error": error}
    return {
        "x": x,
        "run": run,
        "train": train,
        "logged": logged,
        "done": done.dequeue() if task == 0 else done.enqueue(task),
    }


def main() -> None:
    given = arguments()
    cluster = {"train": [f"127.0.0.1:{port}" for port in given.ports]}
    server = v1.train.Server(cluster, job_name="train", task_index=given.task)
    graph = make_graph(given.task)
    hook = LogHook(given.run, graph["logged"], rank=given.task, every_rows=5)
    hooks: list[Any] = [hook]
    if given.task == 0:
        hooks.append(v1.train.CheckpointSaverHook(str(given.run), save_steps=10, listeners=[hook.listener]))
    # Without a filter the chief's session would stop when the other task dies.
    alone = v1.ConfigProto(device_filters=["/job:train/task:0", f"/job:train/task:{given.task}"])
    chance = np.random.default_rng(given.task)
    with v1.train.MonitoredTrainingSession(
        server.target,
        is_chief=given.task == 0,
        checkpoint_dir=str(given.run),
        save_checkpoint_steps=None,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
        hooks=hooks,
        config=alone,
    ) as session:
        print(f"task {given.task} trains", flush=True)
        for run in range(given.runs):
            session.run(graph["train"], {graph["x"]: chance.uniform(-1, 1, 8), graph["run"]: run})
            if run == given.stand_still_at:
                print(f"standing still at run {run}", flush=True)
                signal.pause()
    with v1.Session(server.target, config=alone) as session:
        # The chief has the variables: it stays until the other has done its runs, too.
        session.run(graph["done"])
    print(f"task {given.task}: {given.runs} runs", flush=True)


if __name__ == "__main__":
    v1.disable_eager_execution()
    main()
