"""Reads on the workers of Ray Train, and sends functions and classes that use holdfast to Ray's processes."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import holdfast as hold


class Shape:
    column = hold.Int64

    def make(self, count: int) -> Any:
        return hold.Float32(count)


def columns(count: int) -> str:
    return str([Shape().make(count), hold.Ragged(Shape.column())])


def read(settings: dict[str, Any]) -> None:
    """Runs in a worker; what it needs goes along with it."""
    sys.argv, sys.path = settings["argv"], settings["path"]
    from ranks import Ledger, batches, two_passes

    from holdfast._util.rank import find_rank

    ledger = Ledger()
    ledger.enter("said", str, find_rank())
    ledger.enter("ray", two_passes, batches())
    ledger.write(ray.train.get_context().get_world_rank())


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # its sockets need a short path
        ray.init(
            num_cpus=3,
            include_dashboard=False,
            object_store_memory=80 << 20,
            _temp_dir=folder,
            _node_ip_address="127.0.0.1",
        )
        try:
            assert ray.get(ray.remote(columns).remote(3)) == columns(3)
            DataParallelTrainer(
                read,
                train_loop_config={"argv": sys.argv, "path": sys.path},
                scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
                run_config=RunConfig(storage_path=os.path.abspath(sys.argv[2])),
            ).fit()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
