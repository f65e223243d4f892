"""Trains on PNG images in TFRecord shards with DistributedDataParallel. Kill it at any time, and start it again.

    python examples/make_images.py images
    torchrun --standalone --nproc-per-node 2 examples/torch_ddp.py images run

It goes on from its last checkpoint, in the middle of an epoch, on any number of ranks; `seen.py` proves that every
image is seen once an epoch.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from make_images import LABELS, SCHEMA, SIZE
from seen import SeenLog
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast as hold


def decode(sample: dict[str, Any]) -> dict[str, Any]:
    pixels = hold.decode_image(sample["image"]).astype(np.float32) / 255
    return {"id": sample["id"], "label": sample["label"], "image": pixels.transpose(2, 0, 1)}


def save(path: Path, **parts: Any) -> None:
    """Whole or not at all: a kill while it is written leaves the one before."""
    part = path.with_suffix(".partial")
    torch.save(parts, part)
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
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()

    data = (
        hold.read(given.data / "*.tfrecord", SCHEMA)
        .shuffle(seed=1)
        .shard("auto", remainder="pad")  # as many batches on every rank, or DDP would wait for ever
        .map(decode, num_workers=1)
        .batch(global_size=32)  # over all ranks: the same steps on any number of them
        .torch()
    )
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 16), nn.ReLU(), nn.Linear(16, LABELS))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    checkpoint, step, begin = given.run / "checkpoint.pt", 0, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        data.load_state_dict(saved["data"])
        step, begin = saved["step"], saved["data"]["epoch"]

    seen = SeenLog(given.run, step, rank)
    for epoch in range(begin, given.epochs):
        data.set_epoch(epoch)
        loss = None
        for batch in data:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            seen.write(epoch, step, batch["id"].tolist())
            if step % given.save_every == 0 and rank == 0:
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(checkpoint, step=step, data=data.state_dict(), **parts)
            if step == given.stand_still_at:
                print(f"rank {rank}: standing still at step {step}", flush=True)
                signal.pause()
        if rank == 0 and loss is not None:  # none: the checkpoint was made at the very end of this epoch
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    seen.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
