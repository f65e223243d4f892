"""Reads on the ranks of torchrun; or, where it is started alone, on ranks that it forks and spawns itself."""

from __future__ import annotations

import os
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as distributed
import torch.multiprocessing
import torch.utils.data
from ranks import BATCH, Ledger, batches, one_pass, samples, two_passes

import holdfast as hold
import holdfast.torch

LOADERS = {"torch": torch.utils.data.DataLoader, "ours": holdfast.torch.DataLoader}


# ---- torchrun ----------------------------------------------------------------------------------------------


kept: list[Any] = []  # as Python ends


def launched() -> None:
    distributed.init_process_group("gloo")
    ledger = Ledger()
    for name, make in LOADERS.items():
        for workers in (0, 2):
            loader = make(batches().torch(), batch_size=None, num_workers=workers)
            ledger.enter(f"{name}, {workers}", two_passes, loader)
    ledger.enter("samples", two_passes, torch.utils.data.DataLoader(samples().torch(), BATCH, num_workers=2))
    for workers in (0, 2):
        ledger.enter(f"stateful, {workers}", stateful, workers)
        for split in (False, True):
            ledger.enter(f"datasets, {workers}, {split}", generated, workers, split=split)
        ledger.enter(f"webdataset, {workers}", piped, workers)
    rank = distributed.get_rank()
    distributed.destroy_process_group()
    ledger.write(rank)


def stateful(workers: int) -> Any:
    """A pass, three batches of the next, the rest of it by another loader with its state, and the pass after it."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    first, again = (StatefulDataLoader(batches().torch(), batch_size=None, num_workers=workers) for _ in range(2))
    passes = [one_pass(first), one_pass(islice(first, 3))]
    again.load_state_dict(first.state_dict())
    passes += [one_pass(again), one_pass(again), one_pass(first)]
    kept.append((first, next(iter(first))))
    return passes


def generated(workers: int, *, split: bool) -> Any:
    """split: datasets shares the samples among the ranks, and not the generator."""
    from datasets import IterableDataset
    from datasets.distributed import split_dataset_by_node

    data = samples().torch()

    def generate() -> Any:  # it names hold, which datasets pickles to make a fingerprint
        for sample in data:
            yield sample | {"column": str(hold.Int64())}

    generator = IterableDataset.from_generator(generate)
    if split:
        generator = split_dataset_by_node(generator, distributed.get_rank(), distributed.get_world_size())
    return two_passes(torch.utils.data.DataLoader(generator, batch_size=BATCH, num_workers=workers))


def piped(workers: int) -> Any:
    """webdataset shares the samples among ranks and workers."""
    import webdataset

    splits = [webdataset.split_by_node, webdataset.split_by_worker]
    pipeline = webdataset.DataPipeline(samples().torch(), splits, webdataset.batched(BATCH))
    return two_passes(webdataset.WebLoader(pipeline, batch_size=None, num_workers=workers))


# ---- ranks that are started by a program -------------------------------------------------------------------


def as_rank(rank: int, how: str, data: Any) -> None:
    store = Path(sys.argv[2], f"store-{how}")
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ledger = Ledger()
    for workers in (0, 1):
        loader = torch.utils.data.DataLoader(
            data, batch_size=None, num_workers=workers, persistent_workers=bool(workers)
        )
        ledger.enter(f"{workers}", two_passes, loader)
    distributed.barrier()
    distributed.destroy_process_group()
    ledger.write(rank, how)


def started() -> None:
    """The dataset is made before the ranks are, as Lightning's ddp_spawn and ddp_fork and notebooks have it."""
    for how in ("fork", "spawn"):
        torch.multiprocessing.start_processes(as_rank, (how, batches().torch()), nprocs=2, start_method=how)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        launched()
    else:
        started()
