"""The loaders that soak_faults.py and soak_churn.py open. Their samples are numbers in order."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from soak_work import BAD, BATCH, SAMPLES, SCHEMA, Work

import holdfast as hold
from process_tree import children

KINDS = ("read", "threads", "torch")
WORKERS = 2
LONG_S = 300
HANG_S = 60  # a pass that takes longer hangs: its stacks are printed, and the soak ends


def make(kind: str, folder: Path) -> ReadLoader | TorchLoader:
    return TorchLoader() if kind == "torch" else ReadLoader(kind, folder)


class ReadLoader:
    """hold.read with a function in worker processes or on threads. Every fourth slow pass spawns its processes."""

    def __init__(self, kind: str, folder: Path) -> None:
        path = folder / "numbers.tfrecord"
        if not path.exists():
            with hold.TFRecordWriter(path, SCHEMA) as writer:
                writer.extend({"id": np.arange(SAMPLES)})
        self.kind = kind
        self._data = hold.read(path, SCHEMA)
        self._where: Any = "threads" if kind == "threads" else "processes"

    def open(self, number: int = 0, *, slow: bool = False, bad: bool = False, timeout_s: float = LONG_S) -> Any:
        start: Any = "spawn" if number % 4 == 3 else "forkserver"
        work = Work(slow=slow, bad=bad)
        ds = self._data.map(work, WORKERS, self._where, timeout=timeout_s, start=start)
        return ds.batch(BATCH).prefetch("1MB").iterate()

    def numbers(self, batch: Any) -> list[int]:
        return [int(number) // 2 for number in batch["id"]]


class TorchLoader:
    """holdfast.torch.DataLoader over a user-defined dataset. Every other pass shares tensors by file name."""

    kind = "torch"

    def __init__(self) -> None:
        import torch
        from torch.utils.data import Dataset

        import holdfast.torch

        torch.set_num_threads(1)

        class Numbers(Dataset[Any]):
            def __init__(self, *, slow: bool, bad: bool) -> None:
                self._slow = slow
                self._bad = bad

            def __len__(self) -> int:
                return SAMPLES

            def __getitem__(self, index: int) -> Any:
                if self._slow:
                    time.sleep(0.001)
                if self._bad and index == BAD:
                    raise ValueError("a bad sample")
                return torch.full((256,), index)

        self._dataset = Numbers
        self._loader = holdfast.torch.DataLoader
        self._share = torch.multiprocessing.set_sharing_strategy

    def open(self, number: int = 0, *, slow: bool = False, bad: bool = False, timeout_s: float = LONG_S) -> Any:
        self._share("file_system" if number % 2 else "file_descriptor")
        data = self._dataset(slow=slow, bad=bad)
        return _Opened(self._loader(data, BATCH, num_workers=WORKERS, timeout=timeout_s))

    def numbers(self, batch: Any) -> list[int]:
        return [int(number) for number in batch[:, 0]]


class _Opened:
    """Gives a torch loader with one iterator the interface of an iterator of hold.read."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._iterator = iter(loader)

    def __iter__(self) -> Any:
        return self._iterator

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._loader.close()


# ---- processes below this one ------------------------------------------------------------------------------


def workers_of(kind: str) -> list[int]:
    """Returns their pids: the workers of hold.read are children of its fork server, those of torch of this process."""
    mine = [pid for pid in children(os.getpid()) if not _is_helper(pid)]
    return mine if kind == "torch" else [worker for server in mine for worker in children(server)]


def _is_helper(pid: int) -> bool:
    """Tells Python's resource tracker and torch's shared-memory manager from workers."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return b"resource_tracker" in command or b"torch_shm_manager" in command
