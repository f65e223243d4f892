"""Trains with DistributedDataParallel, and logs from every rank into one run.hold.

    torchrun --standalone --nproc-per-node 2 examples/log_torch.py run

Kill a rank at any time, and start it again: all go on from the last checkpoint, and no step is logged twice or missing.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast as hold


def arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("run", type=Path)
    asked.add_argument("--steps", type=int, default=30)
    asked.add_argument("--save-every", type=int, default=8, metavar="STEPS")
    asked.add_argument("--stand-still-at", type=int, metavar="STEP", help="to be killed there")
    return asked.parse_args()


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    truth = torch.tensor([[1.0], [2.0], [3.0]])

    checkpoint, step = given.run / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        step = saved["step"]

    with hold.log(given.run, every_rows=5) as log:
        while step < given.steps:
            step += 1
            x = torch.randn(16, 3, generator=torch.Generator().manual_seed(2 * step + rank))
            loss = nn.functional.mse_loss(model(x), x @ truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log(step, loss=loss, weights=model.module.weight[0])
            if step % given.save_every == 0:
                log.commit()  # in every rank, before any of them can go on from the checkpoint
                distributed.barrier()
                if rank == 0:
                    part = checkpoint.with_suffix(".partial")
                    torch.save({"step": step, "model": model.state_dict()}, part)
                    os.replace(part, checkpoint)
            if step == given.stand_still_at:
                print(f"rank {rank}, process {os.getpid()}: standing still at step {step}", flush=True)
                signal.pause()
    weights = " ".join(map(str, model.module.weight[0].tolist()))
    print(f"rank {rank}: weights {weights}\n", end="")  # in one piece: torchrun's ranks write to one pipe, unbuffered
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
