"""torch's DataLoader: rows of memory-mapped .npy files by __getitems__; .jpg files decoded by torchvision's v2."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms import v2

from benchmarks.common.contenders import Job
from benchmarks.peers.data import IMAGE_BATCH, SIDE, SMALL_BATCH, jpeg_paths, small_columns, source
from benchmarks.peers.operations import Batches, serve

torch.set_num_threads(1)  # while two workers decode
FIT = {
    "resized": v2.Resize((SIDE, SIDE), antialias=False),
    "cropped": v2.RandomResizedCrop(SIDE, antialias=False),
}


class Rows(Dataset[Any]):
    def __init__(self, job: Job) -> None:
        self.ids, self.emb = small_columns(job)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitems__(self, places: list[int]) -> dict[str, Any]:
        return {"id": self.ids[places], "emb": self.emb[places]}


class Pictures(Dataset[Any]):
    def __init__(self, paths: list[Path], fit: Callable[[Any], Any]) -> None:
        self.paths, self.fit = [str(path) for path in paths], fit

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"id": place, "image": self.fit(decode_jpeg(read_file(self.paths[place])))}


def small(job: Job) -> Batches:
    # Faster without workers, which would copy every batch through shared memory.
    return DataLoader(Rows(job), SMALL_BATCH, shuffle=True, collate_fn=lambda batch: batch)


def pictures(job: Job) -> Batches:
    for batch in _loader(str(source(job)), FIT[job["pipeline"]]):
        # Not in the workers, which would have to copy four times as many bytes.
        yield {"id": batch["id"], "image": batch["image"].float()}


@functools.cache
def _loader(folder: str, fit: Callable[[Any], Any]) -> DataLoader[Any]:
    pictures = Pictures(jpeg_paths({"files": [folder]}), fit)
    return DataLoader(pictures, IMAGE_BATCH, shuffle=True, num_workers=2, persistent_workers=True)


if __name__ == "__main__":
    serve(("torch", "torchvision"), small, pictures)
