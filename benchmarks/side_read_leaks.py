"""Loaders that come and go the way programs leak them: descriptors and memory after every one.

One process forks a child for each scenario, so that none sees what another left.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import holdfast as hold
from read_pass import open_descriptors
from read_rows import WORKERS
from worker import Job, serve

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SAMPLES, BATCH, FLOATS = 64, 16, 1024


class Rows(Dataset[Any]):
    bad = -1

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        if i == self.bad:
            raise ValueError(f"sample {i} is bad")
        return torch.full((FLOATS,), float(i))


# ---- the ways, as FACTS has them ---------------------------------------------------------------------------


def iterator_kept(loader: Any, kept: list[Any]) -> None:
    iterator = iter(loader)
    for _ in iterator:
        pass
    kept.append(iterator)


def loaders_error_kept(loader: Any, kept: list[Any]) -> None:
    """A sample that cannot be read: the traceback leads through the iterator."""
    loader.dataset.bad = SAMPLES // 2
    try:
        for _ in loader:
            pass
    except ValueError as error:
        kept.append(error)


def own_error_kept(loader: Any, kept: list[Any]) -> None:
    """The training step fails: the traceback holds its frame, and the frame the iterator. Only `with` ends that one."""
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


# ---- one at a time -----------------------------------------------------------------------------------------


def lives(job: Job) -> dict[str, list[int]]:
    """So many lives of a loader, in a child of its own."""
    near, far = multiprocessing.Pipe(duplex=False)
    # Workers that torch ends by a signal leave folders behind; a socket's path in them must be short.
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as scratch:
        child = multiprocessing.get_context("fork").Process(target=_live, args=(far, job, scratch))
        child.start()
        far.close()
        try:
            told: dict[str, list[int]] = near.recv()
        finally:
            child.join()
            near.close()
    return told


def _live(out: Connection, job: Job, scratch: str) -> None:
    tempfile.tempdir = scratch
    loader_class = DataLoader if job["loader"] == "torch" else _holdfast_loader()
    scenario = SCENARIOS[job["scenario"]]
    kept: list[Any] = []
    broken_off(loader_class(Rows(), batch_size=BATCH, num_workers=WORKERS), kept)  # what only the first one brings in
    gc.collect()
    descriptors, rss_bytes = [open_descriptors()], [_rss_bytes()]
    for _ in range(job["lives"]):
        scenario(loader_class(Rows(), batch_size=BATCH, num_workers=WORKERS), kept)
        descriptors.append(open_descriptors())
        rss_bytes.append(_rss_bytes())
    out.send({"descriptors": descriptors, "rss_bytes": rss_bytes})
    out.close()
    # Dropping what is kept would take torch five seconds a worker.
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)


def _holdfast_loader() -> Any:
    import holdfast.torch

    return holdfast.torch.DataLoader


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def facts() -> dict[str, Any]:
    _holdfast_loader()
    return {"versions": {"torch": str(torch.__version__), "holdfast": hold.__version__}}


if __name__ == "__main__":
    serve({"lives": lives, "scenarios": lambda _: list(SCENARIOS)}, facts)
