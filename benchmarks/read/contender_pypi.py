"""torch's DataLoader with two workers over the PyPI package `tfrecord`, which checks no CRC.

It has its own environment because its protobuf messages clash with TensorFlow's.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.metadata
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.common.contenders import Job, serve
from benchmarks.read.operations import Batches, operations
from benchmarks.read.tasks import BATCH, SHUFFLE, WORKERS

DESCRIPTION = {"id": "byte", "label": "int", "weight": "float", "embed": "float"}


def _load_package() -> Any:
    importlib.import_module("tfrecord.tools.tfrecord2idx")
    importlib.import_module("tfrecord.torch.dataset")
    return importlib.import_module("tfrecord")


PACKAGE = _load_package()


class InterleavedFiles(IterableDataset[Any]):
    """Every worker interleaves files of its own: the fastest way to use the package's TFRecordDataset."""

    def __init__(self, files: list[str], shuffle: int) -> None:
        self._files, self._shuffle = files, shuffle

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        files = self._files if worker is None else self._files[worker.id :: worker.num_workers]
        rows = [iter(PACKAGE.torch.dataset.TFRecordDataset(path, None, DESCRIPTION)) for path in files]
        yield from PACKAGE.iterator_utils.shuffle_iterator(interleave(rows), self._shuffle)


def interleave(streams: list[Iterator[Any]]) -> Iterator[Any]:
    while streams:
        for stream in list(streams):
            try:
                yield next(stream)
            except StopIteration:
                streams.remove(stream)


def examples(job: Job) -> Batches:
    return _loaded(InterleavedFiles(job["files"], SHUFFLE["examples"] // WORKERS))


def examples_multi(job: Job) -> Batches:
    """The package's own way to read several files; without an index every worker would read everything."""
    dataset = PACKAGE.torch.dataset.MultiTFRecordDataset(
        str(Path(job["files"][0]).parent / "{}.tfrecord"),
        f"{_indexed(tuple(job['files']))}/{{}}.index",
        {Path(path).stem: 1 / len(job["files"]) for path in job["files"]},
        DESCRIPTION,
        shuffle_queue_size=SHUFFLE["examples"] // WORKERS,
        infinite=False,
    )
    return _loaded(dataset)


def _loaded(dataset: Any) -> Batches:
    for batch in DataLoader(dataset, BATCH["examples"], num_workers=WORKERS):
        # The package turns a number into an array of one number.
        yield {**batch, "label": batch["label"][:, 0], "weight": batch["weight"][:, 0]}


@functools.cache
def _indexed(files: tuple[str, ...]) -> str:
    folder = tempfile.TemporaryDirectory(prefix="holdfast-bench-index-")
    atexit.register(folder.cleanup)
    for path in files:
        PACKAGE.tools.tfrecord2idx.create_index(path, f"{folder.name}/{Path(path).stem}.index")
    return folder.name


def facts() -> dict[str, Any]:
    return {"versions": {"tfrecord": importlib.metadata.version("tfrecord"), "torch": str(torch.__version__)}}


if __name__ == "__main__":
    serve(operations(examples, examples_multi), facts)
