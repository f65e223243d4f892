"""Counts what a real torch DataLoader costs: run as a program, prints one JSON document.

python loader_costs.py WORKERS PREFETCH SHARING
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any


def links(pid: int | str = "self") -> list[str]:
    """What each descriptor is; the listing's own is closed by the time it is asked."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
    return found


def count(targets: list[str], start: str) -> int:
    return sum(target.startswith(start) for target in targets)


def tasks(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def wait_for(what: Callable[[], bool]) -> None:
    """Several looks in a row: in the middle of a change it may seem so for a moment."""
    deadline = time.monotonic() + 60
    looks = 0
    while looks < 10:
        assert time.monotonic() < deadline, "it never came to rest"
        looks = looks + 1 if what() else 0
        time.sleep(0.01)


def at_rest(counts: list[int], there: int, maximum: int) -> bool:
    """A tensor that is being handed over is in two places, or in none: the sum alone may be right by chance."""
    return sum(counts) == there and max(counts[1:]) <= maximum


def main(workers: int, prefetch: int, sharing: str) -> dict[str, Any]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Pairs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros(100), torch.tensor(at)

    torch.multiprocessing.set_sharing_strategy(sharing)
    before, threads = links(), threading.active_count()
    iterator = iter(DataLoader(Pairs(), batch_size=2, num_workers=workers, prefetch_factor=prefetch))
    live = links()
    batch = next(iterator)
    pids = [worker.pid for worker in iterator._workers]  # type: ignore[attr-defined]
    shm = "/dev/shm/torch_"
    if sharing == "file_descriptor":
        # All that may be fetched ahead, with the workers or taken in out of order, and the one in hand.
        there = (workers * prefetch + 1) * len(batch)
        wait_for(lambda: at_rest([count(links(pid), shm) for pid in ("self", *pids)], there, prefetch * len(batch)))
    return {
        "base": len(before),
        "fds": len(live) - len(before),
        "pipes": len(set(live) - set(before)),
        "in_hand": count(links(), shm),
        "in_worker": max(count(links(pid), shm) for pid in pids),
        "worker": max(len(links(pid)) for pid in pids) - len(before),
        "tasks": sum(tasks(pid) for pid in pids) + threading.active_count() - threads,
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
