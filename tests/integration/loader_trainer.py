"""A trainer with workers: prints their pids, then waits to be killed; or, at a line, stops one of them and ends.

python loader_trainer.py CONTEXT wait|stop
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch
from torch.utils.data import Dataset

from holdfast.torch import DataLoader


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3)


def main(context: str, then: str) -> None:
    iterator = iter(DataLoader(Numbers(), num_workers=2, multiprocessing_context=context))
    next(iterator)
    pids = [worker.pid for worker in iterator._workers]
    print(json.dumps(pids), flush=True)
    if then == "wait":
        signal.pause()
    sys.stdin.readline()
    os.kill(pids[0], signal.SIGSTOP)
    sys.exit(0)  # with the iterator alive


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
