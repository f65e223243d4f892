"""MosaicML Streaming: MDS shards, its shuffle, torch's DataLoader with two workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

from benchmarks.common.contenders import Job
from benchmarks.peers import images
from benchmarks.peers.data import EMBED, IMAGE_BATCH, SMALL_BATCH, jpeg_paths, own_format, small_columns
from benchmarks.peers.operations import Batches, serve


class Decoded(StreamingDataset):
    """Local shards, shuffled, with the images decoded."""

    def __init__(self, home: Path, batch: int, decode: Callable[[Any], Any] | None) -> None:
        super().__init__(local=str(home), shuffle=True, batch_size=batch)
        self._decode = decode

    def __getitem__(self, place: int) -> Any:
        sample = super().__getitem__(place)
        return sample if self._decode is None else {**sample, "image": self._decode(sample["image"])}


def small(job: Job) -> Batches:
    def write(home: Path) -> None:
        rows = zip(*small_columns(job), strict=True)
        _write(home, {"id": "int", "emb": f"ndarray:float32:{EMBED}"}, ({"id": int(i), "emb": e} for i, e in rows))

    return _loader(own_format(job, "mds", write), SMALL_BATCH, None)


def pictures(job: Job) -> Batches:
    def write(home: Path) -> None:
        files = ({"id": place, "image": path.read_bytes()} for place, path in enumerate(jpeg_paths(job)))
        _write(home, {"id": "int", "image": "bytes"}, files)

    for batch in _loader(own_format(job, "mds", write), IMAGE_BATCH, images.decoder(job)):
        yield {"id": batch["id"], "image": batch["image"].float()}


@functools.cache
def _loader(home: Path, batch: int, decode: Callable[[Any], Any] | None) -> Any:
    return DataLoader(Decoded(home, batch, decode), batch, num_workers=2, persistent_workers=True)


def _write(home: Path, columns: dict[str, str], samples: Iterable[dict[str, Any]]) -> None:
    with MDSWriter(out=str(home), columns=columns) as writer:
        for sample in samples:
            writer.write(sample)


if __name__ == "__main__":
    serve(("mosaicml-streaming", "torch", "opencv-python-headless"), small, pictures)
