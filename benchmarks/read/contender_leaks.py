"""Creates loaders and leaks them as programs do: descriptors and memory after every one.

Forks a child for each scenario, so that none sees what another left.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import holdfast as hold
from benchmarks.common.contenders import Job, serve
from benchmarks.common.processes import memory_bytes, open_descriptors
from benchmarks.read.tasks import WORKERS

SAMPLES, BATCH, FLOATS = 64, 16, 1024


class Rows(Dataset[Any]):
    bad = -1

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        if i == self.bad:
            raise ValueError(f"sample {i} is bad")
        return torch.full((FLOATS,), float(i))


# ---- ways to leak ------------------------------------------------------------------------------------------


def iterator_kept(loader: Any, kept: list[Any]) -> None:
    iterator = iter(loader)
    for _ in iterator:
        pass
    kept.append(iterator)


def loaders_error_kept(loader: Any, kept: list[Any]) -> None:
    """A sample cannot be read: the traceback holds a frame of the iterator."""
    loader.dataset.bad = SAMPLES // 2
    try:
        for _ in loader:
            pass
    except ValueError as error:
        kept.append(error)


def own_error_kept(loader: Any, kept: list[Any]) -> None:
    """The training step fails: the traceback holds its frame, and the frame the iterator. Only `with` closes it."""
    try:
        _train(loader)
    except ValueError as error:
        kept.append(error)


def _train(loader: Any) -> None:
    batches = iter(loader)
    for batch in batches:
        raise ValueError(f"a bad batch of {len(batch)}")


def reference_cycle(loader: Any, kept: list[Any]) -> None:
    iterator = iter(loader)
    next(iterator)
    ring: list[Any] = [iterator]
    ring.append(ring)


def batches_kept(loader: Any, kept: list[Any]) -> None:
    kept += list(loader)


def broken_off(loader: Any, kept: list[Any]) -> None:
    for _ in loader:
        break


SCENARIOS: dict[str, Callable[[Any, list[Any]], None]] = {
    scenario.__name__: scenario
    for scenario in (iterator_kept, loaders_error_kept, own_error_kept, reference_cycle, batches_kept, broken_off)
}


# ---- one scenario ------------------------------------------------------------------------------------------


def scenarios(job: Job) -> list[str]:
    return list(SCENARIOS)


def leak(job: Job) -> dict[str, list[int]]:
    """Counts descriptors and memory after each of `loaders` loaders, in a child process."""
    near, far = multiprocessing.Pipe(duplex=False)
    # Workers that torch ends by a signal leave folders behind; the path of a socket in them must be short.
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as scratch:
        child = multiprocessing.get_context("fork").Process(target=_run, args=(far, job, scratch))
        child.start()
        far.close()
        try:
            counts: dict[str, list[int]] = near.recv()
        finally:
            child.join()
            near.close()
    return counts


def _run(out: Connection, job: Job, scratch: str) -> None:
    tempfile.tempdir = scratch
    loader_class = DataLoader if job["loader"] == "torch" else _holdfast_loader()
    scenario = SCENARIOS[job["scenario"]]
    kept: list[Any] = []
    broken_off(loader_class(Rows(), batch_size=BATCH, num_workers=WORKERS), kept)  # what only the first loader opens
    gc.collect()
    descriptors, rss_bytes = [open_descriptors()], [memory_bytes("VmRSS")]
    for _ in range(job["loaders"]):
        scenario(loader_class(Rows(), batch_size=BATCH, num_workers=WORKERS), kept)
        descriptors.append(open_descriptors())
        rss_bytes.append(memory_bytes("VmRSS"))
    out.send({"descriptors": descriptors, "rss_bytes": rss_bytes})
    out.close()
    # Deleting what is kept would take torch five seconds a worker.
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)


def _holdfast_loader() -> Any:
    import holdfast.torch

    return holdfast.torch.DataLoader


def facts() -> dict[str, Any]:
    _holdfast_loader()
    return {"versions": {"torch": str(torch.__version__), "holdfast": hold.__version__}}


if __name__ == "__main__":
    serve([leak, scenarios], facts)
