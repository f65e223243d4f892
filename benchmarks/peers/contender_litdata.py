"""litdata: optimized chunks, its shuffle and its loader with two workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import litdata
import numpy as np

from benchmarks.common.contenders import Job
from benchmarks.peers import images
from benchmarks.peers.data import IMAGE_BATCH, SMALL_BATCH, jpeg_paths, own_format, small_columns
from benchmarks.peers.operations import Batches, serve

MANY = 10_000  # rows of one input of `optimize`


class Decoded(litdata.StreamingDataset):
    def __init__(self, home: Path, decode: Callable[[Any], Any] | None) -> None:
        super().__init__(str(home), shuffle=True)
        self._decode = decode

    def __getitem__(self, place: Any) -> Any:
        sample = super().__getitem__(place)
        return sample if self._decode is None else {**sample, "image": self._decode(sample["image"])}


def small(job: Job) -> Batches:
    def write(home: Path) -> None:
        _write(home, functools.partial(_rows, job), list(range(0, len(small_columns(job)[0]), MANY)))

    return _loader(own_format(job, "litdata", write), SMALL_BATCH, None)


def pictures(job: Job) -> Batches:
    def write(home: Path) -> None:
        _write(home, _image, list(enumerate(jpeg_paths(job))))

    for batch in _loader(own_format(job, "litdata", write), IMAGE_BATCH, images.decoder(job)):
        yield {"id": batch["id"], "image": batch["image"].float()}


def _rows(job: Job, first: int) -> Iterator[dict[str, Any]]:
    ids, emb = (np.array(column[first : first + MANY]) for column in small_columns(job))
    yield from ({"id": id_, "emb": row} for id_, row in zip(ids.tolist(), emb, strict=True))


def _image(file: tuple[int, Path]) -> dict[str, Any]:
    return {"id": file[0], "image": file[1].read_bytes()}


@functools.cache
def _loader(home: Path, batch: int, decode: Callable[[Any], Any] | None) -> Any:
    return litdata.StreamingDataLoader(Decoded(home, decode), batch_size=batch, num_workers=2, persistent_workers=True)


def _write(home: Path, samples: Callable[[Any], Any], inputs: list[Any]) -> None:
    litdata.optimize(samples, inputs, output_dir=str(home), chunk_bytes="16MB", num_workers=1)


if __name__ == "__main__":
    serve(("litdata", "torch", "opencv-python-headless"), small, pictures)
