"""One of the workers of a MultiWorkerMirroredStrategy: says on its last line which samples it had."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

import holdfast as hold

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "data" / "loader"))

from factories_files import SCHEMA


def main(folder: str) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    os.environ["RANK"] = "1"  # half of what torchrun sets, and wrong: the strategy knows
    ds = hold.read(folder, SCHEMA).shuffle(seed=7).shard("auto", remainder="drop").batch(8)
    with strategy.scope():
        data = strategy.distribute_datasets_from_function(lambda _: ds.tf())

    @tf.function
    def step(batch: Any) -> Any:
        mean = tf.reduce_mean(tf.cast(batch["id"], tf.float32))
        return tf.distribute.get_replica_context().all_reduce("sum", mean)

    seen = []
    for batch in data:
        strategy.run(step, args=(batch,))  # all of them, or it waits for ever
        for part in strategy.experimental_local_results(batch["id"]):
            seen += part.numpy().tolist()
    print(json.dumps({"seen": seen, "replicas": strategy.num_replicas_in_sync}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
