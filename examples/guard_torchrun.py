"""Trains with DistributedDataParallel under a hold.Guard in every rank. When one rank asks for a restart, all leave.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 100 examples/guard_torchrun.py run

torchrun restarts all ranks if one of them exits with anything but 0, and until then the others wait in a collective
operation. So the ranks agree after each step: if one wants to be replaced, rank 0 saves a checkpoint, and all exit with
75 together. The next generation goes on with the step after it. Each rank logs its steps to a ledger.

Without the variable, ranks of the next generation may connect to addresses of the one before, and hang (torch 2.13).
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast as hold

RESTART = 75  # as guard.exit_code of the rank that asks; the others have another


def arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("run", type=Path)
    asked.add_argument("--steps", type=int, default=1000)
    asked.add_argument("--step-time", type=float, default=0.01, metavar="S", help="how long a step takes at least")
    asked.add_argument("--leak", type=int, default=0, metavar="N", help="the last rank leaves N files open each step")
    asked.add_argument("--cap", type=int, default=400, metavar="N", help="a rank with more descriptors asks to restart")
    return asked.parse_args()


def any_rank(*flags: bool) -> list[bool]:
    """Returns, in all ranks alike, which of the flags is set in any of them."""
    known = torch.tensor(flags, dtype=torch.int32)
    distributed.all_reduce(known, distributed.ReduceOp.MAX)
    return [bool(flag) for flag in known]


def save(path: Path, step: int, model: nn.Module) -> None:
    part = path.with_suffix(".partial")
    torch.save({"step": step, "model": model.state_dict()}, part)
    os.replace(part, path)


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    rank, is_last = distributed.get_rank(), distributed.get_rank() == distributed.get_world_size() - 1
    generation = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    given.run.mkdir(parents=True, exist_ok=True)
    checkpoint, step = given.run / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        step = saved["step"]

    leaked: list[int] = []
    code = 0
    guard = hold.Guard(name=f"rank-{rank}", fds=hold.Cap(soft=given.cap, hard=0.85), drain_timeout="5min")
    with guard, open(given.run / f"ledger-{rank}.txt", "a", buffering=1) as ledger:
        while step < given.steps:
            step += 1
            x = torch.randn(16, 3, generator=torch.Generator().manual_seed(2 * step + rank))
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(given.step_time)
            leaked += [os.memfd_create("leak") for _ in range(given.leak if is_last else 0)]
            ledger.write(f"generation {generation} step {step}\n")
            guard.step()
            leaves, restarts = any_rank(guard.draining, guard.wants_restart)
            if leaves:
                code = RESTART if restarts else 0
                break
        if rank == 0:
            save(checkpoint, step, model)
        distributed.barrier()  # no rank exits, and has the others killed, before the checkpoint is there
    distributed.destroy_process_group()
    raise SystemExit(code)


if __name__ == "__main__":
    main()
